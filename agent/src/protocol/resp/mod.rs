//! RESP, the Redis serialization protocol: decoding requests and encoding replies.

mod decode;
mod encode;
mod frame;

pub use decode::{Args, Decoder, MAX_ARGS, MAX_BULK, MAX_INLINE, MAX_REQUEST, Malformed, Request};
pub use encode::{encode, encode_push};
pub use frame::{Frame, Outgoing, Protocol};
