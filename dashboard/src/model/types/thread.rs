//! The threads of holders, packed.

use super::lock_view::{LockView, client_of};

/// The number of a thread in its holder's id, and whether a writer's suffix follows it. There is no number if the id
/// ends differently, or the lock has no holder or several. The type consists of bytes, so that a row has no padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thread([u8; 8]);

impl Thread {
    const NONE: Self = Self([u8::MAX; 8]);
    const WRITER: &str = ":write";
    /// The first number that is not packed.
    const END: u64 = 1 << 62;

    /// Returns the thread of a lock's only holder.
    pub(super) fn of(lock: &LockView) -> Self {
        let [holder] = lock.holders.as_slice() else { return Self::NONE };
        let (_, rest) = holder.id.split_at(client_of(&holder.id).len());
        Self::parse(rest).unwrap_or(Self::NONE)
    }

    fn parse(rest: &str) -> Option<Self> {
        let rest = rest.strip_prefix(':')?;
        let digits = rest.strip_suffix(Self::WRITER);
        let (digits, writes) = digits.map_or((rest, false), |digits| (digits, true));
        let is_written_so =
            digits == "0" || digits.starts_with(|first| ('1'..='9').contains(&first));
        let number: u64 = digits.parse().ok().filter(|it| is_written_so && *it < Self::END)?;
        Some(Self((number << 1 | u64::from(writes)).to_le_bytes()))
    }

    /// Appends the rest of the holder's id after the client. Returns false if it is not known.
    pub fn append_to(self, id: &mut Vec<u8>) -> bool {
        let packed = u64::from_le_bytes(self.0);
        if self != Self::NONE {
            id.push(b':');
            id.extend_from_slice(itoa::Buffer::new().format(packed >> 1).as_bytes());
            if packed & 1 == 1 {
                id.extend_from_slice(Self::WRITER.as_bytes());
            }
        }
        self != Self::NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_packed_and_unpacked() {
        let known = [":0", ":52", ":52:write", ":0:write", ":4611686018427387903:write"];
        for rest in known {
            let mut id = b"client".to_vec();
            assert!(Thread::parse(rest).unwrap().append_to(&mut id), "{rest}");
            assert_eq!(id, format!("client{rest}").into_bytes());
        }
        for rest in ["", "52", ":", ":-1", ":+1", ":07", ":x", ":1:read", ":4611686018427387904"] {
            assert_eq!(Thread::parse(rest), None, "{rest}");
        }
        let mut id = Vec::new();
        assert!(!Thread::NONE.append_to(&mut id) && id.is_empty());
    }
}
