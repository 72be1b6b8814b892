//! A lock's last minutes or hours: its holders and waiters, and the end of each hold.

use std::collections::HashSet;

use askama::Template;
use askama::filters::HtmlSafe;

use super::super::PastWindow;
use super::super::format::{self, rfc3339};
use super::super::owner_name::OwnerName;
use super::time_axis::{Mark, TimeAxis};
use super::{ending_words, words_until};
use crate::clock::SteadyMillis;
use crate::model::owner_names::OwnerNames;
use crate::model::types::{
    Ending, HolderView, LockView, PastEnding, PastHoldView, Renewals, Since, State, WaiterView,
    client_of,
};
use crate::text::visible;

/// The whole width.
const WIDTH: u64 = 1_000;
/// The maximum number of lanes of holders and of waiters; the others are only counted.
const MAX_HOLDERS: usize = 10;
const MAX_WAITERS: usize = 10;
/// The minimum distance between two marks, since closer ones would hide the bar.
const MIN_BETWEEN: u64 = 8;
/// The number of parts that link to an instant.
const SLOTS: u64 = 50;
/// The maximum number of bars that the description of such a part names.
const NAMED: usize = 3;

/// A bar in a lane.
#[derive(Debug)]
struct Bar {
    x: u64,
    width: u64,
    class: &'static str,
    words: String,
    /// The description of the bar in a few words.
    short: String,
}

/// A part of the picture that links to the instant in its middle.
#[derive(Debug)]
struct Slot {
    x: u64,
    link: String,
    words: String,
}

#[derive(Debug)]
struct Lane {
    who: String,
    id: String,
    waits: bool,
    bars: Vec<Bar>,
    /// The positions of observed renewals, in their order.
    ticks: Vec<u64>,
}

impl Lane {
    /// Returns the id with every character visible.
    fn shown_id(&self) -> String {
        visible(self.id.as_bytes())
    }
}

/// The other spans that the timeline can show.
#[derive(Debug)]
pub(in super::super) struct Choice {
    word: &'static str,
    link: String,
    here: bool,
}

#[derive(Debug, Template)]
#[template(path = "parts/timeline.html")]
pub(in super::super) struct Timeline {
    lanes: Vec<Lane>,
    more_holders: usize,
    /// The number of waiters without a lane, in words.
    more_waiters: Option<String>,
    /// The labels along the bottom.
    marks: Vec<Mark>,
    legend: Vec<(&'static str, &'static str)>,
    /// A sentence about renewals, and true if some are marked.
    renewed: Option<(String, bool)>,
    words: String,
    choices: Vec<Choice>,
    /// The reason why only remembered holds are shown, if that is so.
    remembered: Option<&'static str>,
    axis: TimeAxis,
    slots: Vec<Slot>,
    /// The position of the instant that the page shows.
    cursor: Option<u64>,
}

impl HtmlSafe for Timeline {}

/// Returns the class for a bar's shape and colour.
fn class(ended: Option<PastEnding>) -> &'static str {
    use Ending::{Expired, Forced, HandedOver, Released, Replaced, Restarted, Vanished};
    match ended {
        None => "now",
        Some(PastEnding::Seen(Released | HandedOver)) => "released",
        Some(PastEnding::Seen(Expired)) => "ran-out",
        Some(PastEnding::Seen(Forced)) => "forced",
        Some(PastEnding::Seen(Vanished | Restarted | Replaced) | PastEnding::Unseen) => "vanished",
    }
}

const LEGEND: [(&str, &str); 6] = [
    ("now", "holds it"),
    ("released", "released or handed over"),
    ("ran-out", "its lease ran out"),
    ("vanished", "gone otherwise"),
    ("forced", "released by force"),
    ("waits", "waits"),
];

/// Returns the beginning of something, in words.
fn began(since: Since) -> String {
    let earlier = if since.exact { "" } else { " or earlier" };
    format!("{}{earlier}", rfc3339(since.at))
}

/// The lanes while the picture is drawn.
struct Lanes<'a> {
    axis: TimeAxis,
    now: SteadyMillis,
    names: &'a OwnerNames,
    /// True if the holders of a client share a lane. An agent's holders are new with each hold, and so are a service's threads, so there
    /// may be more holders than lanes.
    by_client: bool,
    lanes: Vec<Lane>,
}

impl Lanes<'_> {
    fn add_holders(&mut self, holders: &[HolderView]) {
        for holder in holders {
            let words = format!("holds it since {}", began(holder.since));
            let bar = self.bar(holder.since.at, self.now, "now", words, "holds it".to_owned());
            self.add(&holder.id, false, bar);
        }
    }

    /// Adds the holds of the history, and returns the number of those that have ended.
    fn add_past(&mut self, holds: &[PastHoldView]) -> usize {
        let (mut ended, from) = (0, self.axis.from);
        for hold in holds.iter().filter(|hold| hold.to.is_none_or(|to| to >= from)) {
            let to = hold.to.unwrap_or(self.now);
            let lasted = words_until(to, hold.since);
            let ending = ending_words(hold);
            let words = format!("held it from {} for {lasted}, {ending}", began(hold.since));
            let short = format!("{ending} after {lasted}");
            let bar = self.bar(hold.since.at, to, class(hold.ended), words, short);
            self.add(&hold.id, false, bar);
            ended += usize::from(hold.to.is_some());
        }
        ended
    }

    fn add_waiters(&mut self, waiters: &[WaiterView]) {
        for waiter in waiters {
            let words = format!("waits since {}", began(waiter.since));
            let bar = self.bar(waiter.since.at, self.now, "waits", words, "waits".to_owned());
            self.add(&waiter.id, true, bar);
        }
    }

    /// Marks the observed renewals, if one holder has all of them and they are not too dense. Returns a sentence about them, and whether
    /// some are marked.
    fn mark_renewals(&mut self, renewals: &Renewals, holders: usize) -> (String, bool) {
        // A time to live that several holders share does not show which holder renewed it.
        let marked: Vec<SteadyMillis> = match holders {
            1 => renewals.latest().filter(|at| *at >= self.axis.from).collect(),
            _ => Vec::new(),
        };
        let ticks: Vec<u64> = marked.iter().map(|at| self.axis.x(*at)).collect();
        let dense = ticks.windows(2).any(|pair| pair[1] - pair[0] < MIN_BETWEEN);
        let words = renewed_words(renewals, holders, marked.len(), dense);
        let ticks = if dense { Vec::new() } else { ticks };
        let are_there = !ticks.is_empty();
        if let Some(lane) = self.lanes.first_mut() {
            lane.ticks = ticks;
        }
        (words, are_there)
    }

    fn bar(
        &self,
        since: SteadyMillis,
        to: SteadyMillis,
        class: &'static str,
        words: String,
        short: String,
    ) -> Bar {
        let (x, end) = (self.axis.x(since), self.axis.x(to));
        // A hold of an earlier run may seem to end before it began, if the host's clock was set back since.
        Bar { x, width: end.saturating_sub(x).clamp(2, WIDTH), class, words, short }
    }

    fn add(&mut self, id: &str, waits: bool, bar: Bar) {
        let id = if self.by_client && !waits { client_of(id) } else { id };
        match self.lanes.iter_mut().find(|lane| lane.id == id && lane.waits == waits) {
            Some(lane) => lane.bars.push(bar),
            None => self.lanes.push(Lane {
                who: OwnerName::remembered("", id, self.names).plain(),
                id: id.to_owned(),
                waits,
                bars: vec![bar],
                ticks: Vec::new(),
            }),
        }
    }
}

impl Timeline {
    /// Draws the timeline of a lock at an instant. The instant is moved back a little, so that the picture of an open
    /// page does not change all the time. Returns `None` if there is nothing to draw.
    pub(in super::super) fn new(
        lock: Option<&LockView>,
        window: &PastWindow,
        now: SteadyMillis,
        choices: Vec<(&'static str, String)>,
        names: &OwnerNames,
    ) -> Option<Self> {
        let step = (window.millis / 180).max(1_000);
        let now = SteadyMillis(now.0 - now.0 % step + step);
        let from = now.minus(window.millis);
        let axis = TimeAxis { from, millis: window.millis, width: WIDTH };
        let held = lock.filter(|lock| lock.state != State::Free);
        let now_held = held.map(|lock| lock.holders.as_slice()).unwrap_or_default();
        let ids: HashSet<&str> = now_held
            .iter()
            .map(|holder| &*holder.id)
            .chain(window.holds.iter().map(|hold| hold.id.as_str()))
            .collect();
        let by_client = ids.len() > MAX_HOLDERS;
        let mut lanes = Lanes { axis, now, names, by_client, lanes: Vec::new() };
        lanes.add_holders(now_held);
        let past = lanes.add_past(&window.holds);
        lanes.add_waiters(lock.map(|lock| lock.waiters.as_slice()).unwrap_or_default());
        if lanes.lanes.is_empty() {
            return None;
        }
        let renewals = held.and_then(|lock| lock.renewals.as_deref());
        let renewed = renewals.map(|renewals| lanes.mark_renewals(renewals, now_held.len()));
        let (mut holders, mut waiters): (Vec<Lane>, Vec<Lane>) =
            lanes.lanes.into_iter().partition(|lane| !lane.waits);
        let who = if by_client { ("client", "clients") } else { ("holder", "holders") };
        let waiting = lock.map_or(0, |lock| lock.waiting).max(waiters.len() as u64);
        let least = lock.map_or("", |lock| if lock.waiters_exact { "" } else { "at least " });
        let awaited = match waiting {
            0 => None,
            1 => Some(format!("{least}1 waiter")),
            n => Some(format!("{least}{} waiters", format::count(n))),
        };
        let words = words((holders.len(), who), past, awaited, window);
        let more_holders = holders.len().saturating_sub(MAX_HOLDERS);
        let more_waiters = waiting.saturating_sub(waiters.len().min(MAX_WAITERS) as u64);
        let more_waiters =
            (more_waiters > 0).then(|| format!("{least}{}", format::count(more_waiters)));
        holders.truncate(MAX_HOLDERS);
        waiters.truncate(MAX_WAITERS);
        holders.extend(waiters);
        let used: Vec<&str> =
            holders.iter().flat_map(|lane| lane.bars.iter().map(|bar| bar.class)).collect();
        Some(Self {
            lanes: holders,
            more_holders,
            more_waiters,
            marks: axis.marks(),
            legend: LEGEND.into_iter().filter(|(class, _)| used.contains(class)).collect(),
            renewed,
            words,
            choices: choices
                .into_iter()
                .map(|(word, link)| Choice {
                    here: window.chosen.as_deref().unwrap_or("15m") == word,
                    word,
                    link,
                })
                .collect(),
            remembered: match (window.kept, window.unreadable) {
                (false, _) => Some("no history is kept"),
                (true, true) => Some("the history cannot be read now"),
                (true, false) => None,
            },
            axis,
            slots: Vec::new(),
            cursor: None,
        })
    }

    /// Adds links to the instants of the picture, and the instant that the page shows.
    pub(in super::super) fn with_instants(
        self,
        at: Option<SteadyMillis>,
        link: impl Fn(SteadyMillis) -> String,
    ) -> Self {
        let TimeAxis { from, millis, .. } = self.axis;
        let width = WIDTH / SLOTS;
        let slot = |i: u64| {
            let at = from.plus(millis * (2 * i + 1) / (2 * SLOTS));
            let (x, end) = (i * width, (i + 1) * width);
            let here = |bar: &&Bar| bar.x < end && bar.x + bar.width > x;
            let bars = self.lanes.iter().flat_map(|lane| {
                lane.bars.iter().filter(here).map(|bar| format!("{}: {}", lane.who, bar.short))
            });
            let mut bars: Vec<String> = bars.take(NAMED + 1).collect();
            if bars.len() > NAMED {
                bars.truncate(NAMED);
                bars.push("…".to_owned());
            }
            let time = format!("{} UTC", self.axis.mark(at).words());
            let words = std::iter::once(time).chain(bars).collect::<Vec<_>>().join("; ");
            Slot { x, link: link(at), words }
        };
        let slots = (0..SLOTS).map(slot).collect();
        let cursor = at.map(|at| self.axis.x(at));
        Self { slots, cursor, ..self }
    }

    /// Returns the width of the part after the instant that the page shows.
    fn later(&self) -> u64 {
        WIDTH.saturating_sub(self.cursor.unwrap_or(WIDTH))
    }
}

/// Describes the number of observed renewals. Times without observation have none.
fn renewed_words(renewals: &Renewals, holders: usize, marked: usize, dense: bool) -> String {
    let times = match renewals.count() {
        1 => "once".to_owned(),
        n => format!("{} times", format::count(n)),
    };
    match (holders, u64::try_from(marked).unwrap_or(u64::MAX)) {
        (1, _) if dense => format!("seen to be renewed, {times}: too often to be marked here"),
        (1, all) if all == renewals.count() => format!("seen to be renewed, {times}"),
        (1, 0) => format!("seen to be renewed {times}, before this picture"),
        (1, some) => format!("seen to be renewed, {times}; the latest {some} are marked"),
        _ => format!("seen to be renewed {times}, by one of its holders or another"),
    }
}

fn words(
    (holders, who): (usize, (&str, &str)),
    past: usize,
    awaited: Option<String>,
    window: &PastWindow,
) -> String {
    let count = |n: usize, one: &str, many: &str| match n {
        1 => format!("1 {one}"),
        n => format!("{n} {many}"),
    };
    let span = format::round_duration(window.millis);
    let mut words = format!(
        "{}: {} and {} that ended",
        if window.at.is_some() {
            format!("{span} around then")
        } else {
            format!("The last {span}")
        },
        count(holders, who.0, who.1),
        count(past, "hold", "holds"),
    );
    if let Some(awaited) = awaited {
        words.push_str(&format!("; {awaited}"));
    }
    words
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::super::tests::fixtures::{held, holder};
    use super::super::tests::hold;
    use super::*;

    const NOW: SteadyMillis = SteadyMillis(10_000_000);

    fn window(holds: Vec<PastHoldView>) -> PastWindow {
        PastWindow {
            millis: 1_000_000,
            holds,
            kept: true,
            unreadable: false,
            chosen: None,
            at: None,
        }
    }

    #[test]
    fn bars_are_placed_by_their_times() {
        let window = window(vec![
            hold("b", 9_500_000, 9_750_000, "released"),
            hold("a", 1, 9_250_000, "ran_out"),
            hold("b", 9_999_000, 9_999_001, "released"),
        ]);
        let timeline =
            Timeline::new(None, &window, NOW, Vec::new(), &OwnerNames::default()).unwrap();
        assert_eq!(timeline.lanes.len(), 2, "one for each holder");
        let bars = &timeline.lanes[0].bars;
        assert!(bars[0].x.abs_diff(500) <= 6 && bars[0].width.abs_diff(250) <= 1, "{bars:?}");
        assert_eq!(bars[1].width, 2, "however short, it is seen");
        let first = &timeline.lanes[1].bars[0];
        assert_eq!((first.x, first.class), (0, "ran-out"), "what began before is cut");
        assert!(first.words.contains("its lease ran out"));
        let legend: Vec<&str> = timeline.legend.iter().map(|(class, _)| *class).collect();
        assert_eq!(legend, ["released", "ran-out"]);
        assert!(timeline.words.ends_with("2 holders and 3 holds that ended"), "{}", timeline.words);
    }

    #[test]
    fn a_hold_that_seems_to_end_before_it_began_is_drawn() {
        let window = window(vec![hold("a", 9_500_000, 9_250_000, "released")]);
        let timeline =
            Timeline::new(None, &window, NOW, Vec::new(), &OwnerNames::default()).unwrap();
        assert_eq!(timeline.lanes[0].bars[0].width, 2);
    }

    #[test]
    fn every_part_leads_to_its_instant() {
        let lasting = PastHoldView { to: None, ended: None, ..hold("b", 9_500_000, 0, "released") };
        let window = window(vec![lasting, hold("a", 9_100_000, 9_200_000, "ran_out")]);
        let timeline =
            Timeline::new(None, &window, NOW, Vec::new(), &OwnerNames::default()).unwrap();
        assert!(timeline.words.ends_with("1 hold that ended"), "{}", timeline.words);
        let at = SteadyMillis(9_755_000);
        let timeline = timeline.with_instants(Some(at), |at| format!("/{}", at.0));
        assert_eq!(timeline.slots.len() as u64, SLOTS);
        let instants: Vec<u64> = timeline
            .slots
            .iter()
            .map(|slot| slot.link.trim_start_matches('/').parse().unwrap())
            .collect();
        assert!(instants.windows(2).all(|pair| pair[1] - pair[0] == 20_000), "{instants:?}");
        assert!(instants[0] > 9_000_000 && instants[49] < NOW.0 + 10_000, "{instants:?}");
        let words = |i: usize| &timeline.slots[i].words;
        assert!(words(7).contains("its lease ran out after 1m 40s"), "{}", words(7));
        assert!(words(40).contains("still held") && !words(15).contains(';'), "{}", words(40));
        assert!(timeline.cursor.unwrap().abs_diff(750) <= 6, "{:?}", timeline.cursor);
    }

    #[test]
    fn renewals_are_marked_and_counted() {
        const NOW: SteadyMillis = SteadyMillis(100_000_000);
        let in_window = |millis: u64, times: u64, holders: &[u64]| {
            let mut renewals = Renewals::default();
            for i in (0..times).rev() {
                renewals.add(SteadyMillis(NOW.0 - 5_000 - i * 10_000), None);
            }
            let holders = holders.iter().map(|n| holder(*n, 1, 0, true));
            let holders = holders.map(|holder| HolderView {
                since: Since { at: SteadyMillis(1), exact: true },
                ..holder
            });
            let lock = LockView {
                holders: holders.collect(),
                renewals: Some(Arc::new(renewals)),
                ..held(b"a", 1, 0)
            };
            let before = vec![hold("b", NOW.0 - 500_000, NOW.0 - 250_000, "released")];
            let window = PastWindow { millis, ..window(before) };
            Timeline::new(Some(&lock), &window, NOW, Vec::new(), &OwnerNames::default()).unwrap()
        };
        let renewed = |times, holders: &[u64]| in_window(1_000_000, times, holders);
        let few = renewed(3, &[1]);
        let ticks = &few.lanes[0].ticks;
        assert!(ticks.len() == 3 && ticks.is_sorted() && ticks[0].abs_diff(975) <= 6, "{ticks:?}");
        assert!(few.lanes[1].ticks.is_empty(), "it was not seen then");
        assert_eq!(few.renewed, Some(("seen to be renewed, 3 times".to_owned(), true)));
        let many = renewed(2_341, &[1]);
        assert_eq!(many.lanes[0].ticks.len(), 64);
        let words = "seen to be renewed, 2,341 times; the latest 64 are marked";
        assert_eq!(many.renewed, Some((words.to_owned(), true)));
        let dense = in_window(6_000_000, 3, &[1]);
        assert!(dense.lanes[0].ticks.is_empty(), "they would hide the bar");
        assert!(
            dense.renewed.is_some_and(|(words, marked)| words.contains("too often") && !marked)
        );
        let shared = renewed(3, &[1, 2]);
        assert!(shared.lanes.iter().all(|lane| lane.ticks.is_empty()), "nobody knows whose");
        assert!(shared.renewed.is_some_and(|(words, _)| words.contains("one of its holders")));
    }

    #[test]
    fn it_changes_only_now_and_then() {
        let window = window(vec![hold("b", 9_500_000, 9_750_000, "released")]);
        let at = |ms: u64| {
            Timeline::new(None, &window, SteadyMillis(ms), Vec::new(), &OwnerNames::default())
                .unwrap()
                .render()
                .unwrap()
        };
        let step = 1_000_000 / 180;
        let start = NOW.0 - NOW.0 % step;
        assert_eq!(at(start), at(start + step - 1));
        assert_ne!(at(start), at(start + step));
    }

    #[test]
    fn a_crowd_of_one_client_shares_its_lane() {
        const CLIENT: &str = "285475da-9152-4c83-822a-67ee2f116a79";
        let id = |i: u64| format!("{CLIENT}:{i}");
        let at = |i: u64| 9_100_000 + i * 10_000;
        let holds = |n: u64| {
            let holds = (0..n).map(|i| hold(&id(i), at(i), at(i) + 5_000, "released")).collect();
            Timeline::new(None, &window(holds), NOW, Vec::new(), &OwnerNames::default()).unwrap()
        };
        assert_eq!(holds(MAX_HOLDERS as u64).lanes.len(), MAX_HOLDERS, "room for each");
        let crowd = holds(30);
        assert_eq!((crowd.lanes.len(), crowd.lanes[0].bars.len()), (1, 30));
        assert_eq!(crowd.lanes[0].id, CLIENT);
        assert!(crowd.words.contains("1 client and 30 holds"), "{}", crowd.words);
    }

    #[test]
    fn a_crowd_is_cut_and_counted() {
        let holds = (0..30).map(|i| hold(&format!("h{i}"), 9_900_000, 9_900_100, "released"));
        let timeline =
            Timeline::new(None, &window(holds.collect()), NOW, Vec::new(), &OwnerNames::default())
                .unwrap();
        assert_eq!((timeline.lanes.len(), timeline.more_holders), (MAX_HOLDERS, 20));
        assert!(
            Timeline::new(None, &window(Vec::new()), NOW, Vec::new(), &OwnerNames::default())
                .is_none()
        );
    }
}
