//! `/lock`: one lock, with everything that is known of it.

use askama::Template;
use askama::filters::HtmlSafe;

use super::format::{self, Ago, Clock, Prose};

use super::format::AGELESS;
use super::page::{self, Frame, STALE_MS};
use super::picture::{Circle, Durations, Timeline, ending_words, lasted};
use super::row::{Badge, Ttl, client_words, held_since, owner_link};
use super::shell::{self, Command, RawKey};
use super::{Chrome, LockPage, Subject, links};
use crate::clock::SteadyMillis;
use crate::model::types::{
    Acknowledgement, Certainty, EventView, Evidence, HolderView, LockView, PastHoldView,
    ProblemKind, ProblemView, QueueEntryView, State, WaiterView,
};
use crate::text;

/// The longest part of a name that a title holds, characters.
const TITLE_NAME: usize = 60;

/// The most events shown.
const EVENTS: usize = 200;

/// The lock's facts at a glance.
#[derive(Template)]
#[template(path = "parts/lock_state.html")]
struct Summary<'a> {
    subject: &'a Subject,
    now: SteadyMillis,
    held: Option<Ago>,
    ttl: Option<Ttl>,
    read: Option<Ago>,
    stale: bool,
    lease: Option<String>,
    sources: String,
}

impl HtmlSafe for Summary<'_> {}

impl<'a> Summary<'a> {
    fn new(page: &'a LockPage) -> Self {
        let now = page.chrome.now;
        let lock = known(page);
        let read_at = match &page.subject {
            Subject::Known(lock) => Some(lock.observed_at),
            Subject::Absent { read_at } => Some(*read_at),
            Subject::NoLock(_) | Subject::Unreadable(_) => None,
        };
        Self {
            subject: &page.subject,
            now,
            held: lock.and_then(held_since).map(|since| Ago::since(since, now)),
            ttl: lock.map(|lock| match now {
                AGELESS => Ttl::uncounted(lock),
                now => Ttl::new(lock, now),
            }),
            read: read_at.map(|at| Ago::new(at, now)),
            stale: read_at.is_some_and(|at| now.0.saturating_sub(at.0) > STALE_MS),
            lease: lock.and_then(|lock| lock.lease_ms).map(format::lease),
            sources: lock
                .map(|lock| lock.sources.words().collect::<Vec<_>>().join(", "))
                .unwrap_or_default(),
        }
    }

    /// The instant at which a gone lock was last seen.
    fn last_event(&self) -> Option<Ago> {
        let Subject::Known(lock) = self.subject else { return None };
        lock.events.newest().map(|at| Ago::new(at, self.now))
    }
}

struct Problem<'a> {
    badge: Badge,
    meaning: &'static str,
    suspected: bool,
    advice: Prose<'a>,
    evidence: Vec<(Clock, &'a Evidence)>,
    circle: Option<Circle>,
    /// The person who acknowledged it, and the end of that.
    acknowledged: Option<(Clock, &'a Acknowledgement)>,
}

#[derive(Template)]
#[template(path = "parts/lock_problems.html")]
struct Problems<'a> {
    problems: Vec<Problem<'a>>,
}

impl HtmlSafe for Problems<'_> {}

impl<'a> Problems<'a> {
    fn new(page: &'a LockPage) -> Self {
        let now = page.chrome.now;
        let problems = known(page).map(|lock| lock.problems.as_slice()).unwrap_or_default();
        let problems = problems.iter().map(|problem| Problem {
            badge: Badge::new(problem, now),
            meaning: meaning(problem.problem),
            suspected: problem.certainty == Certainty::Suspected,
            advice: Prose(&problem.advice),
            evidence: problem.evidence.iter().map(|e| (Clock::new(e.at, now), e)).collect(),
            acknowledged: problem
                .acknowledged
                .as_deref()
                .map(|word| (Clock::new(word.until, now), word)),
            circle: Circle::new(problem),
        });
        Self { problems: problems.collect() }
    }
}

fn meaning(problem: ProblemKind) -> &'static str {
    match problem {
        ProblemKind::Deadlock => "Its holder waits for something that those who wait for it hold.",
        ProblemKind::Leaked => {
            "It does not end by itself, or not soon, and may have nobody to release it."
        }
        ProblemKind::RenewalOverdue => {
            "It is renewed as a rule, and should have been again by now: it may soon be lost."
        }
        ProblemKind::Expired => {
            "Its lease ran out under a holder that had kept it alive until then."
        }
        ProblemKind::Starving => "Somebody has been waiting for it for too long.",
        ProblemKind::Malformed => "Its hash is not as any kind of lock should be.",
        ProblemKind::Orphan => "What belongs to it was left behind by others that are gone.",
        ProblemKind::Stuck => {
            "Its holder keeps renewing it, far longer than such a hold should last."
        }
    }
}

struct Holder<'a> {
    view: &'a HolderView,
    /// The process behind it, in words.
    who: Option<String>,
    since: Ago,
    marker: Option<String>,
    owner: String,
}

#[derive(Template)]
#[template(path = "parts/lock_holders.html")]
struct Holders<'a> {
    holders: Vec<Holder<'a>>,
    /// True if modes differ from plain, so that they are worth a column.
    modes: bool,
}

impl HtmlSafe for Holders<'_> {}

impl<'a> Holders<'a> {
    fn new(page: &'a LockPage) -> Self {
        let holders = known(page).map(|lock| lock.holders.as_slice()).unwrap_or_default();
        Self {
            modes: holders.iter().any(|holder| holder.mode != "lock"),
            holders: holders
                .iter()
                .map(|view| Holder {
                    view,
                    who: view.client.as_deref().map(client_words),
                    since: Ago::since(view.since, page.chrome.now),
                    marker: view.marker_ttl_ms.map(format::duration),
                    owner: owner_link(&page.id.deployment, view),
                })
                .collect(),
        }
    }
}

/// The waiters in their order.
#[derive(Template)]
#[template(path = "parts/lock_waiters.html")]
struct Waiters<'a> {
    waiting: u64,
    exact: bool,
    waiters: Vec<(Ago, &'a WaiterView)>,
    queue: Vec<(Option<Clock>, &'a QueueEntryView)>,
}

impl HtmlSafe for Waiters<'_> {}

impl<'a> Waiters<'a> {
    fn new(page: &'a LockPage) -> Self {
        let now = page.chrome.now;
        let lock = known(page);
        let waiters = lock.map(|lock| lock.waiters.as_slice()).unwrap_or_default();
        let queue = lock.map(|lock| lock.queue.as_slice()).unwrap_or_default();
        let clock = |place: &QueueEntryView| place.deadline.map(|at| Clock::new(at, now));
        Self {
            waiting: lock.map_or(0, |lock| lock.waiting),
            exact: lock.is_some_and(|lock| lock.waiters_exact),
            waiters: waiters.iter().map(|w| (Ago::since(w.since, now), w)).collect(),
            queue: queue.iter().map(|place| (clock(place), place)).collect(),
        }
    }
}

#[derive(Template)]
#[template(path = "parts/lock_events.html")]
struct Events {
    events: Vec<(Clock, EventView)>,
}

impl HtmlSafe for Events {}

impl Events {
    fn new(page: &LockPage) -> Self {
        let events = known(page).into_iter().flat_map(|lock| lock.events.views()).take(EVENTS);
        Self { events: events.map(|e| (Clock::new(e.at, page.chrome.now), e)).collect() }
    }
}

/// Its earlier holders.
#[derive(Template)]
#[template(path = "parts/lock_past.html")]
struct PastHolds<'a> {
    past: Vec<PastRow<'a>>,
    longest: Option<String>,
}

impl HtmlSafe for PastHolds<'_> {}

/// Its holders at the requested instant.
#[derive(Template)]
#[template(path = "parts/lock_then.html")]
struct Then<'a> {
    at: Clock,
    holds: Vec<PastRow<'a>>,
    gap: bool,
}

impl HtmlSafe for Then<'_> {}

impl<'a> Then<'a> {
    fn new(page: &'a LockPage) -> Option<Self> {
        let now = page.chrome.now;
        page.then.as_ref().map(|then| Self {
            at: Clock::new(then.at, now),
            holds: then.holders.iter().map(|hold| PastRow::new(hold, now)).collect(),
            gap: then.gap.is_some(),
        })
    }
}

struct PastRow<'a> {
    ended: &'static str,
    from: Clock,
    exact: bool,
    lasted: Option<String>,
    hold: &'a PastHoldView,
}

impl<'a> PastRow<'a> {
    fn new(hold: &'a PastHoldView, now: SteadyMillis) -> Self {
        let lasted = hold.to.map(|to| format::duration(to.0.saturating_sub(hold.since.at.0)));
        let from = Clock::new(hold.since.at, now);
        Self { ended: ending_words(hold), from, exact: hold.since.exact, lasted, hold }
    }
}

impl<'a> PastHolds<'a> {
    fn new(page: &'a LockPage) -> Self {
        let now = page.chrome.now;
        let lock = known(page);
        let past = lock.map(|lock| &*lock.past).unwrap_or_default();
        let longest = lock.and_then(|lock| lock.longest_hold.as_deref());
        Self {
            past: past.iter().map(|hold| PastRow::new(hold, now)).collect(),
            longest: longest.and_then(|hold| PastRow::new(hold, now).lasted),
        }
    }
}

/// Commands that show it without this dashboard.
#[derive(Template)]
#[template(path = "parts/lock_raw.html")]
struct Raw {
    keys: Vec<RawKey>,
    commands: Vec<Command>,
    cluster: bool,
}

impl HtmlSafe for Raw {}

impl Raw {
    fn new(page: &LockPage) -> Self {
        // Without any sight of it, the commonest kind.
        let kind = known(page).map_or(redisson::Kind::Lock.as_str(), |lock| lock.kind);
        Self {
            keys: shell::raw_keys(&page.id.name, kind),
            commands: shell::commands(&page.id, kind, page.home.as_ref()),
            cluster: page.home.is_some(),
        }
    }
}

/// The timeline of its last minutes or hours.
#[derive(Template)]
#[template(path = "parts/lock_pictures.html")]
struct Pictures {
    timeline: Option<Timeline>,
    durations: Option<Durations>,
}

impl HtmlSafe for Pictures {}

impl Pictures {
    /// `now`: where the picture ends, also where ages are left to the script.
    fn new(page: &LockPage, now: SteadyMillis) -> Self {
        let window = &page.past;
        let choices = match window.kept {
            true => ["2m", "15m", "1h", "6h", "24h"]
                .map(|w| (w, links::lock_window(&page.id, w)))
                .into(),
            false => Vec::new(),
        };
        Self {
            timeline: Timeline::new(known(page), window, now, choices),
            durations: Durations::new(window.holds.iter().filter_map(lasted).collect()),
        }
    }
}

fn known(page: &LockPage) -> Option<&LockView> {
    match &page.subject {
        Subject::Known(lock) => Some(lock),
        Subject::Absent { .. } | Subject::NoLock(_) | Subject::Unreadable(_) => None,
    }
}

#[derive(Template)]
#[template(path = "lock.html")]
struct LockTemplate<'a> {
    frame: Frame<'a>,
    page: &'a LockPage,
    name: RawKey,
    then: Option<Then<'a>>,
    summary: Summary<'a>,
    problems: Problems<'a>,
    holders: Holders<'a>,
    waiters: Waiters<'a>,
    events: Events,
    past: PastHolds<'a>,
    raw: Raw,
    pictures: Pictures,
    history: String,
    json: String,
    /// All of it, as one file.
    bundle: String,
    /// The address of a forced release, for those who may.
    release: Option<String>,
    /// The address of acknowledgements, for those who may.
    acknowledge: Option<Acknowledge<'a>>,
}

/// The form by which problems are acknowledged. It is no part of what the stream changes, so that nothing that is typed
/// is lost.
struct Acknowledge<'a> {
    action: String,
    undo: String,
    open: Vec<&'a str>,
    in_hand: Vec<&'a str>,
}

impl<'a> Acknowledge<'a> {
    fn new(page: &'a LockPage) -> Option<Self> {
        let problems = known(page).map(|lock| lock.problems.as_slice()).unwrap_or_default();
        if !page.may_acknowledge || problems.is_empty() {
            return None;
        }
        let (in_hand, open): (Vec<_>, Vec<_>) =
            problems.iter().partition(|problem| problem.acknowledged.is_some());
        let words = |problems: Vec<&'a ProblemView>| {
            problems.into_iter().map(|problem| problem.problem.as_str()).collect()
        };
        Some(Self {
            action: links::acknowledge(&page.id),
            undo: links::unacknowledge(&page.id),
            open: words(open),
            in_hand: words(in_hand),
        })
    }
}

/// The page.
///
/// # Errors
/// If the template fails, which is a bug.
pub fn lock_page(page: &LockPage) -> Result<String, askama::Error> {
    LockTemplate {
        frame: Frame::new(title(page), "", &page.chrome),
        page,
        name: RawKey::new("Name", page.id.name.as_bytes()),
        then: Then::new(page),
        summary: Summary::new(page),
        problems: Problems::new(page),
        holders: Holders::new(page),
        waiters: Waiters::new(page),
        events: Events::new(page),
        past: PastHolds::new(page),
        raw: Raw::new(page),
        pictures: Pictures::new(page, page.chrome.now),
        history: links::lock_events(&page.id),
        json: links::lock_json(&page.id),
        bundle: links::lock_bundle(&page.id, page.then.as_ref().map(|then| then.at)),
        acknowledge: Acknowledge::new(page),
        release: page.may_release.then(|| links::release(&page.id)),
    }
    .render()
}

/// The document's title.
pub(super) fn title(page: &LockPage) -> String {
    let name = text::visible(page.id.name.as_bytes());
    let mut short: String = name.chars().take(TITLE_NAME).collect();
    if short.len() < name.len() {
        short.push('…');
    }
    // On a lock's own page its own state comes first.
    let mark = match &page.subject {
        Subject::Known(lock) if !lock.problems.is_empty() => "▲ ",
        Subject::Known(lock) if lock.state == State::Held => "● ",
        Subject::Known(_)
        | Subject::Absent { .. }
        | Subject::NoLock(_)
        | Subject::Unreadable(_) => "",
    };
    let chrome = Chrome { counts: super::Counts::default(), ..page.chrome.clone() };
    format!("{mark}{}", page::title(&chrome, &short))
}

/// The parts that a stream keeps true; ages are counted to the page's clock, the picture goes to `now`.
pub(super) fn regions(
    page: &LockPage,
    now: SteadyMillis,
) -> Result<Vec<(&'static str, String)>, askama::Error> {
    Ok(vec![
        ("lock-state", Summary::new(page).render()?),
        ("lock-problems", Problems::new(page).render()?),
        ("lock-pictures", Pictures::new(page, now).render()?),
        ("lock-holders", Holders::new(page).render()?),
        ("lock-waiters", Waiters::new(page).render()?),
        ("lock-events", Events::new(page).render()?),
        ("lock-past", PastHolds::new(page).render()?),
        ("lock-raw", Raw::new(page).render()?),
    ])
}
