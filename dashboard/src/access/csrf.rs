//! CSRF tokens. Each form contains a word that only a visitor who received the page can know. Other sites can make a
//! browser send a form here, but cannot read our pages. Browsers also name the page that sent a form in
//! `Sec-Fetch-Site` or `Origin`; tokens protect the forms if a proxy removes these headers.
//!
//! After a login, the CSRF token is signed with the login's bearer token and bound to its cookie. It is therefore valid
//! as long as the login, on every dashboard with the same token file. Without a login, it is signed with a key of this
//! process. Before a login, the browser receives a cookie with a random nonce, from which the CSRF token is derived.
//! Therefore, no other site can log a browser in as another user.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::{digest, hmac};

const PURPOSE: &str = "lockscope form";

/// A token in a form. Not shown in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct CsrfToken(Arc<str>);

impl fmt::Debug for CsrfToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CsrfToken")
    }
}

impl CsrfToken {
    /// Signs the text that identifies a visitor or a login.
    #[must_use]
    pub fn signed(key: &hmac::Key, subject: &str) -> Self {
        let signature = hmac::sign(key, format!("{PURPOSE} {subject}").as_bytes());
        Self(URL_SAFE_NO_PAD.encode(signature).into())
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if this token was sent. The comparison takes the same time for any text.
    #[must_use]
    pub fn matches(&self, sent: &str) -> bool {
        let digest = |text: &str| digest::digest(&digest::SHA256, text.as_bytes());
        digest(&self.0).as_ref() == digest(sent).as_ref()
    }
}

/// The key of tokens for visitors without a login, or `None` if the system has no randomness. Then all their forms are
/// rejected.
#[derive(Debug, Clone)]
pub struct CsrfKey(Option<hmac::Key>);

impl Default for CsrfKey {
    fn default() -> Self {
        Self(hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok())
    }
}

impl CsrfKey {
    /// Returns the token of the visitor with that name, or of all visitors if none need a name.
    #[must_use]
    pub fn token(&self, name: Option<&str>) -> Option<CsrfToken> {
        let subject = name.map_or_else(|| "of anyone".to_owned(), |name| format!("of {name:?}"));
        self.0.as_ref().map(|key| CsrfToken::signed(key, &subject))
    }
}

/// The length of a nonce, bytes.
const NONCE: usize = 24;

/// A random number that identifies a browser before a login. Not shown in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct LoginNonce(String);

impl fmt::Debug for LoginNonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoginNonce")
    }
}

impl LoginNonce {
    /// Generates a nonce, or returns `None` if the system has no randomness. Then nobody can log in.
    #[must_use]
    pub fn generate() -> Option<Self> {
        let mut nonce = [0; NONCE];
        SystemRandom::new().fill(&mut nonce).ok()?;
        Some(Self(URL_SAFE_NO_PAD.encode(nonce)))
    }

    /// Reads a cookie's value.
    #[must_use]
    pub fn parse(cookie: &str) -> Option<Self> {
        let nonce = URL_SAFE_NO_PAD.decode(cookie).ok()?;
        (nonce.len() == NONCE).then(|| Self(cookie.to_owned()))
    }

    /// Returns the cookie's value.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the token for the login form. Any dashboard can verify it with the cookie, no matter which one set it.
    #[must_use]
    pub fn token(&self) -> CsrfToken {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.0.as_bytes());
        CsrfToken::signed(&key, "of a stranger")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_nonce_has_its_own_token() {
        let (anna, bert) = (LoginNonce::generate().unwrap(), LoginNonce::generate().unwrap());
        let again = LoginNonce::parse(anna.as_str()).unwrap();
        assert!(anna.token().matches(again.token().as_str()));
        assert!(!anna.token().matches(bert.token().as_str()));
        assert!(!anna.token().as_str().contains(anna.as_str()));
        for none in
            ["", "AAAA", anna.as_str().get(1..).unwrap(), &format!("{}A", anna.as_str()), "ä"]
        {
            assert!(LoginNonce::parse(none).is_none(), "{none}");
        }
        assert_eq!(format!("{anna:?}"), "LoginNonce");
    }

    #[test]
    fn a_token_is_valid_for_one_visitor_of_one_process() {
        let key = CsrfKey::default();
        let anna = key.token(Some("anna")).unwrap();
        assert!(anna.matches(key.token(Some("anna")).unwrap().as_str()));
        for other in
            [key.token(Some("bert")), key.token(None), CsrfKey::default().token(Some("anna"))]
        {
            assert!(!anna.matches(other.unwrap().as_str()));
        }
        for none in ["", "anna", "AAAA", &format!("{}A", anna.as_str())] {
            assert!(!anna.matches(none), "{none}");
        }
        assert_eq!(format!("{anna:?}"), "CsrfToken");
    }
}
