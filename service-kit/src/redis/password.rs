//! The password of a login, which a file may renew.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::settings::Secret;

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
        let file = File { path: path.to_owned(), last: Mutex::new(last) };
        Ok(Self(Source::File(Arc::new(file))))
    }

    /// Returns the password of this moment. While its file cannot be read, the last one stays in use, and the log has the
    /// reason. Reading the file blocks.
    pub(super) fn current(&self) -> Secret {
        let file = match &self.0 {
            Source::Text(secret) => return secret.clone(),
            Source::File(file) => file,
        };
        let read = Secret::from_file(&file.path);
        let mut last = file.last();
        match read {
            Ok(secret) => *last = Last { secret, error: None },
            Err(error) => {
                if last.error.as_ref() != Some(&error) {
                    tracing::warn!(error, "keeping the last password");
                }
                last.error = Some(error);
            }
        }
        last.secret.clone()
    }
}

impl File {
    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
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
        match &self.0 {
            Source::Text(secret) => secret.fmt(f),
            Source::File(file) => file.last().secret.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_each_time_and_a_missing_one_leaves_the_last_password() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        assert!(Password::from_file(&path).unwrap_err().contains("password"));
        std::fs::write(&path, "one\n").unwrap();
        let password = Password::from_file(&path).unwrap();
        assert_eq!(password.current().expose(), "one");
        std::fs::write(&path, "two").unwrap();
        assert_eq!(password.current().expose(), "two");
        for text in [Some(""), None] {
            match text {
                Some(text) => std::fs::write(&path, text).unwrap(),
                None => std::fs::remove_file(&path).unwrap(),
            }
            assert_eq!(password.current().expose(), "two", "{text:?}");
        }
        std::fs::write(&path, "three").unwrap();
        assert_eq!(password.current().expose(), "three");
        assert_eq!(format!("{password} {password:?}").matches("three").count(), 0);
    }
}
