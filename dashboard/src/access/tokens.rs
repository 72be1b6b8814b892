//! The bearer tokens of a file, which is read again when it changes.

use std::collections::HashMap;
use std::sync::Arc;

use ring::digest;
use tokio_util::sync::CancellationToken;

use super::rights::Rights;
use super::text_file::entries;
use super::{AuthMethod, Stay, Visitor};

/// The shortest token that cannot be guessed.
const MIN_LEN: usize = 16;
const MAX_LEN: usize = 512;

pub(super) type Digest = [u8; digest::SHA256_OUTPUT_LEN];

#[derive(Debug)]
pub struct Token {
    name: Arc<str>,
    rights: Rights,
    /// Cancelled once the file no longer contains this token with this name and these rights.
    removed: CancellationToken,
}

/// The tokens of a file by their digests, so that the duration of a lookup reveals nothing about a token.
#[derive(Debug, Clone, Default)]
pub struct Tokens(Arc<HashMap<Digest, Arc<Token>>>);

impl Token {
    /// Returns the visitor who sends the token itself.
    #[must_use]
    pub fn visitor(&self) -> Visitor {
        let stay = Stay { ended: self.removed.clone(), until_secs: None };
        self.visitor_by(AuthMethod::Bearer, stay)
    }

    /// Returns its user's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn visitor_by(&self, auth: AuthMethod, stay: Stay) -> Visitor {
        Visitor { name: Some(Arc::clone(&self.name)), rights: self.rights.clone(), auth, stay }
    }

    /// Returns a token that is cancelled once this one is removed or changed.
    #[must_use]
    pub fn removed(&self) -> &CancellationToken {
        &self.removed
    }

    fn grants_the_same(&self, other: &Self) -> bool {
        self.name == other.name && self.rights == other.rights
    }
}

pub(super) fn digest(token: &str) -> Digest {
    let mut bytes = Digest::default();
    bytes.copy_from_slice(digest::digest(&digest::SHA256, token.as_bytes()).as_ref());
    bytes
}

impl Tokens {
    /// Parses the lines of a file: `token[,name[,rights]]`, with `+` between rights. Rights may name locks, such as
    /// `release orders:*`. Empty lines and lines that begin with `#` are skipped. A token without rights has all of them.
    ///
    /// # Errors
    /// A sentence for each wrong line, with its number and without the token.
    pub fn parse(text: &str) -> Result<Self, Vec<String>> {
        let (mut tokens, mut mistakes) = (HashMap::new(), Vec::new());
        for (number, line) in entries(text) {
            match token(line, number) {
                Ok((digest, token)) => {
                    if tokens.insert(digest, Arc::new(token)).is_some() {
                        mistakes.push(format!(
                            "line {number}: duplicate token: already on an earlier line"
                        ));
                    }
                }
                Err(mistake) => mistakes.push(format!("line {number}: {mistake}")),
            }
        }
        if mistakes.is_empty() { Ok(Self(Arc::new(tokens))) } else { Err(mistakes) }
    }

    #[must_use]
    pub fn find(&self, sent: &str) -> Option<&Arc<Token>> {
        self.0.get(&digest(sent))
    }

    /// Takes over the unchanged tokens of an earlier version of the file, and ends the visits of the others.
    pub(super) fn succeed(self, earlier: &Self) -> Self {
        let mut tokens = Arc::unwrap_or_clone(self.0);
        for (digest, old) in earlier.0.iter() {
            match tokens.get_mut(digest).filter(|new| new.grants_the_same(old)) {
                Some(new) => *new = Arc::clone(old),
                None => old.removed.cancel(),
            }
        }
        Self(Arc::new(tokens))
    }

    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

fn token(line: &str, number: usize) -> Result<(Digest, Token), String> {
    let mut fields = line.splitn(3, ',').map(str::trim);
    let secret = fields.next().unwrap_or_default();
    if !(MIN_LEN..=MAX_LEN).contains(&secret.len()) || !secret.bytes().all(|b| b.is_ascii_graphic())
    {
        return Err(format!(
            "a token has {MIN_LEN} to {MAX_LEN} printable characters; `openssl rand -hex 24` makes one"
        ));
    }
    let name = match fields.next() {
        Some(name) if !name.is_empty() => name.to_owned(),
        _ => format!("token {number}"),
    };
    if name.chars().count() > 64 || name.chars().any(char::is_control) {
        return Err("a name has up to 64 printable characters".to_owned());
    }
    let rights = match fields.next() {
        Some(words) => Rights::parse(words.split('+').map(str::trim))?,
        None => Rights::all(),
    };
    let digest = digest(secret);
    Ok((digest, Token { name: name.into(), rights, removed: CancellationToken::new() }))
}
