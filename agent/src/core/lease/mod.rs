//! Holds of local owners: how long each is valid, its renewal, its loss.

pub(in crate::core) mod frozen;
pub(in crate::core) mod hold;
pub(in crate::core) mod lock_delay;
pub(in crate::core) mod update;
pub(in crate::core) mod watchdog;
