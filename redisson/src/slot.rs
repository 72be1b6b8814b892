//! Hash slots of a Redis cluster.

/// The number of slots in a cluster.
pub const SLOTS: u16 = 16_384;

/// Returns the slot of a key or sharded channel: 0 to [`SLOTS`] − 1.
#[must_use]
pub fn slot(key: &[u8]) -> u16 {
    crc16(hash_tag(key)) % SLOTS
}

/// Returns the part of a key that a cluster hashes: the text between the first `{` and the next `}` unless empty, else
/// the whole key.
fn hash_tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|&b| b == b'{') else { return key };
    let rest = &key[open + 1..];
    match rest.iter().position(|&b| b == b'}') {
        Some(close) if close > 0 => &rest[..close],
        _ => key,
    }
}

/// Computes CRC-16/XMODEM: polynomial 0x1021, initial value 0.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc: u16, _| {
            let carry = crc & 0x8000 != 0;
            (crc << 1) ^ if carry { 0x1021 } else { 0 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_match_those_of_redis() {
        // Taken from CLUSTER KEYSLOT.
        for (key, expected) in [
            ("", 0),
            ("123456789", 12_739),
            ("foo", 12_182),
            ("{foo}bar", 12_182),
            ("redisson_lock__channel:{foo}", 12_182),
        ] {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
    }

    #[test]
    fn only_the_first_brace_pair_counts() {
        let same = |a: &str, b: &str| slot(a.as_bytes()) == slot(b.as_bytes());
        assert!(same("x{a}y{b}z", "a"));
        assert!(same("{{a}}", "{a"));
        assert!(!same("{}a", "a"), "an empty tag does not count");
        assert!(!same("x{a", "a"), "nor does an unclosed one");
    }
}
