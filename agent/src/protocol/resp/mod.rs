//! RESP, the Redis protocol, as far as a server of few commands needs it: requests in, replies out.

mod decode;
mod encode;
mod frame;

pub use decode::{Args, Decoder, MAX_ARGS, MAX_BULK, MAX_INLINE, MAX_REQUEST, Malformed, Request};
pub use encode::{encode, encode_push};
pub use frame::{Frame, Outgoing, Protocol};
