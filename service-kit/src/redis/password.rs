//! The password of a login, which a file may renew.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use crate::settings::Secret;

/// The time after which a read counts as hanging. It leaves most of a handshake's time to the server.
const MAX_READ: Duration = Duration::from_millis(100);

/// A password, or the file with it. A file is read again for each new connection, so that a password can be changed
/// without a restart. Neither `Display` nor `Debug` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Password(Source);

#[derive(Debug, Clone)]
enum Source {
    Text(Secret),
    File(Arc<File>),
}

#[derive(Debug)]
struct File {
    path: PathBuf,
    last: Mutex<Last>,
    /// The last read, while it has no result. No other one begins before it ends, or each new connection would occupy a
    /// thread if it hangs.
    reading: tokio::sync::Mutex<Option<JoinHandle<Result<Secret, String>>>>,
}

#[derive(Debug)]
struct Last {
    secret: Secret,
    /// The reason why the file could not be read since.
    error: Option<String>,
}

impl Password {
    /// Reads the file for the first time.
    ///
    /// # Errors
    ///
    /// Those of [`Secret::from_file`].
    pub fn from_file(path: &Path) -> Result<Self, String> {
        let last = Last { secret: Secret::from_file(path)?, error: None };
        let reading = tokio::sync::Mutex::default();
        let file = File { path: path.to_owned(), last: Mutex::new(last), reading };
        Ok(Self(Source::File(Arc::new(file))))
    }

    /// Returns the current password. While its file cannot be read, the last one stays in use, and the log has the reason.
    pub(super) async fn current(&self) -> Secret {
        match &self.0 {
            Source::Text(secret) => secret.clone(),
            Source::File(file) => file.current().await,
        }
    }

    /// Returns the password that was read last.
    pub(super) fn last(&self) -> Secret {
        match &self.0 {
            Source::Text(secret) => secret.clone(),
            Source::File(file) => file.last.lock().secret.clone(),
        }
    }
}

impl File {
    async fn current(&self) -> Secret {
        let mut reading = self.reading.lock().await;
        if reading.as_ref().is_none_or(JoinHandle::is_finished) {
            let path = self.path.clone();
            // Stored first, since the connection may be given up while this waits.
            let read = reading.insert(spawn_blocking(move || Secret::from_file(&path)));
            let secret = match timeout(MAX_READ, read).await {
                Ok(secret) => {
                    *reading = None;
                    secret.unwrap_or_else(|error| Err(error.to_string()))
                }
                Err(_) => {
                    Err(format!("reading {} takes more than {MAX_READ:?}", self.path.display()))
                }
            };
            self.update(secret);
        }
        self.last.lock().secret.clone()
    }

    fn update(&self, read: Result<Secret, String>) {
        let mut last = self.last.lock();
        match read {
            Ok(secret) => *last = Last { secret, error: None },
            Err(error) => {
                if last.error.as_ref() != Some(&error) {
                    tracing::warn!(error, "keeping the last password");
                }
                last.error = Some(error);
            }
        }
    }
}

impl From<Secret> for Password {
    fn from(secret: Secret) -> Self {
        Self(Source::Text(secret))
    }
}

/// Files are equal by their paths.
impl PartialEq for Source {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Text(one), Self::Text(other)) => one == other,
            (Self::File(one), Self::File(other)) => one.path == other.path,
            _ => false,
        }
    }
}

impl Eq for Source {}

/// Masked.
impl fmt::Display for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.last().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write as _;

    use super::*;

    #[tokio::test]
    async fn a_file_is_read_each_time_and_a_missing_one_leaves_the_last_password() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        assert!(Password::from_file(&path).unwrap_err().contains("password"));
        std::fs::write(&path, "one\n").unwrap();
        let password = Password::from_file(&path).unwrap();
        assert_eq!(password.current().await.expose(), "one");
        std::fs::write(&path, "two").unwrap();
        assert_eq!(password.current().await.expose(), "two");
        for text in [Some(""), None] {
            match text {
                Some(text) => std::fs::write(&path, text).unwrap(),
                None => std::fs::remove_file(&path).unwrap(),
            }
            assert_eq!(password.current().await.expose(), "two", "{text:?}");
        }
        std::fs::write(&path, "three").unwrap();
        assert_eq!(password.current().await.expose(), "three");
        assert_eq!(format!("{password} {password:?}").matches("three").count(), 0);
    }

    #[tokio::test]
    async fn a_file_that_hangs_leaves_the_last_password_and_is_read_by_one_thread() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        std::fs::write(&path, "one").unwrap();
        let password = Password::from_file(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        // A pipe without a writer lets its reader wait.
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        let Source::File(file) = &password.0 else { panic!("a file") };
        // A handshake that is given up leaves its read to the next one.
        timeout(Duration::ZERO, password.current()).await.unwrap_err();
        let first = file.reading.lock().await.as_ref().unwrap().id();
        for _ in 0..2 {
            assert_eq!(password.current().await.expose(), "one");
            assert_eq!(file.reading.lock().await.as_ref().unwrap().id(), first);
        }
        let mut writer = OpenOptions::new().write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "three").unwrap();
        writer.write_all(b"two").unwrap();
        drop(writer);
        let read = file.reading.lock().await.take().unwrap();
        assert_eq!(read.await.unwrap().unwrap().expose(), "two");
        assert_eq!(password.current().await.expose(), "three");
    }
}
