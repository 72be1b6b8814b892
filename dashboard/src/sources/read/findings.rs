//! The results of reading keys.

use redisson::LockName;
use service_kit::redis::Redirect;

use super::reply::UNPERMITTED_KEY;
use super::server_facts::ServerFacts;
use crate::model::types::{Observation, ReadRequest, Reading, Source, Stamp};

/// A key that was read.
#[derive(Debug, Clone)]
pub struct Found {
    pub name: LockName,
    pub stamp: Stamp,
    pub reading: Reading,
}

impl Found {
    /// Returns whether the Redis user may not read this key, although it may read others.
    #[must_use]
    pub fn is_unpermitted(&self) -> bool {
        matches!(&self.reading, Reading::Other(what) if what == UNPERMITTED_KEY)
    }

    /// Returns the observation that a source reports.
    #[must_use]
    pub fn observed_by(self, source: Source) -> Observation {
        let Self { name, stamp, reading } = self;
        Observation::Read { name, stamp, source, reading }
    }
}

/// The results of reading keys.
#[derive(Debug, Default)]
pub struct Findings {
    pub found: Vec<Found>,
    /// The keys that another node serves. While a slot moves to it, only that node knows whether its keys exist.
    pub redirected: Vec<(ReadRequest, Redirect)>,
}

impl Findings {
    /// Adds a key that is on another node of the cluster.
    pub(super) fn redirect(
        &mut self,
        facts: &ServerFacts,
        request: ReadRequest,
        redirect: Redirect,
    ) {
        facts.record_redirect();
        self.redirected.push((request, redirect));
    }
}
