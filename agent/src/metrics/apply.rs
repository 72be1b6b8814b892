//! Updates the metrics from the core's reports.

use std::time::Duration;

use prometheus::Histogram;

use super::Metrics;
use crate::core::{Gauges, Report};

fn observe_all(histogram: &Histogram, times: &[Duration]) {
    // Adds up without atomics; dropping it adds the sum to the histogram.
    let local = histogram.local();
    times.iter().for_each(|time| local.observe(time.as_secs_f64()));
}

impl Metrics {
    /// Applies one report.
    pub(crate) fn apply(&self, report: &Report) {
        match report {
            Report::GroupSeen { group, groups } => self.groups.seen(group, *groups),
            Report::Acquisition { group, kind, outcome } => {
                self.groups.acquisitions.with_label_values(&[group, kind.as_str(), outcome]).inc();
            }
            Report::Waited { group, outcome, wait } => {
                self.groups
                    .wait_seconds
                    .with_label_values(&[&**group, outcome])
                    .observe(wait.as_secs_f64());
            }
            Report::WaitBegan { group, kind, number, since } => {
                self.groups.wait_began(group, *kind, (*since, *number));
            }
            Report::WaitEnded { group, kind, number, since } => {
                self.groups.wait_ended(group, *kind, (*since, *number));
            }
            Report::HoldBegan { group, kind, number, granted } => {
                self.groups.hold_began(group, *kind, (*granted, *number));
            }
            Report::HoldEnded { group, kind, number, granted, end, held } => {
                self.groups.hold_ended(group, *kind, (*granted, *number), *end, *held);
            }
            Report::Lost { group, end } => self.lost(group, *end),
            Report::LeaseOverrun { group } => {
                self.groups.lease_overruns.with_label_values(&[group]).inc();
            }
            Report::HandOver { group } => self.groups.handovers.with_label_values(&[group]).inc(),
            Report::Renewals { group, outcome, count } => {
                self.groups.renewals.with_label_values(&[&**group, outcome]).inc_by(*count);
            }
            Report::RenewalRoundTrip(took) => self.renewal_seconds.observe(took.as_secs_f64()),
            Report::RenewalLateness(late) => observe_all(&self.renewal_lateness, late),
            Report::RenewalMargins(left) => observe_all(&self.renewal_margin, left),
            Report::OutcomeKnown(outcome) => {
                self.unknown_outcomes.with_label_values(&[outcome]).inc();
            }
            Report::Yielded => self.yields.inc(),
            Report::Command { word, failed, took } => self.commands.answered(word, *failed, *took),
            Report::SessionOpened => self.sessions_opened.inc(),
            Report::Resume(outcome) => self.sessions_resumed.with_label_values(&[outcome]).inc(),
            Report::EventDropped => self.events_dropped.inc(),
            Report::PolicyDenial(reason) => self.policy_denials.with_label_values(&[reason]).inc(),
            Report::JournalError => self.journal_errors.inc(),
            Report::Slept => self.sleeps.inc(),
            Report::NodeVote { node, outcome } => {
                self.servers.red_votes.with_label_values(&[node.as_str(), outcome]).inc();
            }
            Report::Confirmation(outcome) => self.confirmations.with_label_values(&[outcome]).inc(),
        }
    }

    /// Sets the gauges to the sizes of the core's tables.
    pub(crate) fn show(&self, gauges: Gauges) {
        let Gauges {
            jeopardy_holds,
            delayed_holds,
            subscriptions,
            sessions,
            away_sessions,
            frozen_sessions,
        } = gauges;
        let pairs = [
            (&self.jeopardy_holds, jeopardy_holds),
            (&self.delayed_holds, delayed_holds),
            (&self.subscriptions, subscriptions),
            (&self.sessions, sessions),
            (&self.away_sessions, away_sessions),
            (&self.frozen_sessions, frozen_sessions),
        ];
        for (gauge, size) in pairs {
            gauge.set(i64::try_from(size).unwrap_or(i64::MAX));
        }
    }
}
