//! Logins, which the cookies of browsers represent. They are in memory, so that each can be ended, and end with the
//! process.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio_util::sync::CancellationToken;

use super::csrf::CsrfToken;
use super::eviction::gives_way;
use super::tokens::{Digest, Token, digest};
use super::{AuthMethod, Stay, Visitor};

/// The lifetime of a login, seconds: a shift.
pub const LOGIN_SECS: u64 = 12 * 3600;
/// The maximum number of logins. Beyond it, the oldest login of the user with the most logins ends.
const MAX_LOGINS: usize = 10_000;
/// The length of a cookie's secret, bytes.
const SECRET_LEN: usize = 24;

/// A login of a browser.
#[derive(Debug, Clone)]
pub struct Login {
    pub token: Arc<Token>,
    /// The end of the login in seconds since the epoch.
    pub until_secs: u64,
    /// Cancelled when the visitor logs out, or when the token is removed.
    pub ended: CancellationToken,
}

impl Login {
    /// Returns the visitor who logged in.
    #[must_use]
    pub fn visitor(&self) -> Visitor {
        let stay = Stay { ended: self.ended.clone(), until_secs: Some(self.until_secs) };
        self.token.visitor_by(AuthMethod::Cookie, stay)
    }
}

/// The logins by the digests of their cookies. Cheap to clone.
#[derive(Clone, Default)]
pub struct Logins(Arc<Mutex<HashMap<Digest, Login>>>);

impl fmt::Debug for Logins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Logins")
    }
}

impl Logins {
    /// Begins a login and returns its cookie, or `None` if the system has no randomness.
    #[must_use]
    pub fn begin(&self, token: &Arc<Token>, now_secs: u64) -> Option<String> {
        self.begin_among(MAX_LOGINS, token, now_secs)
    }

    fn begin_among(&self, most: usize, token: &Arc<Token>, now_secs: u64) -> Option<String> {
        let mut secret = [0; SECRET_LEN];
        SystemRandom::new().fill(&mut secret).ok()?;
        let cookie = URL_SAFE_NO_PAD.encode(secret);
        let (until_secs, ended) = (now_secs + LOGIN_SECS, token.removed().child_token());
        let mut logins = self.0.lock();
        logins.retain(|_, login| login.until_secs > now_secs && !login.ended.is_cancelled());
        if logins.len() >= most {
            let user = gives_way(logins.values().map(|login| login.token.name()), token.name());
            let own = logins.iter().filter(|(_, login)| login.token.name() == user);
            let oldest = own.min_by_key(|(_, login)| login.until_secs);
            if let Some(digest) = oldest.map(|(digest, _)| *digest)
                && let Some(login) = logins.remove(&digest)
            {
                login.ended.cancel();
            }
        }
        logins.insert(digest(&cookie), Login { token: Arc::clone(token), until_secs, ended });
        Some(cookie)
    }

    /// Returns the login of a cookie.
    #[must_use]
    pub fn find(&self, cookie: &str, now_secs: u64) -> Option<Login> {
        let login = self.0.lock().get(&digest(cookie)).cloned()?;
        (login.until_secs > now_secs && !login.ended.is_cancelled()).then_some(login)
    }

    /// Ends the login of a cookie, with its streams.
    pub fn end(&self, cookie: &str) {
        if let Some(login) = self.0.lock().remove(&digest(cookie)) {
            login.ended.cancel();
        }
    }
}

/// Returns the CSRF token of the login with this cookie.
#[must_use]
pub fn csrf_token(cookie: &str) -> CsrfToken {
    CsrfToken::signed(&hmac::Key::new(hmac::HMAC_SHA256, cookie.as_bytes()), "of a login")
}

#[cfg(test)]
mod tests {
    use super::super::tokens::Tokens;
    use super::*;

    #[test]
    fn a_flood_of_logins_ends_only_its_own() {
        let tokens = Tokens::parse("0123456789abcdef,anna\nfedcba9876543210,bert\n").unwrap();
        let (anna, bert) = (tokens.find("0123456789abcdef"), tokens.find("fedcba9876543210"));
        let logins = Logins::default();
        let begin =
            |token: Option<&Arc<Token>>, at| logins.begin_among(4, token.unwrap(), at).unwrap();
        let first = begin(anna, 1);
        let ended = logins.find(&first, 1).unwrap().ended;
        let flood: Vec<String> = (2..11).map(|at| begin(bert, at)).collect();
        let second = begin(anna, 11);
        let left = |cookie: &String| logins.find(cookie, 11).is_some();
        assert!(left(&first) && left(&second) && !ended.is_cancelled());
        assert_eq!(
            flood.iter().map(left).collect::<Vec<_>>(),
            [[false; 7].as_slice(), &[true; 2]].concat()
        );
        begin(bert, 12);
        assert!(left(&first) && !left(&flood[7]), "among equals the one who comes gives way");
        begin(anna, 13);
        assert!(!left(&first) && left(&second) && ended.is_cancelled());
    }
}
