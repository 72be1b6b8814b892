//! Bearer tokens, and the login cookies that stand for them.
//!
//! A cookie does not contain its token. It contains the token's id and an expiry and is signed with the token. So the
//! dashboard stores no sessions, a cookie is valid on every dashboard with the same file, and it expires when its token is
//! removed.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::{digest, hmac};

use super::csrf::CsrfToken;
use super::rights::Rights;
use super::{AuthMethod, Visitor};

/// The lifetime of a login, seconds: a shift.
pub const LOGIN_SECS: u64 = 12 * 3600;
/// The shortest token that cannot be guessed.
const MIN_LEN: usize = 16;
const MAX_LEN: usize = 512;
/// The length of a token's id, bytes.
const ID_LEN: usize = 9;
const PURPOSE: &str = "lockscope login";

type Digest = [u8; digest::SHA256_OUTPUT_LEN];

#[derive(Debug)]
pub struct Token {
    name: Arc<str>,
    rights: Rights,
    /// The token's id in cookies.
    id: String,
    key: hmac::Key,
}

/// The tokens of a file by their digests, so that the time of a look-up reveals nothing about a token.
#[derive(Debug, Clone, Default)]
pub struct Tokens(Arc<HashMap<Digest, Arc<Token>>>);

impl Token {
    /// Returns the visitor that the token authenticates.
    #[must_use]
    pub fn visitor(&self, auth: AuthMethod) -> Visitor {
        Visitor { name: Some(Arc::clone(&self.name)), rights: self.rights, auth }
    }

    /// Returns a cookie that is valid until this instant, seconds since the epoch.
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
    /// Reads the lines of a file: `token[,name[,rights]]`, with `+` between rights. Empty lines and lines that begin with `#`
    /// are skipped. A token without rights has all.
    ///
    /// # Errors
    /// A sentence for each wrong line, with its number and without the token.
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

    #[must_use]
    pub fn find(&self, sent: &str) -> Option<&Token> {
        self.0.get(&digest(sent)).map(|token| &**token)
    }

    /// Returns the CSRF token of the login with this cookie.
    #[must_use]
    pub fn csrf_token(&self, cookie: &str) -> Option<CsrfToken> {
        let id = cookie.split('.').next()?;
        let token = self.0.values().find(|token| token.id == id)?;
        Some(CsrfToken::signed(&token.key, cookie))
    }

    /// Returns the token of a login cookie that is valid.
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
    // A digest of the digest: a cookie must not help to find the token.
    let id = digest::digest(&digest::SHA256, &digest);
    let id = id.as_ref().get(..ID_LEN).map(|id| URL_SAFE_NO_PAD.encode(id)).unwrap_or_default();
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    Ok((digest, Token { name: name.into(), rights, id, key }))
}
