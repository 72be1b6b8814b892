//! Events of a stream, each of which is written and compressed once for all readers.

use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use axum::http::{HeaderMap, header};
use flate2::{Compress, Compression, FlushCompress};

/// The header of a gzip stream (RFC 1952): deflate, no name, no time, no particular system. The trailer with the checksum is
/// never sent, since the stream does not end.
const GZIP_HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
/// The minimum length of an event that is worth compressing, in bytes.
const SHORT: usize = 512;

/// The content coding of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    Plain,
    Gzip,
}

impl Packing {
    /// Returns the coding that a request accepts.
    #[must_use]
    pub fn wanted(headers: &HeaderMap) -> Self {
        let accepted = headers.get_all(header::ACCEPT_ENCODING);
        let mut accepted = accepted.iter().filter_map(|value| value.to_str().ok());
        let gzip = accepted.any(|value| {
            value.split(',').any(|coding| {
                let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
                let weight =
                    weight.split_once('=').and_then(|(_, value)| value.trim().parse().ok());
                name.trim().eq_ignore_ascii_case("gzip") && weight != Some(0.0)
            })
        });
        if gzip { Self::Gzip } else { Self::Plain }
    }

    /// Returns the bytes before the first event.
    #[must_use]
    pub fn head(self) -> Option<Bytes> {
        (self == Self::Gzip).then(|| Bytes::from_static(&GZIP_HEAD))
    }
}

/// An event named `patch`. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SseEvent(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    plain: Bytes,
    packed: OnceLock<Bytes>,
}

impl SseEvent {
    /// Creates an event from JSON without line breaks.
    #[must_use]
    pub fn new(json: &str) -> Self {
        let plain = ["event: patch\ndata: ", json, "\n\n"].concat().into();
        Self(Arc::new(Inner { plain, packed: OnceLock::new() }))
    }

    /// Returns the most bytes that the event uses, in both codings.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.plain.len() / 4 * 5
    }

    /// Returns the event in a coding.
    #[must_use]
    pub fn bytes(&self, packing: Packing) -> Bytes {
        match packing {
            Packing::Plain => self.0.plain.clone(),
            Packing::Gzip => self.0.packed.get_or_init(|| packed(&self.0.plain)).clone(),
        }
    }
}

/// Returns whole blocks of deflate (RFC 1951) that refer to no earlier data, so they may follow any other event.
fn packed(plain: &[u8]) -> Bytes {
    if let Some(length) = u16::try_from(plain.len()).ok().filter(|_| plain.len() < SHORT) {
        // This is a stored block.
        let mut block = vec![0];
        block.extend(length.to_le_bytes());
        block.extend((!length).to_le_bytes());
        block.extend(plain);
        return block.into();
    }
    let mut packer = Compress::new(Compression::default(), false);
    let mut out = Vec::with_capacity(plain.len() / 3 + SHORT);
    loop {
        let taken = usize::try_from(packer.total_in()).unwrap_or(plain.len());
        let rest = plain.get(taken..).unwrap_or_default();
        let packing = packer.compress_vec(rest, &mut out, FlushCompress::Full);
        // A full buffer may have cut the flush short.
        if packing.is_err() || rest.is_empty() && out.len() < out.capacity() {
            return out.into();
        }
        out.reserve(plain.len() / 4 + SHORT);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::DeflateDecoder;

    use super::*;

    #[test]
    fn compressed_events_may_follow_one_another_in_any_order() {
        let long = format!("[{}]", "\"orders:42 is held\",".repeat(4_000));
        let noise: String = (0..60_000_u32).map(|i| char::from(33 + (i * i % 89) as u8)).collect();
        let events = [&*long, "1", &*noise, &*long, "[]", &*long].map(SseEvent::new);
        let bytes =
            |packing| events.iter().flat_map(|event| event.bytes(packing)).collect::<Vec<_>>();
        let (plain, packed) = (bytes(Packing::Plain), bytes(Packing::Gzip));
        assert!(packed.len() * 3 < plain.len(), "{} of {}", packed.len(), plain.len());
        let mut unpacked = vec![0; plain.len()];
        DeflateDecoder::new(&packed[..]).read_exact(&mut unpacked).unwrap();
        assert!(unpacked == plain);
    }

    #[test]
    fn gzip_is_used_if_the_request_accepts_it() {
        let wanted = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, value.parse().unwrap());
            Packing::wanted(&headers)
        };
        for yes in ["gzip", "gzip, deflate, br", "br;q=1, GZIP;q=0.5"] {
            assert_eq!(wanted(yes), Packing::Gzip, "{yes}");
        }
        for no in ["", "identity", "gzip;q=0", "gzip; q=0.0", "GZIP;Q=0.000", "gzip;q = 0.", "br"] {
            assert_eq!(wanted(no), Packing::Plain, "{no}");
        }
        assert_eq!(Packing::wanted(&HeaderMap::new()), Packing::Plain);
    }
}
