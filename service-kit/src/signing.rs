//! Ed25519 signatures, with keys in the formats of `openssl genpkey` and `openssl pkey -pubout`.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;

/// The bytes before the key in a DER-encoded Ed25519 public key.
const PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
/// The bytes of a key that identify it.
const ID_BYTES: usize = 8;

/// A secret key.
pub struct SigningKey(Ed25519KeyPair);

impl SigningKey {
    /// Reads a secret key in PEM format.
    ///
    /// # Errors
    ///
    /// A file that cannot be read or contains no Ed25519 key. The text names the file.
    pub fn from_file(path: &Path) -> Result<Self, String> {
        let file = path.display();
        let key = PrivatePkcs8KeyDer::from_pem_file(path)
            .map_err(|error| format!("cannot read a private key (PEM) from {file}: {error}"))?;
        // Without the check that needs the public key, which OpenSSL does not add to the file.
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(key.secret_pkcs8_der());
        pair.map(Self).map_err(|_| {
            format!("{file} has no Ed25519 key; create one: openssl genpkey -algorithm ed25519")
        })
    }

    /// Returns the public key.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.public_key().as_ref().try_into().expect("an Ed25519 key has 32 bytes"))
    }

    /// Returns the signature of a message in base64.
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> String {
        STANDARD.encode(self.0.sign(message))
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", self.public().id())
    }
}

/// A public key. Its text is the base64 line of its PEM format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// Returns a short text that identifies the key: its first bytes in hex.
    #[must_use]
    pub fn id(&self) -> String {
        self.0[..ID_BYTES].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Returns whether `signature`, in base64, is that of the message.
    #[must_use]
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let Ok(signature) = STANDARD.decode(signature) else { return false };
        UnparsedPublicKey::new(&ED25519, self.0).verify(message, &signature).is_ok()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode([&PREFIX[..], &self.0].concat()))
    }
}

impl FromStr for PublicKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let der = STANDARD.decode(text).unwrap_or_default();
        let key = der.strip_prefix(&PREFIX).and_then(|key| key.try_into().ok());
        key.map(Self).ok_or_else(|| {
            "expected an Ed25519 public key: the line between BEGIN and END that `openssl pkey -pubout` prints"
                .to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key that OpenSSL 3.0 made for this test, and its public key.
    const SECRET: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEILxXnxGccf3yDT/o2Y/dLJIF+6L5oCrdjTIxtf1uwTQt\n-----END PRIVATE KEY-----\n";
    const PUBLIC: &str = "MCowBQYDK2VwAyEAe5rotgGeZzweZ7LRixo2zw5EW1xNRrYfw695YscC/L8=";

    fn key_in(text: &str) -> Result<SigningKey, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        SigningKey::from_file(file.path())
    }

    #[test]
    fn a_key_of_openssl_signs_what_its_public_key_verifies() {
        let key = key_in(SECRET).unwrap();
        let public: PublicKey = PUBLIC.parse().unwrap();
        assert_eq!((key.public(), public.to_string()), (public, PUBLIC.to_owned()));
        assert_eq!(format!("{key:?}"), format!("SigningKey({})", public.id()));
        let signature = key.sign(b"message");
        assert_eq!(signature.len(), 88);
        assert!(public.verifies(b"message", signature.as_bytes()));
        assert!(!public.verifies(b"another", signature.as_bytes()));
        assert!(!public.verifies(b"message", key.sign(b"another").as_bytes()));
        for no in ["", "x", signature.split_at(4).1] {
            assert!(!public.verifies(b"message", no.as_bytes()), "{no}");
        }
    }

    #[test]
    fn other_files_and_keys_are_rejected() {
        let rsa = "-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----\n";
        assert!(key_in("").unwrap_err().contains("cannot read a private key"));
        assert!(key_in(rsa).unwrap_err().contains("openssl genpkey"));
        for no in ["", "MAA=", PUBLIC.split_at(4).1, PUBLIC.split_at(56).0] {
            assert!(no.parse::<PublicKey>().unwrap_err().contains("openssl pkey -pubout"), "{no}");
        }
    }
}
