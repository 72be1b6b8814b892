#![doc = include_str!("../README.md")]

mod agent;
mod clock;
mod connection;
mod detached;
mod error;
mod grant;
mod hold;
mod lock;
mod resp;
mod resume;
mod session;
mod timer;

pub use agent::{Agent, AgentBuilder, Owner};
pub use error::{Error, Lost, Result};
pub use hold::{Hold, Holds};
pub use lock::{Kind, LockRequest, Locking};
