//! X.
fn main() {}
