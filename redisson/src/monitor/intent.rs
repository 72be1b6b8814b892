//! The intent of a script, derived from its digest if known, else from the form of its keys and arguments.

use super::byte_strings::ByteStrings;
use crate::{HolderId, Kind, keys, script};

/// The intent of a script. Its outcome follows from the commands that it called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Intent {
    /// Acquires or reenters a lock.
    Acquire(Kind),
    /// Tries to acquire a fair lock without joining the queue.
    TryFair,
    /// Lowers the hold count by one.
    Unlock(Kind),
    /// Renews one or many locks of any kind but read.
    Renew,
    /// Renews read holds.
    RenewRead,
    /// Releases a lock regardless of its holder.
    Force(Kind),
    /// Leaves a fair lock's queue.
    Leave,
    /// Sets the TTL of any object. Multi-locks set the lease of their members this way.
    Expire,
    /// Ambiguous: the commands that it called decide.
    Unclear,
    /// Acquires a lock for an agent.
    OwnAcquire(Kind),
    /// Renews an agent's holds and sets their counts.
    OwnRenew(Option<Kind>),
    /// Releases an agent's hold.
    OwnRelease(Kind),
    /// Acquires and releases several locks for an agent.
    OwnBatch,
    /// Hands a lock over within an agent.
    OwnHandOver,
    /// Hands a fair lock over within an agent, or releases it.
    OwnHandOverFair,
    /// Releases a lock by force for an operator.
    OwnForce,
    /// Irrelevant to locks.
    Nothing,
}

/// The digests of Redisson's scripts from 3.8 to 4.7. Several kinds may share one script.
pub(super) const REDISSON: [(&str, Intent); 61] = [
    ("9401052d872adfd0179ef8c8e8c028512707629a", Intent::Acquire(Kind::Lock)),
    ("dad0f8d619e548e04f21fb48d50be5034df3adae", Intent::Acquire(Kind::Lock)),
    ("149c5a8bf18676fd99e9e6e24923bd64d9b62f94", Intent::Acquire(Kind::Lock)),
    ("3daa7be6cf69d9309ad990442e83bf25094f9b22", Intent::Acquire(Kind::Lock)),
    ("49babb5a1e6a0c5f188c2ae62b93b51cdfd63e45", Intent::Acquire(Kind::Fenced)),
    ("46b5551ba403d6152a7a6eca122e08728d6c8c66", Intent::Acquire(Kind::Fenced)),
    ("c10436d1a94338a33b5ca6ac6f483f6b92193d48", Intent::Acquire(Kind::Fair)),
    ("762bfafa6be221431a0b668685dd15c926483619", Intent::Acquire(Kind::Fair)),
    ("f453a73adbe05f097ff2810e5e0c0489a9350076", Intent::Acquire(Kind::Fair)),
    ("929defe0321e0a4c943b4244951d3a730b6eaabc", Intent::Acquire(Kind::Fair)),
    ("8f6ed299ffd259f0539c20f89253998c0777ea75", Intent::Acquire(Kind::Fair)),
    ("46724422f148047badd768b1b1a3d750d86bded2", Intent::Acquire(Kind::Fair)),
    ("706c2b7e93b133c46a7d8593a3a95d5ab55e6721", Intent::TryFair),
    ("aa0a28d2eb7cbeb50151315a58eb75302d8dfa40", Intent::TryFair),
    ("d20501c26a30adf6fb0fe9883bbbcc497e6157e2", Intent::TryFair),
    ("5bea9498faee85066db11f2f8bf80fccbf222eaf", Intent::TryFair),
    ("3e6597e1d1157c59ac0d6efa2ba7e92ef418c41e", Intent::Acquire(Kind::Read)),
    ("95553a6ff11176c18e71344e89d116b06fd6f753", Intent::Acquire(Kind::Read)),
    ("6306ba3bf1f563b284bed52d305fce615c6664d9", Intent::Acquire(Kind::Write)),
    ("93cfc048f82624d1670a310aa0ad58918c0824a5", Intent::Unlock(Kind::Lock)),
    ("3ffe249c16dee540ac8ab32e39bd408626b9aff7", Intent::Unlock(Kind::Lock)),
    ("778cea8aada230ae060b432fc333adaec85f2f4c", Intent::Unlock(Kind::Lock)),
    ("6866459238a13a701d42f4971f12d9f3a50e2442", Intent::Unlock(Kind::Lock)),
    ("73ac2729af29ea9a975f95e8097f7ee9a74cce3d", Intent::Unlock(Kind::Lock)),
    ("5b9e58d1bcb8498e14aa1d5b49a1ca5b90748946", Intent::Unlock(Kind::Lock)),
    ("35d32367b21753c39b55dc64d1906fee627cc9a8", Intent::Unlock(Kind::Fair)),
    ("14f85250fb2a386500bf8e4b25a8e95db140ff0c", Intent::Unlock(Kind::Fair)),
    ("ca303f8587d0942f8a0021f62338626ca4dd0118", Intent::Unlock(Kind::Fair)),
    ("367f80bd2e300e411fb0936d9b601e5bcb3fd4b6", Intent::Unlock(Kind::Fair)),
    ("f5469be4bfe5232d519471092634b3ee84e5ee6f", Intent::Unlock(Kind::Read)),
    ("92a54c31a4dc3b46f81e24a6dd5bb7d677c6f882", Intent::Unlock(Kind::Read)),
    ("5947c0fee6ca25ae094ec1b3e7a2559a9273d29f", Intent::Unlock(Kind::Read)),
    ("6e1b10e11ac0a3ed8e902562ecd32ce01b553039", Intent::Unlock(Kind::Read)),
    ("baa634f6184acc1b8f145e810a0e0e00967a3cbe", Intent::Unlock(Kind::Write)),
    ("319a1cdf1b56c767a0a9adf2224250bf811f110c", Intent::Unlock(Kind::Write)),
    ("d29c5559782035515d32e926762830b3304b49be", Intent::Unlock(Kind::Write)),
    ("21f5fb0f8ddfa9be5c3e0c9757c128796add75c6", Intent::Unlock(Kind::Write)),
    ("8e19a1ddbdee9138df9f32a480c57addab4353d1", Intent::Renew),
    ("6a3d31570dc6f4b0bd32bcdc8e75667747c6f635", Intent::Renew),
    ("6563941ff57e01b8cf61e86907b80686438a2f74", Intent::RenewRead),
    ("1affef780a01e1406cb1968c62918f618d10d6a3", Intent::RenewRead),
    ("d6564f42b98d6eece0e940a478ee248f80b8a90a", Intent::RenewRead),
    ("38d2b478dfbe264ab67c221b7e4be62245f00ba0", Intent::RenewRead),
    ("7e9c80b3d786b95d5d4aaf8fd73adb9775fa6fb1", Intent::Force(Kind::Lock)),
    ("605e338249a7a1d40df83b04f7658354f883b41b", Intent::Force(Kind::Lock)),
    ("51b433c3cc9a6ca991b3aefec63d23490c246318", Intent::Force(Kind::Lock)),
    ("95cdf4b03f82c82edf987c7d216b4b67d861b14f", Intent::Force(Kind::Fair)),
    ("047c11d7fec40d0102fe9903ff1e19e9a1dec610", Intent::Force(Kind::Fair)),
    ("71ed11d4e4818119ac560b3d670a7f08256afc46", Intent::Force(Kind::Fair)),
    ("23f9bc91439172625235ce2ee06d6647f08a7e27", Intent::Force(Kind::Read)),
    ("23639b0b2d18d26ce352e148ff4ac5b8e984b696", Intent::Force(Kind::Write)),
    ("27dbe744e95c1d854a7f556cc6817030de2d0d01", Intent::Force(Kind::Read)),
    ("2e2cb2a3b13e2e80e4236ef6a25beaf365dba608", Intent::Force(Kind::Write)),
    ("33148f0ca0bbc1fae2674efa67209dcb1f6c6431", Intent::Leave),
    ("d1ddef65ad80886b5d36e023c99930044ddd653a", Intent::Leave),
    ("8ad44f1ba014938c20da38206b6d496c85ec1aed", Intent::Nothing),
    ("eba4f75b2998ef1ead8e55019d89d93d85dadf60", Intent::Nothing),
    ("6f6c8d62862d8d76ea41fc769938285c3aca3005", Intent::Nothing),
    ("5088a04fb08aa002f465f0f90b35ed8da9b27a3c", Intent::Nothing),
    ("935362a31ac5b3d6f7c5c3f1e26d9a012f87f2bd", Intent::Nothing),
    ("3fd750e0b43af99dbd223e5523718f18cded3664", Intent::Expire),
];

/// Returns the intent of one of Lockscope's own scripts.
pub(super) fn of_own(script: &script::Script) -> Intent {
    match script.name {
        "acquire" => Intent::OwnAcquire(Kind::Lock),
        "acquire_fair" => Intent::OwnAcquire(Kind::Fair),
        "acquire_read" => Intent::OwnAcquire(Kind::Read),
        "acquire_write" => Intent::OwnAcquire(Kind::Write),
        "keep" => Intent::OwnRenew(None),
        "keep_read" => Intent::OwnRenew(Some(Kind::Read)),
        "release" => Intent::OwnRelease(Kind::Lock),
        "release_fair" => Intent::OwnRelease(Kind::Fair),
        "release_read" => Intent::OwnRelease(Kind::Read),
        "release_write" => Intent::OwnRelease(Kind::Write),
        "batch" => Intent::OwnBatch,
        "hand_over" => Intent::OwnHandOver,
        "hand_over_fair" => Intent::OwnHandOverFair,
        "force_release"
        | "force_release_holder"
        | "force_release_reader"
        | "force_release_writer" => Intent::OwnForce,
        _ => Intent::Nothing,
    }
}

/// Derives the intent of an unknown script from its keys, the first `keys` words, and its arguments.
pub(super) fn by_shape(words: &ByteStrings, keys: usize) -> Intent {
    let mut args = words.range(keys..words.len());
    let holder = args.clone().find_map(HolderId::parse);
    let second = if keys > 1 { words.get(1) } else { b"" };
    let first_arg = words.get(keys);
    if keys == 0 {
        Intent::Nothing
    } else if words.get(0).starts_with(keys::QUEUE) {
        if keys == 2 && holder.is_some() { Intent::Leave } else { Intent::Nothing }
    } else if second.starts_with(keys::QUEUE) {
        match (keys, holder) {
            (3, Some(_)) => Intent::Acquire(Kind::Fair),
            (4.., Some(_)) => Intent::Unlock(Kind::Fair),
            (4.., None) => Intent::Force(Kind::Fair),
            _ => Intent::Nothing,
        }
    } else if second.starts_with(keys::TOKEN) && holder.is_some() {
        Intent::Acquire(Kind::Fenced)
    } else if second.ends_with(b":rwlock_timeout") && holder.is_some() {
        Intent::Acquire(Kind::Read)
    } else if second.starts_with(keys::READ_WRITE_CHANNEL) {
        match holder {
            Some(holder) if holder.write => Intent::Unlock(Kind::Write),
            Some(_) if keys >= 4 => Intent::Unlock(Kind::Read),
            Some(_) => Intent::Nothing,
            None if first_arg == keys::WRITE_RELEASED => Intent::Force(Kind::Write),
            None => Intent::Force(Kind::Read),
        }
    } else if second.starts_with(keys::LOCK_CHANNEL) {
        match holder {
            Some(_) => Intent::Unlock(Kind::Lock),
            None => Intent::Force(Kind::Lock),
        }
    } else if holder.is_none() {
        Intent::Nothing
    } else if second.starts_with(keys::UNLOCK_LATCH) {
        Intent::Unlock(Kind::Lock)
    } else if keys.is_multiple_of(2)
        && (0..keys).step_by(2).all(|i| is_tagged(words.get(i), words.get(i + 1)))
    {
        Intent::RenewRead
    } else if keys > 1
        && words.len() == 2 * keys + 1
        && is_number(first_arg)
        && args.all(|arg| arg == first_arg || HolderId::parse(arg).is_some())
    {
        Intent::Renew
    } else if keys == 1 && words.len() == 3 && is_number(first_arg) {
        Intent::Unclear
    } else {
        Intent::Nothing
    }
}

/// Returns whether `tagged` is the tagged form of `name`.
fn is_tagged(name: &[u8], tagged: &[u8]) -> bool {
    if name.contains(&b'{') {
        return name == tagged;
    }
    tagged.strip_prefix(b"{").and_then(|rest| rest.strip_suffix(b"}")) == Some(name)
}

fn is_number(word: &[u8]) -> bool {
    !word.is_empty() && word.iter().all(u8::is_ascii_digit)
}
