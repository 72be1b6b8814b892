//! The lists of locks, incidents, owners, problems and contention. All of them share one filter language, one order and
//! one pager.

mod answer;
pub mod blockers;
pub mod contention;
pub mod event_filter;
pub mod facets;
pub mod filter;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod incidents;
pub mod list;
pub mod locks;
pub mod order;
pub mod owners;
mod pass;
mod pick;
pub mod problems;
mod recent_results;
pub mod shared_pages;
pub mod threads;
mod words;

pub use event_filter::EventFilter;
pub use filter::Filter;
pub use list::{Listed, MAX_ROWS, Published, Query, Rows};
pub use locks::LockRow;
pub use order::Order;
pub use shared_pages::Paged;
pub use threads::Threads;
pub use words::{FilterError, quoted, with_term};
