//! Dashboard.
fn main() {}
