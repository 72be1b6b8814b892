#![doc = include_str!("../README.md")]

mod agent;
mod clock;
mod connection;
mod deadlines;
mod detached;
mod error;
mod grant;
mod hold;
mod lock;
mod owner;
mod request;
mod resp;
mod resume;
mod session;
mod timer;

pub use agent::{Agent, AgentBuilder};
pub use error::{Error, Lost, Result};
pub use hold::{Hold, Holds};
pub use lock::{LockRequest, Locking};
pub use owner::Owner;
pub use request::Kind;
