//! Dashboard.
