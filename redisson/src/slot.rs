//! Slots: which part of a Redis cluster a key belongs to.

/// How many slots a cluster has.
pub const SLOTS: u16 = 16_384;

/// The slot of a key or of a shard's channel: 0 to [`SLOTS`] − 1.
#[must_use]
pub fn slot(key: &[u8]) -> u16 {
    crc16(hash_tag(key)) % SLOTS
}

/// The part of a key that a cluster hashes: what stands between the first `{` and the next `}`, if anything.
fn hash_tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|&b| b == b'{') else { return key };
    let rest = &key[open + 1..];
    match rest.iter().position(|&b| b == b'}') {
        Some(close) if close > 0 => &rest[..close],
        _ => key,
    }
}

/// CRC-16 with the polynomial 0x1021, beginning at 0, as XMODEM has it.
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
    fn slots_are_those_of_the_servers() {
        // As CLUSTER KEYSLOT tells them.
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
    fn only_the_first_brace_and_the_next_end_count() {
        let same = |a: &str, b: &str| slot(a.as_bytes()) == slot(b.as_bytes());
        assert!(same("x{a}y{b}z", "a"));
        assert!(same("{{a}}", "{a"));
        assert!(!same("{}a", "a"), "an empty tag is none");
        assert!(!same("x{a", "a"), "nor is one without an end");
    }
}
