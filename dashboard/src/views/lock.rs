//! `/lock`: one lock, with everything known about it.

use askama::Template;
use askama::filters::HtmlSafe;
use redisson::Kind;

use super::format::{self, AGELESS, Ago, Clock};
use super::lock_parts::{ByHand, Head, PastHolds, is_releasable, known, meaning, timeline, title};
use super::overview::services;
use super::owner_name::OwnerName;
use super::page::{Frame, MonitorHint, STALE_MS};
use super::picture::{Circle, Durations, Timeline, lasted};
use super::prose::Prose;
use super::row::{Badge, HolderCell, Ttl, client_words, problems, unverified_remark};
use super::shell::{self, Command, RawKey};
use super::trace::{self, StepRow, TraceState};
use super::{LockPage, Subject, links, lock_then};
use crate::clock::SteadyMillis;
use crate::model::types::{
    Acknowledgement, EventView, HolderView, LockView, ProblemKind, ProblemView, QueueEntryView,
    State, WaiterView,
};

/// The maximum number of events shown.
const EVENTS: usize = 200;

/// The lock's state, or its worst open problem: who holds the lock, who is blocked, and what to do.
#[derive(Template)]
#[template(path = "parts/lock_state.html")]
struct Verdict<'a> {
    subject: &'a Subject,
    now: SteadyMillis,
    problem: Option<Headline<'a>>,
    holders: Vec<VerdictHolder<'a>>,
    more_holders: usize,
    held: Option<Ago>,
    blocked: Option<Blocked>,
    ttl: Option<Ttl>,
    ran_out: Option<RanOut>,
    read: Option<Ago>,
    stale: bool,
    /// True if a forced release would have something to end.
    releasable: bool,
    lease: Option<String>,
    sources: String,
}

impl HtmlSafe for Verdict<'_> {}

/// The worst open problem, or the worst one if all are acknowledged.
struct Headline<'a> {
    badge: Badge,
    meaning: &'static str,
    advice: Prose<'a>,
}

/// One of the holders that the verdict names.
struct VerdictHolder<'a> {
    cell: HolderCell<'a>,
    is_foreign: bool,
    since: Ago,
    process: Option<String>,
    /// A remark about the process, for its tooltip.
    remark: Option<&'static str>,
}

/// The waiters in a sentence.
struct Blocked {
    count: String,
    exact: bool,
    longest: Option<Ago>,
    /// The services that wait, in words.
    services: Option<String>,
}

/// The leases that ran out within the last hour.
struct RanOut {
    times: String,
    last: Ago,
    lease: Option<String>,
    /// What that probably means, unless a problem says so.
    meaning: Option<&'static str>,
}

impl RanOut {
    fn new(lock: &LockView, until: SteadyMillis, now: SteadyMillis) -> Option<Self> {
        let (count, last) = lock.ran_out_within_an_hour(until)?;
        let times = match count {
            1 => "once".to_owned(),
            n => format!("{} times", format::count(n as u64)),
        };
        let lease = lock.lease_ms.map(format::lease);
        let is_problem = lock.problems.iter().any(|it| it.problem == ProblemKind::Expired);
        let meaning = (!is_problem).then(|| match lock.is_sometimes_released() {
            true => "Other holds were released: does the work outlast its lease?",
            false => "No hold was released: this lock may be meant to expire.",
        });
        Some(Self { times, last: Ago::new(last, now), lease, meaning })
    }
}

/// The maximum number of holders in a verdict.
const NAMED: usize = 3;

impl<'a> Verdict<'a> {
    /// Creates the verdict. `until` is the end of the hour for which expired leases are counted, even if the script
    /// counts the ages.
    fn new(page: &'a LockPage, until: SteadyMillis) -> Self {
        let now = page.chrome.now;
        let lock = known(page);
        let read_at = match &page.subject {
            Subject::Known(lock) => Some(lock.observed_at()),
            Subject::Absent { read_at } => Some(*read_at),
            Subject::NoLock(_) | Subject::Unreadable(_) => None,
        };
        let holders = lock.map(|lock| lock.holders.as_slice()).unwrap_or_default();
        Self {
            subject: &page.subject,
            now,
            problem: lock.and_then(|lock| problems(lock).first().copied()).map(|problem| {
                Headline {
                    badge: Badge::new(problem, now),
                    meaning: meaning(problem.problem),
                    advice: Prose::naming(&problem.advice, &page.chrome.names),
                }
            }),
            holders: holders
                .iter()
                .take(NAMED)
                .map(|view| VerdictHolder {
                    cell: HolderCell::new(&page.id.deployment, view),
                    is_foreign: view.is_foreign(),
                    since: Ago::since(view.since, now),
                    process: view.client.as_deref().map(client_words),
                    remark: view.client.as_deref().and_then(unverified_remark),
                })
                .collect(),
            more_holders: holders.len().saturating_sub(NAMED),
            held: lock.and_then(LockView::held_since).map(|since| Ago::since(since, now)),
            blocked: lock.and_then(|lock| Blocked::new(lock, now)),
            ttl: lock.map(|lock| match now {
                AGELESS => Ttl::uncounted(lock),
                now => Ttl::new(lock, now),
            }),
            ran_out: lock.and_then(|lock| RanOut::new(lock, until, now)),
            read: read_at.map(|at| Ago::new(at, now)),
            releasable: is_releasable(page),
            stale: read_at.is_some_and(|at| now.millis_since(at) > STALE_MS),
            lease: lock.and_then(|lock| lock.lease_ms).map(format::lease),
            sources: lock
                .map(|lock| lock.sources.words().collect::<Vec<_>>().join(", "))
                .unwrap_or_default(),
        }
    }

    /// Returns the class for the verdict's colour.
    fn tone(&self) -> &'static str {
        match (&self.problem, self.subject) {
            (Some(problem), _) if problem.badge.acknowledged => "acknowledged",
            (Some(problem), _) => problem.badge.certainty,
            (None, Subject::Known(lock)) => lock.state.as_str(),
            (None, _) => "unknown",
        }
    }

    /// Returns the instant of the last event of a lock that is gone.
    fn last_event(&self) -> Option<Ago> {
        let Subject::Known(lock) = self.subject else { return None };
        lock.events.newest().map(|at| Ago::new(at, self.now))
    }
}

impl Blocked {
    /// Returns the waiters of a lock, if it has any.
    fn new(lock: &LockView, now: SteadyMillis) -> Option<Self> {
        (lock.waiting > 0).then(|| Self {
            count: format::count(lock.waiting),
            exact: lock.waiters_exact,
            longest: lock.longest_wait().map(|since| Ago::since(since, now)),
            services: services(lock),
        })
    }
}

struct Problem<'a> {
    badge: Badge,
    /// The meaning of the problem and the advice, unless the verdict contains them already.
    explained: Option<(&'static str, Prose<'a>)>,
    evidence: Vec<(Clock, &'static str, Prose<'a>)>,
    circle: Option<Circle>,
    /// The person who acknowledged the problem, and the end of the acknowledgement.
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
        let (now, names) = (page.chrome.now, &page.chrome.names);
        let problems = known(page).map(problems).unwrap_or_default();
        let problem = |(i, problem): (usize, &'a ProblemView)| Problem {
            badge: Badge::new(problem, now),
            explained: (i > 0)
                .then(|| (meaning(problem.problem), Prose::naming(&problem.advice, names))),
            evidence: problem
                .evidence
                .iter()
                .map(|e| (Clock::new(e.at, now), e.source, Prose::naming(&e.text, names)))
                .collect(),
            acknowledged: problem
                .acknowledged
                .as_deref()
                .map(|word| (Clock::new(word.until, now), word)),
            circle: Circle::new(problem, names),
        };
        Self { problems: problems.into_iter().enumerate().map(problem).collect() }
    }
}

struct Holder<'a> {
    view: &'a HolderView,
    name: OwnerName,
    since: Ago,
    marker: Option<String>,
}

#[derive(Template)]
#[template(path = "parts/lock_holders.html")]
struct Holders<'a> {
    holders: Vec<Holder<'a>>,
    /// True if some mode is not plain, so that modes get a column.
    modes: bool,
}

impl HtmlSafe for Holders<'_> {}

impl<'a> Holders<'a> {
    fn new(page: &'a LockPage) -> Self {
        let holders = known(page).map(|lock| lock.holders.as_slice()).unwrap_or_default();
        Self {
            modes: holders.iter().any(|holder| holder.mode != Kind::Lock),
            holders: holders
                .iter()
                .map(|view| Holder {
                    view,
                    name: OwnerName::of_holder(&page.id.deployment, view),
                    since: Ago::since(view.since, page.chrome.now),
                    marker: view.marker_ttl_ms.map(format::duration),
                })
                .collect(),
        }
    }
}

/// The waiters in their order.
#[derive(Template)]
#[template(path = "parts/lock_waiters.html")]
struct Waiters<'a> {
    waiting: String,
    exact: bool,
    /// The number of waiters that are not listed.
    more: Option<String>,
    waiters: Vec<(Ago, OwnerName, &'a WaiterView)>,
    queue: Vec<(Option<Clock>, OwnerName, &'a QueueEntryView)>,
}

impl HtmlSafe for Waiters<'_> {}

impl<'a> Waiters<'a> {
    fn new(page: &'a LockPage) -> Self {
        let now = page.chrome.now;
        let lock = known(page);
        let waiters = lock.map(|lock| lock.waiters.as_slice()).unwrap_or_default();
        let queue = lock.map(|lock| lock.queue.as_slice()).unwrap_or_default();
        let clock = |place: &QueueEntryView| place.deadline.map(|at| Clock::new(at, now));
        let waiting = lock.map_or(0, |lock| lock.waiting);
        let more = waiting.saturating_sub(waiters.len() as u64);
        Self {
            waiting: format::count(waiting),
            more: (more > 0).then(|| format::count(more)),
            exact: lock.is_some_and(|lock| lock.waiters_exact),
            waiters: waiters
                .iter()
                .map(|w| {
                    let name = OwnerName::new(&page.id.deployment, &w.id, w.client.as_deref());
                    (Ago::since(w.since, now), name, w)
                })
                .collect(),
            queue: queue
                .iter()
                .map(|place| {
                    let names = &page.chrome.names;
                    let name = OwnerName::remembered(&page.id.deployment, &place.id, names);
                    (clock(place), name, place)
                })
                .collect(),
        }
    }
}

#[derive(Template)]
#[template(path = "parts/lock_events.html")]
struct Events<'a> {
    events: Vec<(Clock, EventView, Prose<'a>)>,
}

impl HtmlSafe for Events<'_> {}

impl<'a> Events<'a> {
    fn new(page: &'a LockPage) -> Self {
        let events = known(page).into_iter().flat_map(|lock| lock.events.views()).take(EVENTS);
        let shown = |event: EventView| {
            let text = Prose::naming(event.text.clone(), &page.chrome.names);
            (Clock::new(event.at, page.chrome.now), event, text)
        };
        Self { events: events.map(shown).collect() }
    }
}

/// Commands that show the lock without this dashboard.
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
        // The kind of a lock that was never seen is assumed to be the most common one.
        let kind = known(page).map_or(Kind::Lock, |lock| lock.kind).as_str();
        Self {
            keys: shell::raw_keys(&page.id.name, kind),
            commands: shell::commands(&page.id, kind, page.home.as_ref()),
            cluster: page.home.is_some(),
        }
    }
}

/// The timeline of the lock's last minutes or hours.
#[derive(Template)]
#[template(path = "parts/lock_pictures.html")]
struct Pictures {
    timeline: Option<Timeline>,
    durations: Option<Durations>,
    /// True if the history cannot be read.
    unreadable: bool,
}

impl HtmlSafe for Pictures {}

impl Pictures {
    /// Draws the pictures. `now` is the end of the timeline, even if the script counts the ages.
    fn new(page: &LockPage, now: SteadyMillis) -> Self {
        let window = &page.past;
        let exact = window.holds.iter().filter(|hold| hold.since.exact);
        Self {
            timeline: timeline(page, known(page), now),
            durations: Durations::new(exact.filter_map(lasted).collect()),
            unreadable: window.unreadable,
        }
    }
}

#[derive(Template)]
#[template(path = "lock.html")]
struct LockTemplate<'a> {
    frame: Frame<'a>,
    head: Head<'a>,
    verdict: Verdict<'a>,
    problems: Problems<'a>,
    holders: Holders<'a>,
    waiters: Waiters<'a>,
    hint: MonitorHint,
    events: Events<'a>,
    past: PastHolds,
    raw: Raw,
    pictures: Pictures,
    history: String,
    json: String,
    /// The form for acknowledgements, if the visitor may acknowledge.
    acknowledge: Option<Acknowledge>,
    trace: TraceState<'a>,
    steps: Vec<StepRow>,
    /// The address that requests a trace, if the visitor may request one.
    start_trace: Option<String>,
}

/// The forms for acknowledging problems. A stream updates their problems only, so that typed text is not lost. Without
/// problems they are not shown.
struct Acknowledge {
    action: String,
    undo: String,
    open: OpenProblems,
    in_hand: AcknowledgedProblems,
}

impl Acknowledge {
    fn new(page: &LockPage) -> Option<Self> {
        page.may_acknowledge.then(|| Self {
            action: links::acknowledge(&page.id),
            undo: links::unacknowledge(&page.id),
            open: OpenProblems { problems: problems_of(page, false) },
            in_hand: AcknowledgedProblems { problems: problems_of(page, true) },
        })
    }
}

/// The choices of the form that acknowledges a problem.
#[derive(Template)]
#[template(path = "parts/open_problems.html")]
struct OpenProblems {
    problems: Vec<ProblemKind>,
}

impl HtmlSafe for OpenProblems {}

/// The buttons that end an acknowledgement.
#[derive(Template)]
#[template(path = "parts/acknowledged_problems.html")]
struct AcknowledgedProblems {
    problems: Vec<ProblemKind>,
}

impl HtmlSafe for AcknowledgedProblems {}

/// Returns the problems that are, or are not, acknowledged.
fn problems_of(page: &LockPage, acknowledged: bool) -> Vec<ProblemKind> {
    let problems = known(page).map(|lock| lock.problems.as_slice()).unwrap_or_default();
    let wanted = problems.iter().filter(|it| it.acknowledged.is_some() == acknowledged);
    wanted.map(|problem| problem.problem).collect()
}

/// Renders the page.
///
/// # Errors
/// If the template fails, which is a bug.
pub fn lock_page(page: &LockPage) -> Result<String, askama::Error> {
    if let Some(then) = &page.then {
        return lock_then::page(page, then);
    }
    LockTemplate {
        frame: Frame::new(title(page), "", &page.chrome),
        head: Head::new(page),
        verdict: Verdict::new(page, page.chrome.now),
        problems: Problems::new(page),
        holders: Holders::new(page),
        waiters: Waiters::new(page),
        hint: hint(page),
        events: Events::new(page),
        past: PastHolds::new(page),
        raw: Raw::new(page),
        pictures: Pictures::new(page, page.chrome.now),
        history: links::lock_events(&page.id),
        json: links::lock_json(&page.id),
        acknowledge: Acknowledge::new(page),
        trace: TraceState::new(page, page.chrome.now),
        steps: trace::steps(page),
        start_trace: trace::action(page),
    }
    .render()
}

/// Returns the hint at MONITOR if the lock may have more waiters than are known.
fn hint(page: &LockPage) -> MonitorHint {
    let lacks = known(page).is_some_and(|lock| lock.is_held() && !lock.waiters_exact);
    MonitorHint::of(&page.chrome, &page.id.deployment, lacks)
}

/// Returns the parts that a stream keeps current. Ages are counted up to the page's clock, and the picture ends at
/// `now`.
pub(super) fn regions(
    page: &LockPage,
    now: SteadyMillis,
) -> Result<Vec<(&'static str, String)>, askama::Error> {
    Ok(vec![
        ("lock-state", Verdict::new(page, now).render()?),
        ("lock-by-hand", ByHand::new(page).render()?),
        ("lock-problems", Problems::new(page).render()?),
        ("open-problems", OpenProblems { problems: problems_of(page, false) }.render()?),
        (
            "acknowledged-problems",
            AcknowledgedProblems { problems: problems_of(page, true) }.render()?,
        ),
        ("lock-pictures", Pictures::new(page, now).render()?),
        ("lock-holders", Holders::new(page).render()?),
        ("lock-waiters", Waiters::new(page).render()?),
        ("lock-hint", hint(page).render()?),
        ("lock-events", Events::new(page).render()?),
        ("lock-past", PastHolds::new(page).render()?),
        ("lock-raw", Raw::new(page).render()?),
        ("trace-state", TraceState::new(page, now).render()?),
    ])
}
