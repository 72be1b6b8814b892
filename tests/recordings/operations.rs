//! The recorded operations.

/// An operation and the steps that produce it.
pub(crate) struct Operation {
    /// The file name.
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    /// The options of both clients.
    pub(crate) settings: &'static str,
    /// The steps in order: `client/thread call`; `~client/thread call` to start a call that waits; `answer client/thread`
    /// to wait for it; `redis command` to interfere by hand; `until text` to wait for a line that contains the text.
    pub(crate) steps: &'static [&'static str],
}

const fn op(name: &'static str, what: &'static str, steps: &'static [&'static str]) -> Operation {
    Operation { name, what, settings: "", steps }
}

/// An operation with a watchdog that renews every 700 ms.
const fn watched(
    name: &'static str,
    what: &'static str,
    steps: &'static [&'static str],
) -> Operation {
    Operation { name, what, settings: "watchdog=2100", steps }
}

pub(crate) const OPERATIONS: &[Operation] = &[
    op(
        "connect",
        "Two clients connect; one acquires and releases a lock.",
        &[
            "a/0 open URL",
            "b/0 open URL",
            "a/1 getLock orders:42 . lock",
            "a/1 getLock orders:42 . unlock",
        ],
    ),
    op(
        "lock",
        "A free lock is taken and released.",
        &["a/1 getLock orders:42 . lock", "a/1 getLock orders:42 . unlock"],
    ),
    op(
        "script-flush",
        "Redis has forgotten the scripts.",
        &["redis SCRIPT FLUSH", "a/1 getLock orders:42 . lock", "a/1 getLock orders:42 . unlock"],
    ),
    op(
        "lock-lease",
        "A lock with a lease of its own, which no watchdog renews.",
        &["a/1 getLock orders:42 . lock 60000 ms", "a/1 getLock orders:42 . unlock"],
    ),
    op(
        "try-lock",
        "tryLock on a free lock, and one that is refused.",
        &[
            "a/1 getLock orders:42 . tryLock",
            "b/1 getLock orders:42 . tryLock",
            "a/2 getLock orders:42 . tryLock",
            "a/1 getLock orders:42 . unlock",
        ],
    ),
    op(
        "reentry",
        "A lock is taken three times and released step by step.",
        &[
            "a/1 getLock orders:42 . lock",
            "a/1 getLock orders:42 . lock",
            "a/1 getLock orders:42 . tryLock",
            "a/1 getLock orders:42 . unlock",
            "a/1 getLock orders:42 . unlock",
            "a/1 getLock orders:42 . unlock",
        ],
    ),
    op(
        "wait",
        "A waiter subscribes, is woken by the release, and has the lock.",
        &[
            "a/1 getLock orders:42 . lock",
            "~b/1 getLock orders:42 . lock",
            "a/1 getLock orders:42 . unlock",
            "answer b/1",
            "b/1 getLock orders:42 . unlock",
        ],
    ),
    op(
        "wait-timeout",
        "A waiter whose time runs out.",
        &[
            "a/1 getLock orders:42 . lock",
            "~b/1 getLock orders:42 . tryLock 300 ms",
            "answer b/1",
            "a/1 getLock orders:42 . unlock",
        ],
    ),
    op(
        "wait-expiry",
        "A waiter has the lock when the holder's lease ends.",
        &[
            "a/1 getLock orders:42 . lock 1000 ms",
            "~b/1 getLock orders:42 . lock",
            "answer b/1",
            "b/1 getLock orders:42 . unlock",
        ],
    ),
    watched(
        "renew",
        "The watchdog renews a hold twice.",
        &[
            "a/1 getLock orders:42 . lock",
            "until \"pexpire\" \"orders:42\" \"2100\"",
            "until \"pexpire\" \"orders:42\" \"2100\"",
            "a/1 getLock orders:42 . unlock",
        ],
    ),
    watched(
        "renew-many",
        "The watchdog renews three holds, one of them taken twice.",
        &[
            "a/1 getLock orders:42 . lock",
            "a/1 getLock orders:42 . lock",
            "a/1 getLock orders:43 . lock",
            "a/2 getLock orders:44 . lock",
            "until \"pexpire\" \"orders:44\" \"2100\"",
            "a/1 getLock orders:42 . unlock",
            "until \"pexpire\" \"orders:44\" \"2100\"",
            "a/1 getLock orders:42 . unlock",
            "a/1 getLock orders:43 . unlock",
            "a/2 getLock orders:44 . unlock",
        ],
    ),
    watched(
        "renew-lost",
        "The watchdog finds that a hold has gone, then that another has it; the old holder unlocks.",
        &[
            "a/1 getLock orders:42 . lock",
            "a/1 getLock orders:43 . lock",
            "b/1 getLock orders:43 . forceUnlock",
            "b/1 getLock orders:43 . lock 60000 ms",
            "redis DEL orders:42",
            "until [0 lua] \"hexists\" \"orders:42\"",
            "a/1 getLock orders:42 . unlock",
            "a/1 getLock orders:43 . unlock",
            "b/1 getLock orders:43 . unlock",
        ],
    ),
    op(
        "unlock-stranger",
        "Unlock by one who does not hold it, of a held and of a free lock.",
        &[
            "a/1 getLock orders:42 . lock",
            "b/1 getLock orders:42 . unlock",
            "a/2 getLock orders:42 . unlock",
            "a/1 getLock orders:42 . unlock",
            "a/1 getLock orders:42 . unlock",
        ],
    ),
    op(
        "force-unlock",
        "forceUnlock of a held lock with a waiter, and of a free one.",
        &[
            "a/1 getLock orders:42 . lock",
            "~b/1 getLock orders:42 . lock",
            "b/2 getLock orders:42 . forceUnlock",
            "answer b/1",
            "b/1 getLock orders:42 . unlock",
            "b/2 getLock orders:42 . forceUnlock",
        ],
    ),
    op(
        "look",
        "What an application may ask about a lock.",
        &[
            "a/1 getLock orders:42 . lock",
            "a/1 getLock orders:42 . isLocked",
            "a/1 getLock orders:42 . isHeldByCurrentThread",
            "b/1 getLock orders:42 . isHeldByThread 1",
            "a/1 getLock orders:42 . getHoldCount",
            "b/1 getLock orders:42 . remainTimeToLive",
            "a/1 getLock orders:42 . unlock",
            "b/1 getLock orders:42 . isLocked",
        ],
    ),
    op(
        "names",
        "Names with braces, quotes, line ends and letters beyond ASCII.",
        &[
            "a/1 getLock a{b}c . lock",
            "a/1 getLock a{b}c . unlock",
            "a/1 getLock \"quoted\\ . lock",
            "a/1 getLock \"quoted\\ . unlock",
            "a/1 getLock schlüssel\u{1F512} . lock",
            "a/1 getLock schlüssel\u{1F512} . unlock",
        ],
    ),
    Operation {
        name: "name-mapper",
        what: "A client whose names all get a prefix.",
        settings: "prefix=shop:",
        steps: &[
            "a/1 getLock orders:42 . lock",
            "a/1 getLock orders:42 . unlock",
            "a/1 getFairLock orders:43 . lock",
            "a/1 getFairLock orders:43 . unlock",
        ],
    },
    op(
        "async",
        "Holds of the asynchronous calls, whose thread ids the caller chooses.",
        &[
            "a/1 getLock orders:42 . lockAsync -7",
            "a/1 getLock orders:42 . isHeldByThread -7",
            "a/1 getLock orders:42 . unlockAsync -7",
        ],
    ),
    op(
        "fair",
        "A fair lock is taken, twice, and released.",
        &[
            "a/1 getFairLock orders:42 . lock",
            "a/1 getFairLock orders:42 . lock",
            "a/1 getFairLock orders:42 . unlock",
            "a/1 getFairLock orders:42 . unlock",
        ],
    ),
    op(
        "fair-queue",
        "Two queue for a fair lock and have it in turn.",
        &[
            "a/1 getFairLock orders:42 . lock",
            "~b/1 getFairLock orders:42 . lock",
            "~a/2 getFairLock orders:42 . lock",
            "a/1 getFairLock orders:42 . unlock",
            "answer b/1",
            "b/1 getFairLock orders:42 . unlock",
            "answer a/2",
            "a/2 getFairLock orders:42 . unlock",
        ],
    ),
    op(
        "fair-leave",
        "One leaves the queue when its time runs out, another stays.",
        &[
            "a/1 getFairLock orders:42 . lock",
            "~b/1 getFairLock orders:42 . tryLock 700 60000 ms",
            "~a/2 getFairLock orders:42 . lock",
            "answer b/1",
            "a/1 getFairLock orders:42 . unlock",
            "answer a/2",
            "a/2 getFairLock orders:42 . unlock",
        ],
    ),
    op(
        "fair-try-lock",
        "tryLock without waiting, on a free, a held, and a queued fair lock.",
        &[
            "a/1 getFairLock orders:42 . tryLock",
            "b/1 getFairLock orders:42 . tryLock",
            "~b/2 getFairLock orders:42 . lock",
            "b/1 getFairLock orders:42 . tryLock",
            "a/1 getFairLock orders:42 . unlock",
            "answer b/2",
            "b/2 getFairLock orders:42 . unlock",
        ],
    ),
    op(
        "fair-force-unlock",
        "forceUnlock of a fair lock with a waiter.",
        &[
            "a/1 getFairLock orders:42 . lock",
            "~b/1 getFairLock orders:42 . lock",
            "b/2 getFairLock orders:42 . forceUnlock",
            "answer b/1",
            "b/1 getFairLock orders:42 . unlock",
        ],
    ),
    op(
        "fair-unlock-stranger",
        "Unlock of a fair lock by one who does not hold it.",
        &[
            "a/1 getFairLock orders:42 . lock",
            "b/1 getFairLock orders:42 . unlock",
            "a/1 getFairLock orders:42 . unlock",
            "b/1 getFairLock orders:42 . unlock",
        ],
    ),
    watched(
        "fair-renew",
        "The watchdog renews a fair lock.",
        &[
            "a/1 getFairLock orders:42 . lock",
            "until \"pexpire\" \"orders:42\" \"2100\"",
            "a/1 getFairLock orders:42 . unlock",
        ],
    ),
    op(
        "read",
        "Two readers, one of them twice, and their releases.",
        &[
            "a/1 getReadWriteLock stock . readLock . lock",
            "b/1 getReadWriteLock stock . readLock . lock",
            "a/1 getReadWriteLock stock . readLock . lock",
            "a/1 getReadWriteLock stock . readLock . isLocked",
            "a/1 getReadWriteLock stock . writeLock . isLocked",
            "a/1 getReadWriteLock stock . readLock . unlock",
            "b/1 getReadWriteLock stock . readLock . unlock",
            "a/1 getReadWriteLock stock . readLock . unlock",
        ],
    ),
    op(
        "write",
        "A writer, twice, while others are refused; then a reader who waited.",
        &[
            "a/1 getReadWriteLock stock . writeLock . lock",
            "a/1 getReadWriteLock stock . writeLock . lock",
            "b/1 getReadWriteLock stock . writeLock . tryLock",
            "b/1 getReadWriteLock stock . readLock . tryLock",
            "~b/2 getReadWriteLock stock . readLock . lock",
            "a/1 getReadWriteLock stock . writeLock . unlock",
            "a/1 getReadWriteLock stock . writeLock . unlock",
            "answer b/2",
            "a/1 getReadWriteLock stock . writeLock . tryLock",
            "b/2 getReadWriteLock stock . readLock . unlock",
        ],
    ),
    op(
        "downgrade",
        "A writer reads, gives up writing, then reading.",
        &[
            "a/1 getReadWriteLock stock . writeLock . lock",
            "a/1 getReadWriteLock stock . readLock . lock",
            "a/1 getReadWriteLock stock . writeLock . unlock",
            "b/1 getReadWriteLock stock . readLock . tryLock",
            "a/1 getReadWriteLock stock . readLock . unlock",
            "b/1 getReadWriteLock stock . readLock . unlock",
        ],
    ),
    watched(
        "read-renew",
        "The watchdog renews two readers of one client and one of another.",
        &[
            "a/1 getReadWriteLock stock . readLock . lock",
            "a/2 getReadWriteLock stock . readLock . lock",
            "b/1 getReadWriteLock stock . readLock . lock",
            "until \"pexpire\" \"stock\" \"2100\"",
            "until \"pexpire\" \"stock\" \"2100\"",
            "a/1 getReadWriteLock stock . readLock . unlock",
            "a/2 getReadWriteLock stock . readLock . unlock",
            "b/1 getReadWriteLock stock . readLock . unlock",
        ],
    ),
    watched(
        "write-renew",
        "The watchdog renews a writer.",
        &[
            "a/1 getReadWriteLock stock . writeLock . lock",
            "until \"pexpire\" \"stock\" \"2100\"",
            "a/1 getReadWriteLock stock . writeLock . unlock",
        ],
    ),
    op(
        "read-write-force-unlock",
        "forceUnlock of readers, then of a writer.",
        &[
            "a/1 getReadWriteLock stock . readLock . lock",
            "b/1 getReadWriteLock stock . writeLock . forceUnlock",
            "b/1 getReadWriteLock stock . readLock . forceUnlock",
            "a/1 getReadWriteLock stock . writeLock . lock",
            "b/1 getReadWriteLock stock . readLock . forceUnlock",
            "b/1 getReadWriteLock stock . writeLock . forceUnlock",
        ],
    ),
    op(
        "read-write-unlock-stranger",
        "Unlock by those who hold nothing.",
        &[
            "a/1 getReadWriteLock stock . readLock . unlock",
            "a/1 getReadWriteLock stock . writeLock . unlock",
            "a/1 getReadWriteLock stock . writeLock . lock",
            "b/1 getReadWriteLock stock . readLock . unlock",
            "b/1 getReadWriteLock stock . writeLock . unlock",
            "a/1 getReadWriteLock stock . writeLock . unlock",
        ],
    ),
    op(
        "fenced",
        "A fenced lock, by calls that give the token and calls that do not.",
        &[
            "a/1 getFencedLock ledger . lockAndGetToken",
            "a/1 getFencedLock ledger . getToken",
            "b/1 getFencedLock ledger . tryLockAndGetToken 300 60000 ms",
            "b/1 getFencedLock ledger . tryLock",
            "a/1 getFencedLock ledger . lock",
            "a/1 getFencedLock ledger . unlock",
            "a/1 getFencedLock ledger . unlock",
            "b/1 getFencedLock ledger . tryLock",
            "a/1 getFencedLock ledger . forceUnlock",
        ],
    ),
    watched(
        "fenced-renew",
        "The watchdog renews a fenced lock.",
        &[
            "a/1 getFencedLock ledger . lockAndGetToken",
            "until \"pexpire\" \"ledger\" \"2100\"",
            "a/1 getFencedLock ledger . unlock",
        ],
    ),
    op(
        "multi",
        "Two locks as one, refused to another who then gets none of them.",
        &[
            "a/1 multi left right . lock",
            "b/1 multi other right . tryLock",
            "b/1 multi other right . tryLock 300 60000 ms",
            "a/1 multi left right . unlock",
            "a/1 multi left right . tryLock 5000 60000 ms",
            "a/1 multi left right . unlock",
        ],
    ),
    op(
        "red",
        "RedissonRedLock over three names, one of which another holds.",
        &[
            "b/1 getLock third . lock",
            "a/1 red first second third . tryLock 5000 60000 ms",
            "a/1 red first second third . unlock",
            "b/2 getLock second . lock",
            "a/1 red first second third . tryLock",
            "b/1 getLock third . unlock",
            "b/2 getLock second . unlock",
        ],
    ),
    op(
        "spin",
        "A spin lock, which waits without a subscription.",
        &[
            "a/1 getSpinLock orders:42 . lock",
            "b/1 getSpinLock orders:42 . tryLock",
            "~b/2 getSpinLock orders:42 . lock",
            "a/1 getSpinLock orders:42 . unlock",
            "answer b/2",
            "a/1 getSpinLock orders:42 . forceUnlock",
        ],
    ),
    op(
        "non-reentrant",
        "Locks that their own holder cannot take again, plain and fair.",
        &[
            "a/1 getNonReentrantLock orders:42 . lock",
            "a/1 getNonReentrantLock orders:42 . tryLock",
            "b/1 getNonReentrantLock orders:42 . tryLock",
            "a/1 getNonReentrantLock orders:42 . unlock",
            "a/1 getNonReentrantFairLock orders:43 . lock",
            "a/1 getNonReentrantFairLock orders:43 . tryLock",
            "a/1 getNonReentrantFairLock orders:43 . unlock",
        ],
    ),
    watched(
        "group-multi",
        "The multi-lock that keeps a whole group in one hash.",
        &[
            "a/1 getMultiLock group left,right . lock",
            "b/1 getMultiLock group other,right . tryLock",
            "until \"hset\" \"group\"",
            "a/1 getMultiLock group left,right . unlock",
        ],
    ),
    op(
        "semaphore",
        "A semaphore; no lock.",
        &[
            "a/1 getSemaphore seats . trySetPermits 2",
            "a/1 getSemaphore seats . acquire",
            "b/1 getSemaphore seats . tryAcquire",
            "b/1 getSemaphore seats . tryAcquire",
            "~b/1 getSemaphore seats . acquire",
            "a/1 getSemaphore seats . release",
            "answer b/1",
            "a/1 getSemaphore seats . availablePermits",
            "a/1 getSemaphore seats . drainPermits",
        ],
    ),
    op(
        "permit-semaphore",
        "A semaphore whose permits expire; no lock.",
        &[
            "a/1 getPermitExpirableSemaphore desks . trySetPermits 1",
            "a/1 getPermitExpirableSemaphore desks . acquire 60000 ms",
            "b/1 getPermitExpirableSemaphore desks . tryAcquire",
            "b/1 getPermitExpirableSemaphore desks . availablePermits",
            "b/1 getPermitExpirableSemaphore desks . tryAcquire 300 60000 ms",
        ],
    ),
    op(
        "latch",
        "A count-down latch; no lock.",
        &[
            "a/1 getCountDownLatch start . trySetCount 2",
            "~b/1 getCountDownLatch start . await",
            "a/1 getCountDownLatch start . countDown",
            "a/1 getCountDownLatch start . getCount",
            "a/1 getCountDownLatch start . countDown",
            "answer b/1",
        ],
    ),
    op(
        "rate-limiter",
        "A rate limiter, which is a hash too; no lock.",
        &[
            "a/1 getRateLimiter calls . trySetRate OVERALL 1 60000 MILLISECONDS",
            "a/1 getRateLimiter calls . tryAcquire",
            "b/1 getRateLimiter calls . tryAcquire",
        ],
    ),
    op(
        "map-and-friends",
        "Hashes and strings that are no locks.",
        &[
            "a/1 getMap things . put key value",
            "a/1 getMap things . get key",
            "a/1 getMapCache cache . put key value",
            "a/1 getBucket setting . set on",
            "a/1 getAtomicLong visits . incrementAndGet",
            "a/1 getTopic news . publish hello",
        ],
    ),
    op(
        "map-lock",
        "The lock of one entry of a map.",
        &["a/1 getMap things . getLock key . lock", "a/1 getMap things . getLock key . unlock"],
    ),
];
