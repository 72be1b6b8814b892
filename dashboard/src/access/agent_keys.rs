//! The public keys of agents, which are read again when their file changes.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::RwLock;
use service_kit::settings::watched_file::{FileVersion, follow};
use service_kit::signing::PublicKey;
use tokio::signal::unix::Signal;
use tokio_util::sync::CancellationToken;

use super::text_file::{CHECK_INTERVAL, entries, read};

/// The longest name of a key in characters.
const MAX_NAME: usize = 64;

/// The keys of a file from when it was last valid.
#[derive(Debug, Clone)]
pub struct AgentKeys {
    path: PathBuf,
    keys: Arc<RwLock<Keys>>,
    /// The version that was read last.
    version: Option<FileVersion>,
}

/// Public keys with their names, by their ids.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Keys(Arc<HashMap<String, (PublicKey, Arc<str>)>>);

impl Keys {
    /// Parses lines `name key`. Empty lines and lines that begin with `#` are skipped.
    ///
    /// # Errors
    /// A sentence for each wrong line, and for a text without keys.
    pub fn parse(text: &str) -> Result<Self, Vec<String>> {
        let (mut keys, mut mistakes) = (HashMap::new(), Vec::new());
        for (number, line) in entries(text) {
            match key(line) {
                Ok((name, key)) => {
                    if keys.insert(key.id(), (key, name)).is_some() {
                        mistakes.push(format!(
                            "line {number}: duplicate key: already on an earlier line"
                        ));
                    }
                }
                Err(mistake) => mistakes.push(format!("line {number}: {mistake}")),
            }
        }
        if keys.is_empty() && mistakes.is_empty() {
            mistakes.push("no key in it: expected lines `name key`".to_owned());
        }
        if mistakes.is_empty() { Ok(Self(Arc::new(keys))) } else { Err(mistakes) }
    }

    /// Returns the key of this id and its name.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<(PublicKey, Arc<str>)> {
        self.0.get(id).cloned()
    }
}

fn key(line: &str) -> Result<(Arc<str>, PublicKey), String> {
    let (name, key) = line.split_once(char::is_whitespace).ok_or("expected `name key`")?;
    if name.chars().count() > MAX_NAME || name.chars().any(char::is_control) {
        return Err(format!("a name has up to {MAX_NAME} printable characters"));
    }
    Ok((name.into(), key.trim().parse()?))
}

impl AgentKeys {
    /// Reads the file.
    ///
    /// # Errors
    /// A sentence for each mistake, with the path.
    pub fn open(path: PathBuf) -> Result<Self, Vec<String>> {
        let version = FileVersion::of(&path);
        let keys = Arc::new(RwLock::new(read(&path, Keys::parse)?));
        Ok(Self { path, keys, version })
    }

    /// Returns the current keys.
    #[must_use]
    pub fn now(&self) -> Keys {
        self.keys.read().clone()
    }

    /// Reads the file again when it changes and at each signal, until `stop` is cancelled.
    pub async fn follow(self, hangups: Signal, stop: CancellationToken) {
        follow(self, CHECK_INTERVAL, Some(hangups), stop, Self::check).await;
    }

    /// Reads the file again if it has changed, or if `asked` to.
    fn check(&mut self, asked: bool) {
        let found = FileVersion::of(&self.path);
        if asked || found != self.version {
            self.reload();
            self.version = found;
        }
    }

    /// Reads the file. An invalid file changes nothing.
    fn reload(&self) {
        match read(&self.path, Keys::parse) {
            Ok(fresh) => {
                tracing::info!(file = %self.path.display(), keys = fresh.0.len(), "agent keys reloaded");
                *self.keys.write() = fresh;
            }
            Err(mistakes) => {
                let error = mistakes.join("; ");
                tracing::error!(error, "agent keys reload failed; keeping previous keys");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
    const B: &str = "MCowBQYDK2VwAyEAPUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw=";

    #[test]
    fn keys_are_found_by_their_ids() {
        let keys = Keys::parse(&format!("# agents\n\nweb-1 {A}\n  web-2\t {B}  \n")).unwrap();
        let a: PublicKey = A.parse().unwrap();
        assert_eq!(keys.find(&a.id()), Some((a, "web-1".into())));
        assert_eq!(keys.0.len(), 2);
        assert_eq!(keys.find("0000000000000000"), None);
    }

    #[test]
    fn wrong_lines_are_reported_by_number() {
        let long = "x".repeat(65);
        let text = format!("a {A}\n{B}\nb xyz\n{long} {B}\nc {A}\n");
        let mistakes = Keys::parse(&text).unwrap_err();
        for (mistake, part) in mistakes.iter().zip([
            "line 2: expected `name key`",
            "line 3: expected an Ed25519 public key",
            "line 4: a name has up to 64",
            "line 5: duplicate key",
        ]) {
            assert!(mistake.starts_with(part), "{mistake}");
        }
        assert_eq!(mistakes.len(), 4);
        assert!(Keys::parse("# none\n").unwrap_err()[0].contains("no key in it"));
    }

    #[test]
    fn an_invalid_file_leaves_the_previous_keys_in_force() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |text: String| std::fs::write(file.path(), text).unwrap();
        write(format!("a {A}"));
        let keys = AgentKeys::open(file.path().to_owned()).unwrap();
        let first = keys.now();
        for invalid in [String::new(), format!("a {A}\nb")] {
            write(invalid);
            keys.reload();
            assert_eq!(keys.now(), first);
        }
        write(format!("b {B}"));
        keys.reload();
        assert_eq!(keys.now(), Keys::parse(&format!("b {B}")).unwrap());
        assert_ne!(keys.now(), first);
    }
}
