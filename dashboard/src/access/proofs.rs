//! What shows that a form was sent by one of our own pages: a word in it that only somebody who was given the page can
//! know. Other sites can have a browser send a form here, but cannot read our pages.
//!
//! The word for somebody who has logged in is signed with their token and says which login it is for: it is good as long as
//! the login is, on every dashboard with the same file. For others it is made with a key that ends with this process.
//! Whoever is about to log in gets a cookie with a number that only their browser knows, and the word in the form is made of
//! that: so no other site can log them in as somebody else, who would then see what they look at and do.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::{digest, hmac};

/// The name of the field.
pub const FIELD: &str = "proof";
const PURPOSE: &str = "lockscope form";

/// Such a word. It is not shown in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Proof(Arc<str>);

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proof")
    }
}

impl Proof {
    /// The word by that key for whatever tells one visitor, or one login, from all others.
    #[must_use]
    pub fn signed(key: &hmac::Key, whose: &str) -> Self {
        let signature = hmac::sign(key, format!("{PURPOSE} {whose}").as_bytes());
        Self(URL_SAFE_NO_PAD.encode(signature).into())
    }

    /// As it stands in a form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is what was sent. How long that takes tells nothing of how near it was.
    #[must_use]
    pub fn is(&self, sent: &str) -> bool {
        let digest = |text: &str| digest::digest(&digest::SHA256, text.as_bytes());
        digest(&self.0).as_ref() == digest(sent).as_ref()
    }
}

/// Makes the words for those who have not logged in.
#[derive(Debug, Clone)]
pub struct Proofs(Option<hmac::Key>);

impl Default for Proofs {
    /// With a key of its own. Where the system gives nothing random there is no word, and no form is taken.
    fn default() -> Self {
        Self(hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok())
    }
}

impl Proofs {
    /// The word for a visitor of that name; for all who need none the same.
    #[must_use]
    pub fn of(&self, name: Option<&str>) -> Option<Proof> {
        let whose = name.map_or_else(|| "of anybody".to_owned(), |name| format!("of {name:?}"));
        self.0.as_ref().map(|key| Proof::signed(key, &whose))
    }
}

/// Of a number that a browser is given before its login, bytes.
const NUMBER: usize = 24;

/// What a browser is known by before somebody logs in with it. It is not shown in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Stranger(String);

impl fmt::Debug for Stranger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stranger")
    }
}

impl Stranger {
    /// A new one; none where the system gives nothing random, and then nobody can log in.
    #[must_use]
    pub fn new() -> Option<Self> {
        let mut number = [0; NUMBER];
        SystemRandom::new().fill(&mut number).ok()?;
        Some(Self(URL_SAFE_NO_PAD.encode(number)))
    }

    /// Of a cookie's value; none where it is no such number.
    #[must_use]
    pub fn parse(cookie: &str) -> Option<Self> {
        let number = URL_SAFE_NO_PAD.decode(cookie).ok()?;
        (number.len() == NUMBER).then(|| Self(cookie.to_owned()))
    }

    /// The cookie's value.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The word in the form of the login. Any dashboard knows it by the cookie, whichever of several gave it.
    #[must_use]
    pub fn proof(&self) -> Proof {
        Proof::signed(&hmac::Key::new(hmac::HMAC_SHA256, self.0.as_bytes()), "of a stranger")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stranger_has_a_word_of_their_own() {
        let (anna, bert) = (Stranger::new().unwrap(), Stranger::new().unwrap());
        let again = Stranger::parse(anna.as_str()).unwrap();
        assert!(anna.proof().is(again.proof().as_str()) && !anna.proof().is(bert.proof().as_str()));
        assert!(!anna.proof().as_str().contains(anna.as_str()));
        for none in
            ["", "AAAA", anna.as_str().get(1..).unwrap(), &format!("{}A", anna.as_str()), "ä"]
        {
            assert!(Stranger::parse(none).is_none(), "{none}");
        }
        assert_eq!(format!("{anna:?}"), "Stranger");
    }

    #[test]
    fn a_word_is_good_for_one_visitor_of_one_process() {
        let proofs = Proofs::default();
        let anna = proofs.of(Some("anna")).unwrap();
        assert!(anna.is(proofs.of(Some("anna")).unwrap().as_str()));
        for other in [proofs.of(Some("bert")), proofs.of(None), Proofs::default().of(Some("anna"))]
        {
            assert!(!anna.is(other.unwrap().as_str()));
        }
        for none in ["", "anna", "AAAA", &format!("{}A", anna.as_str())] {
            assert!(!anna.is(none), "{none}");
        }
        assert_eq!(format!("{anna:?}"), "Proof");
    }
}
