//! The token file, which is read again when it changes.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use service_kit::settings::watched_file::{FileVersion, follow};
use tokio::signal::unix::Signal;
use tokio_util::sync::CancellationToken;

use super::text_file::{CHECK_INTERVAL, read};
use super::tokens::Tokens;

/// The tokens of a file from when it was last valid.
#[derive(Debug, Clone)]
pub struct TokenFile {
    path: PathBuf,
    tokens: Arc<RwLock<Tokens>>,
    /// True if the file had no tokens when it was last read, and the previous ones have not been revoked yet.
    empty: Arc<AtomicBool>,
    /// The version that was read last.
    version: Option<FileVersion>,
}

impl TokenFile {
    /// Reads the file.
    ///
    /// # Errors
    /// A sentence for each mistake, without the tokens.
    pub fn open(path: PathBuf) -> Result<Self, Vec<String>> {
        let version = FileVersion::of(&path);
        let tokens = read(&path, Tokens::parse)?;
        if tokens.count() == 0 {
            let why = "there is no token in it: expected lines `token,name`";
            return Err(vec![format!("{}, {why}", path.display())]);
        }
        let tokens = Arc::new(RwLock::new(tokens));
        Ok(Self { path, tokens, empty: Arc::default(), version })
    }

    /// Returns the current tokens.
    #[must_use]
    pub fn now(&self) -> Tokens {
        self.tokens.read().clone()
    }

    /// Reads the file again when it changes and at each signal, until `stop` is cancelled.
    pub async fn follow(self, hangups: Signal, stop: CancellationToken) {
        follow(self, CHECK_INTERVAL, Some(hangups), stop, Self::check).await;
    }

    /// Reads the file again if it has changed, or if `asked` to.
    fn check(&mut self, asked: bool) {
        let found = FileVersion::of(&self.path);
        if asked || found != self.version || self.empty.load(Ordering::Relaxed) {
            self.reload(asked || found == self.version);
            self.version = found;
        }
    }

    /// Reads the file. Logins and streams of tokens that are gone or changed end. An invalid file changes nothing. A
    /// file without tokens may be about to be written, so it ends all tokens only if it is `settled`.
    pub fn reload(&self, settled: bool) {
        self.empty.store(false, Ordering::Relaxed);
        match read(&self.path, Tokens::parse) {
            Ok(fresh) if fresh.count() == 0 && !settled => {
                self.empty.store(true, Ordering::Relaxed);
                tracing::warn!(file = %self.path.display(), "token file is empty; revoking all tokens unless it changes");
            }
            Ok(fresh) => {
                let mut tokens = self.tokens.write();
                *tokens = fresh.succeed(&tokens);
                tracing::info!(file = %self.path.display(), tokens = tokens.count(), "token file reloaded");
            }
            Err(mistakes) => {
                let error = mistakes.join("; ");
                tracing::error!(error, "token file reload failed; keeping previous tokens");
            }
        }
    }
}
