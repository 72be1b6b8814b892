//! Plumbing.
