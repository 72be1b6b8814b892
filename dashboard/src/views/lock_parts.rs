//! Parts of a lock's page that its page of the past also shows.

use askama::Template;
use askama::filters::HtmlSafe;

use super::format::{Clock, rfc3339};
use super::owner_name::OwnerName;
use super::page;
use super::picture::{Timeline, ending_words, lasted_words};
use super::prose::Prose;
use super::shell::RawKey;
use super::{LockPage, ReleaseAccess, Subject, links};
use crate::clock::SteadyMillis;
use crate::model::types::{HolderView, LockView, PastHoldView, ProblemKind, State};
use crate::text;

/// The longest part of a name that a title contains, in characters.
const TITLE_NAME: usize = 60;

/// Returns the view of the lock, if it is known.
pub(super) fn known(page: &LockPage) -> Option<&LockView> {
    match &page.subject {
        Subject::Known(lock) => Some(lock),
        Subject::Absent { .. } | Subject::NoLock(_) | Subject::Unreadable(_) => None,
    }
}

/// Returns what a problem means, as a sentence.
pub(super) fn meaning(problem: ProblemKind) -> &'static str {
    match problem {
        ProblemKind::Deadlock => "Its holder waits for a lock that one of its own waiters holds.",
        ProblemKind::Leaked => {
            "It will not expire soon, if ever, and nobody may be left to release it."
        }
        ProblemKind::RenewalOverdue => {
            "Its holder renews it regularly, and has missed a renewal: the lock may be lost soon."
        }
        ProblemKind::Expired => "Its lease expired while its holder still renewed or used it.",
        ProblemKind::Starving => "A waiter has been waiting for it for too long.",
        ProblemKind::Malformed => "Its hash or its name is not valid for a lock.",
        ProblemKind::Orphan => "Keys that belong to it were left behind by clients that are gone.",
        ProblemKind::Stuck => "Its holder keeps renewing it, for longer than is usual or allowed.",
    }
}

/// A lock's name and place, with the links to its bundle and its release.
#[derive(Template)]
#[template(path = "parts/lock_head.html")]
pub(super) struct Head<'a> {
    page: &'a LockPage,
    name: RawKey,
    /// The address of the bundle of everything known about the lock.
    bundle: String,
    /// The address of a forced release, if the visitor may release the lock. The link is shown while there is something
    /// to release.
    release: Option<String>,
    /// The reason why the lock cannot be released here, which is shown while it has a problem.
    why_not: Option<Prose<'static>>,
    /// The command that releases it on the host of an agent.
    by_hand: ByHand,
}

impl HtmlSafe for Head<'_> {}

impl<'a> Head<'a> {
    pub(super) fn new(page: &'a LockPage) -> Self {
        let is_now = page.then.is_none();
        Self {
            page,
            name: RawKey::new("Name", page.id.name.as_bytes()),
            bundle: links::lock_bundle(&page.id, page.then.as_ref().map(|then| then.at)),
            release: (is_now && page.release == ReleaseAccess::Allowed)
                .then(|| links::release(&page.id)),
            why_not: match page.release {
                _ if !is_now => None,
                ReleaseAccess::Allowed => None,
                ReleaseAccess::Off => Some("this dashboard runs without `--allow-release`".into()),
                ReleaseAccess::Forbidden => Some("you do not have the `release` right".into()),
            },
            by_hand: ByHand::new(page),
        }
    }
}

/// The command that releases what the page shows on the host of an agent. It names a holder, so that others, and one that
/// acquires the lock meanwhile, keep it: the only one, or a reader that is gone. Among several living ones, and while none is
/// known, the operator fills it in.
#[derive(Template)]
#[template(path = "parts/lock_by_hand.html")]
pub(super) struct ByHand {
    command: String,
}

impl HtmlSafe for ByHand {}

impl ByHand {
    pub(super) fn new(page: &LockPage) -> Self {
        let named = |holder: &HolderView| text::quoted(holder.id.as_bytes());
        let holder = match known(page).map(|lock| lock.holders.as_slice()) {
            Some([]) => Some("none".to_owned()),
            Some([holder]) => Some(named(holder)),
            Some(holders) => {
                let gone = holders.iter().find(|holder| holder.zombie && !holder.is_foreign());
                gone.map(named)
            }
            None => None,
        };
        let (holder, name) = (holder.as_deref(), text::quoted(page.id.name.as_bytes()));
        let command =
            format!("lockctl unlock --force --holder {} {name}", holder.unwrap_or("HOLDER"));
        Self { command }
    }
}

/// The lock's earlier holders.
#[derive(Template)]
#[template(path = "parts/lock_past.html")]
pub(super) struct PastHolds {
    pub(super) past: Vec<PastRow>,
    pub(super) longest: Option<String>,
}

impl HtmlSafe for PastHolds {}

pub(super) struct PastRow {
    name: OwnerName,
    ended: &'static str,
    from: Clock,
    lasted: Option<String>,
}

impl PastRow {
    pub(super) fn new(page: &LockPage, hold: &PastHoldView) -> Self {
        Self {
            name: OwnerName::remembered(&page.id.deployment, &hold.id, &page.chrome.names),
            ended: ending_words(hold),
            from: Clock::new(hold.since.at, page.chrome.now),
            lasted: lasted_words(hold),
        }
    }
}

impl PastHolds {
    pub(super) fn new(page: &LockPage) -> Self {
        let lock = known(page);
        let past = lock.map(|lock| &*lock.history.past).unwrap_or_default();
        let longest = lock.and_then(|lock| lock.history.longest_hold.as_ref());
        Self {
            past: past.iter().map(|hold| PastRow::new(page, hold)).collect(),
            longest: longest.and_then(|hold| PastRow::new(page, hold).lasted),
        }
    }
}

/// Draws the timeline of a page's window. If a history is kept, the timeline links to its instants.
pub(super) fn timeline(
    page: &LockPage,
    lock: Option<&LockView>,
    now: SteadyMillis,
) -> Option<Timeline> {
    let window = &page.past;
    let at = window.at.map(|at| ("at", rfc3339(at)));
    let choice = |span| {
        let query = [Some(("window", String::from(span))), at.clone()];
        (span, links::lock_with(&page.id, query.into_iter().flatten()))
    };
    let choices = match window.kept {
        true => ["2m", "15m", "1h", "6h", "24h"].map(choice).into(),
        false => Vec::new(),
    };
    let drawn = Timeline::new(lock, window, window.end(now), choices, &page.chrome.names)?;
    let link = |at: SteadyMillis| {
        let chosen = window.chosen.clone().map(|span| ("window", span));
        links::lock_with(&page.id, chosen.into_iter().chain([("at", rfc3339(at))]))
    };
    Some(if window.kept { drawn.with_instants(window.at, link) } else { drawn })
}

/// Returns true if a forced release would have something to end.
pub(super) fn is_releasable(page: &LockPage) -> bool {
    known(page).is_some_and(|lock| lock.is_held() && !lock.is_unknown() || lock.queued)
}

/// Returns the document's title, which begins with a sign for the lock's own state.
pub(super) fn title(page: &LockPage) -> String {
    let mark = match &page.subject {
        Subject::Known(lock) if !lock.problems.is_empty() => "▲ ",
        Subject::Known(lock) if lock.state == State::Held => "● ",
        Subject::Known(_)
        | Subject::Absent { .. }
        | Subject::NoLock(_)
        | Subject::Unreadable(_) => "",
    };
    format!("{mark}{}", plain_title(page))
}

/// Returns the document's title without that sign.
pub(super) fn plain_title(page: &LockPage) -> String {
    let name = text::visible(page.id.name.as_bytes());
    let mut short: String = name.chars().take(TITLE_NAME).collect();
    if short.len() < name.len() {
        short.push('…');
    }
    page::plain_title(&page.chrome, &short)
}
