//! The agent beside the real Redisson.
