//! Tokens of machines and people, and the cookies that stand for them.
//!
//! A cookie holds no token: it names one, says until when it is good, and is signed with that token. So it needs no
//! memory here, is good on every dashboard with the same file, and ends when its token is taken out.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::{digest, hmac};

use super::proofs::Proof;
use super::rights::Rights;
use super::{By, Visitor};

/// How long a login is good, seconds: a shift.
pub const LOGIN_SECS: u64 = 12 * 3600;
/// A shorter token could be guessed.
const MIN_LEN: usize = 16;
const MAX_LEN: usize = 512;
/// Bytes of a digest that name a token in cookies.
const ID_LEN: usize = 9;
const PURPOSE: &str = "lockscope login";

type Digest = [u8; digest::SHA256_OUTPUT_LEN];

#[derive(Debug)]
pub struct Token {
    name: Arc<str>,
    rights: Rights,
    /// Names it in cookies.
    id: String,
    key: hmac::Key,
}

/// All tokens of a file, by their digests: how long a look-up takes tells nothing of a token.
#[derive(Debug, Clone, Default)]
pub struct Tokens(Arc<HashMap<Digest, Arc<Token>>>);

impl Token {
    /// Who has it.
    #[must_use]
    pub fn visitor(&self, by: By) -> Visitor {
        Visitor { name: Some(Arc::clone(&self.name)), rights: self.rights, by }
    }

    /// A cookie that stands for it until this moment, seconds since the epoch.
    #[must_use]
    pub fn cookie(&self, until_secs: u64) -> String {
        let signature = hmac::sign(&self.key, self.signed(until_secs).as_bytes());
        format!("{}.{until_secs}.{}", self.id, URL_SAFE_NO_PAD.encode(signature))
    }

    fn signed(&self, until_secs: u64) -> String {
        format!("{PURPOSE} {} {until_secs}", self.id)
    }
}

fn digest(token: &str) -> Digest {
    let mut bytes = Digest::default();
    bytes.copy_from_slice(digest::digest(&digest::SHA256, token.as_bytes()).as_ref());
    bytes
}

impl Tokens {
    /// Reads a file's text: a line each, `token[,name[,rights]]`, rights parted by `+`; empty lines and those that
    /// begin with `#` are passed over. Without rights it has all.
    ///
    /// # Errors
    /// A sentence for each line that is wrong, by its number, without the token.
    pub fn parse(text: &str) -> Result<Self, Vec<String>> {
        let (mut tokens, mut mistakes) = (HashMap::new(), Vec::new());
        for (number, line) in (1_usize..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            match token(line, number) {
                Ok((digest, token)) => {
                    if tokens.insert(digest, Arc::new(token)).is_some() {
                        mistakes.push(format!("line {number}: this token stands above already"));
                    }
                }
                Err(mistake) => mistakes.push(format!("line {number}: {mistake}")),
            }
        }
        if tokens.is_empty() && mistakes.is_empty() {
            mistakes.push("there is no token in it: expected lines `token,name`".to_owned());
        }
        if mistakes.is_empty() { Ok(Self(Arc::new(tokens))) } else { Err(mistakes) }
    }

    /// The token that was sent, if it is one.
    #[must_use]
    pub fn find(&self, sent: &str) -> Option<&Token> {
        self.0.get(&digest(sent)).map(|token| &**token)
    }

    /// What shows that a form comes from a page made for the login of this cookie.
    #[must_use]
    pub fn proof(&self, cookie: &str) -> Option<Proof> {
        let id = cookie.split('.').next()?;
        let token = self.0.values().find(|token| token.id == id)?;
        Some(Proof::signed(&token.key, cookie))
    }

    /// The token that a cookie stands for, if it is still good.
    #[must_use]
    pub fn of_cookie(&self, cookie: &str, now_secs: u64) -> Option<&Token> {
        let mut parts = cookie.split('.');
        let (id, until, signature) = (parts.next()?, parts.next()?, parts.next()?);
        let until: u64 = until.parse().ok()?;
        if parts.next().is_some() || until <= now_secs || until > now_secs + LOGIN_SECS {
            return None;
        }
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        let token = self.0.values().find(|token| token.id == id)?;
        let signed = token.signed(until);
        hmac::verify(&token.key, signed.as_bytes(), &signature).ok().map(|()| &**token)
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
        None => Rights::ALL,
    };
    let digest = digest(secret);
    // A digest of the digest: what stands in a cookie must not help to find the token.
    let id = digest::digest(&digest::SHA256, &digest);
    let id = id.as_ref().get(..ID_LEN).map(|id| URL_SAFE_NO_PAD.encode(id)).unwrap_or_default();
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    Ok((digest, Token { name: name.into(), rights, id, key }))
}
