//! The trace of a lock, for its page and the API: each step in words, with the line that MONITOR printed.

use std::collections::HashSet;
use std::net::IpAddr;

use askama::Template;
use askama::filters::HtmlSafe;
use redisson::monitor::{Action, Address, Event};

use super::format::{self, Clock};
use super::fragments::LiveRow;
use super::owner_name::OwnerName;
use super::prose::Prose;
use super::{LockPage, links};
use crate::clock::{SteadyMillis, millis};
use crate::model::owner_names::OwnerNames;
use crate::sources::trace::{Step, Trace};
use crate::sources::view::{SourceState, SourceView};
use crate::text::revealed;

/// The maximum number of steps shown on the page.
const SHOWN: usize = 100;

/// Returns an action as a short label.
#[must_use]
pub fn label(action: &Action) -> &'static str {
    match action {
        Action::Acquired { .. } => "acquire",
        Action::Reentered { .. } => "acquire again",
        Action::Recounted { .. } => "set count",
        Action::Refused => "refused",
        Action::Renewed { .. } => "renew",
        Action::RenewalFoundNothing => "renewal failed",
        Action::PartlyReleased => "release once",
        Action::Released => "release",
        Action::ReleaseFoundNothing => "release failed",
        Action::HandedOver { .. } => "hand over",
        Action::ForceReleased => "forced release",
        Action::Removed => "removed by hand",
        Action::Vanished => "expired",
        Action::Queued { .. } => "queue",
        Action::LeftQueue => "leave queue",
        Action::DroppedFromQueue => "dropped",
        Action::Subscribed => "subscribe",
        Action::Unsubscribed => "unsubscribe",
        Action::Failed => "failed",
    }
}

/// Returns a sentence about what the action means for the lock.
#[must_use]
pub fn sentence(action: &Action, names: &OwnerNames) -> String {
    let until = |lease: &Option<std::time::Duration>| match lease {
        Some(lease) => format!(" for {}", format::round_duration(millis(*lease))),
        None => String::new(),
    };
    match action {
        Action::Acquired { lease } => {
            format!("The lock was free: the holder has it{}.", until(lease))
        }
        Action::Reentered { lease, count } => {
            let count = count.map(|count| format!(", hold count {count}")).unwrap_or_default();
            format!("Its holder entered it again{}{count}.", until(lease))
        }
        Action::Recounted { count } => format!("Its hold count is now {count}."),
        Action::Refused => "Another holder has it: the script returned the remaining lease.".into(),
        Action::Renewed { lease } => format!("The watchdog renewed the lease{}.", until(lease)),
        Action::RenewalFoundNothing => {
            "The watchdog found another holder or none: this hold is lost.".into()
        }
        Action::PartlyReleased => "The holder left once, and still has it.".into(),
        Action::Released => {
            "The holder is out. If no other is left, the key is deleted and a message on its channel wakes waiters."
                .into()
        }
        Action::ReleaseFoundNothing => {
            "The release found another holder or none: the lock was lost before.".into()
        }
        Action::HandedOver { to, lease } => {
            let to = super::owner_name::with_names(&to.to_string(), names);
            format!("The agent passed it to {to}{} in one script.", until(lease))
        }
        Action::ForceReleased => "An operator or a client released it by force.".into(),
        Action::Removed => {
            "A client removed the key, or the holder's field. That ended the hold, if there was one.".into()
        }
        Action::Vanished => "The key is gone: the lease ran out.".into(),
        Action::Queued { .. } => "The waiter joined the end of the fair queue.".into(),
        Action::LeftQueue => "The waiter gave up and left the fair queue.".into(),
        Action::DroppedFromQueue => {
            "Its deadline had passed: another client removed it from the fair queue.".into()
        }
        Action::Subscribed => "The client subscribed to the lock's channel: one of its threads waits.".into(),
        Action::Unsubscribed => "The client unsubscribed: none of its threads waits any more.".into(),
        Action::Failed => "The script ended with an error.".into(),
    }
}

/// Returns the time since the previous step, to the microsecond if it is below a millisecond, since scripts follow
/// closely.
fn gap(micros: u64) -> String {
    match micros {
        0..1_000 => format!("+{micros}µs"),
        1_000..10_000_000 => format!("+{}.{:03}s", micros / 1_000_000, micros % 1_000_000 / 1_000),
        _ => format!("+{}", format::duration(micros / 1_000)),
    }
}

/// Returns the lines of a step in a form safe to show: invisible characters are escaped.
#[must_use]
pub fn raw_lines(raw: &[u8]) -> Vec<String> {
    let lines = raw.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| revealed(&String::from_utf8_lossy(line))).collect()
}

/// The clients behind the addresses of a trace, as far as they are known.
#[derive(Debug)]
pub struct Senders {
    pairs: Vec<(IpAddr, String)>,
}

impl Senders {
    #[must_use]
    pub fn new(trace: &Trace) -> Self {
        let mut pairs = HashSet::new();
        for event in trace.steps.iter().map(|step| &step.event) {
            if let (Some(Address::Tcp(address)), Some(client)) =
                (event.client, event.holder.map(|holder| holder.client))
            {
                pairs.insert((address.ip(), client.to_string()));
            }
        }
        Self { pairs: pairs.into_iter().collect() }
    }

    /// Returns the holder or waiter of an event, or otherwise the only client of the trace with its address.
    #[must_use]
    pub fn owner(&self, event: &Event) -> Option<String> {
        if let Some(holder) = event.holder {
            return Some(holder.to_string());
        }
        let Some(Address::Tcp(address)) = event.client else { return None };
        let mut same = self.pairs.iter().filter(|(ip, _)| *ip == address.ip());
        let (_, client) = same.next()?;
        same.next().is_none().then(|| client.clone())
    }
}

/// Returns the address that sent the event.
#[must_use]
pub fn address(event: &Event) -> Option<String> {
    match event.client? {
        Address::Tcp(address) => Some(address.to_string()),
        Address::Unix => Some("Unix socket".to_owned()),
    }
}

/// A step as a row.
#[derive(Debug, Template)]
#[template(path = "parts/trace_step.html")]
pub(super) struct StepRow {
    id: String,
    what: &'static str,
    label: &'static str,
    certain: bool,
    sentence: String,
    at: SteadyMillis,
    wall: u64,
    gap: Option<String>,
    who: Option<OwnerName>,
    address: Option<String>,
    lines: Vec<String>,
}

impl HtmlSafe for StepRow {}

impl StepRow {
    fn new(page: &LockPage, step: &Step, senders: &Senders) -> Self {
        let (event, names) = (&step.event, &page.chrome.names);
        let owner = senders.owner(event);
        Self {
            id: format!("step-{}", step.seq),
            what: event.action.as_str(),
            label: label(&event.action),
            certain: step.is_certain(),
            sentence: sentence(&event.action, names),
            at: step.at(),
            wall: step.at().to_wall().0,
            gap: step.gap_micros.map(gap),
            who: owner.map(|id| OwnerName::remembered(&page.id.deployment, &id, names)),
            address: address(event),
            lines: raw_lines(&step.raw),
        }
    }

    fn time(&self) -> String {
        format::rfc3339(self.at).get(11..23).unwrap_or_default().to_owned()
    }
}

/// The part of the page above the steps: whether steps are being recorded, and until when.
#[derive(Debug, Template)]
#[template(path = "parts/trace_state.html")]
pub(super) struct TraceState<'a> {
    trace: Option<TraceFacts>,
    /// The reason why no steps are recorded, and the step that changes that.
    closed: Option<(Prose<'a>, Option<Prose<'static>>)>,
}

impl HtmlSafe for TraceState<'_> {}

#[derive(Debug)]
struct TraceFacts {
    running: bool,
    until: Clock,
    steps: String,
    hidden: Option<String>,
}

impl<'a> TraceState<'a> {
    /// Creates the state at the instant `until`, even if the script counts the ages.
    pub(super) fn new(page: &'a LockPage, until: SteadyMillis) -> Self {
        let facts = page.trace.as_ref().map(|trace| {
            let hidden = trace.dropped + trace.steps.len().saturating_sub(SHOWN) as u64;
            TraceFacts {
                running: trace.is_running(until),
                until: Clock::new(trace.until, page.chrome.now),
                steps: format::count(trace.dropped + trace.steps.len() as u64),
                hidden: (hidden > 0).then(|| format::count(hidden)),
            }
        });
        let running = facts.as_ref().is_some_and(|facts| facts.running);
        let closed = monitors(page)
            .find(|source| !matches!(source.state, SourceState::On | SourceState::Behind))
            .filter(|_| running)
            .map(|source| (source.detail.as_str().into(), source.remedy.map(Prose::from)));
        Self { trace: facts, closed }
    }
}

/// Returns the MONITOR readers of the servers that have the lock.
fn monitors(page: &LockPage) -> impl Iterator<Item = &SourceView> {
    let node = page.home.as_ref().and_then(|(_, node)| node.as_ref()).map(ToString::to_string);
    page.chrome.sources.iter().filter(move |source| {
        source.source == "monitor"
            && *source.deployment == *page.id.deployment
            && node.as_ref().is_none_or(|node| *node == source.node)
    })
}

/// Returns the address of the form that starts a trace, if the visitor may start one.
pub(super) fn action(page: &LockPage) -> Option<String> {
    let off = monitors(page).any(|source| source.state == SourceState::Off);
    (page.may_watch && !off).then(|| links::trace(&page.id))
}

/// Returns the latest steps, oldest first.
pub(super) fn steps(page: &LockPage) -> Vec<StepRow> {
    let Some(trace) = &page.trace else { return Vec::new() };
    let senders = Senders::new(trace);
    let hidden = trace.steps.len().saturating_sub(SHOWN);
    trace.steps.iter().skip(hidden).map(|step| StepRow::new(page, step, &senders)).collect()
}

/// Returns the latest steps as rows that a stream updates.
pub(super) fn rows(page: &LockPage) -> Result<Vec<LiveRow>, askama::Error> {
    let row =
        |step: StepRow| Ok(LiveRow { html: step.render()?.into(), id: step.id.into(), ttl: None });
    steps(page).into_iter().map(row).collect()
}
