//! A lock's last minutes or hours: who held it, who waits, and how each hold ended.

use std::collections::HashSet;

use askama::Template;
use askama::filters::HtmlSafe;

use super::super::PastWindow;
use super::super::format::{self, rfc3339};
use super::super::row::{short_client, short_holder};
use super::ending_words;
use crate::model::view::{LockView, State, WallMillis};
use crate::query::owners::client_of;

/// The whole width.
const WIDTH: u64 = 1_000;
/// The most lanes of holders and of waiters; the others are told as a number.
const MAX_HOLDERS: usize = 10;
const MAX_WAITERS: usize = 10;
/// Parts into which the time is cut by labels.
const PARTS: u64 = 4;

/// A bar in a lane.
#[derive(Debug)]
struct Bar {
    x: u64,
    width: u64,
    class: &'static str,
    words: String,
}

#[derive(Debug)]
struct Lane {
    who: String,
    id: String,
    waits: bool,
    bars: Vec<Bar>,
    /// Where renewals were seen.
    ticks: Vec<u64>,
}

/// How far back the picture can go instead.
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
    more_waiters: usize,
    /// Instants along the bottom.
    marks: Vec<(u64, String)>,
    legend: Vec<(&'static str, &'static str)>,
    words: String,
    choices: Vec<Choice>,
    /// Whether only what is remembered is shown, since no history is kept.
    remembered: bool,
}

impl HtmlSafe for Timeline {}

/// What is drawn, and in which colour.
fn class(ended: Option<&str>) -> &'static str {
    match ended {
        None => "now",
        Some("released" | "handed_over") => "released",
        Some("ran_out") => "ran-out",
        Some("forced") => "forced",
        Some(_) => "vanished",
    }
}

const LEGEND: [(&str, &str); 6] = [
    ("now", "holds it"),
    ("released", "released or handed over"),
    ("ran-out", "its lease ran out"),
    ("vanished", "gone otherwise"),
    ("forced", "ended by force"),
    ("waits", "waits"),
];

impl Timeline {
    /// Of a lock at an instant, which is moved back a little so that the picture of an open page does not change all
    /// the time. None where there is nothing to draw.
    pub(in super::super) fn new(
        lock: Option<&LockView>,
        window: &PastWindow,
        now: WallMillis,
        choices: Vec<(&'static str, String)>,
    ) -> Option<Self> {
        let step = (window.millis / 180).max(1_000);
        let now = now.0 - now.0 % step + step;
        let from = now.saturating_sub(window.millis);
        let x = |at: u64| at.saturating_sub(from).min(window.millis) * WIDTH / window.millis.max(1);
        // Where more have held it than there is room for, each client has a lane: an agent's holders are new with each
        // hold, and so are a service's threads.
        let held = lock.filter(|lock| lock.state != State::Free);
        let now_held = held.map(|lock| lock.holders.as_slice()).unwrap_or_default();
        let ids: HashSet<&str> = now_held
            .iter()
            .map(|holder| holder.id.as_str())
            .chain(window.holds.iter().map(|hold| hold.id.as_str()))
            .collect();
        let by_client = ids.len() > MAX_HOLDERS;
        let mut lanes: Vec<Lane> = Vec::new();
        let mut add = |id: &str, waits: bool, bar: Bar| {
            let client = by_client && !waits;
            let id = if client { client_of(id) } else { id };
            match lanes.iter_mut().find(|lane| lane.id == id && lane.waits == waits) {
                Some(lane) => lane.bars.push(bar),
                None => lanes.push(Lane {
                    who: if client { short_client(id) } else { short_holder(id) },
                    id: id.to_owned(),
                    waits,
                    bars: vec![bar],
                    ticks: Vec::new(),
                }),
            }
        };
        let bar = |since: u64, to: u64, class, words| {
            let (x, end) = (x(since), x(to));
            Bar { x, width: (end - x).clamp(2, WIDTH), class, words }
        };
        for holder in now_held {
            let words = format!("holds it since {}", rfc3339(holder.since.at));
            add(&holder.id, false, bar(holder.since.at.0, now, "now", words));
        }
        let mut past = 0;
        for hold in window.holds.iter().filter(|hold| hold.to.is_some_and(|to| to.0 >= from)) {
            let Some(to) = hold.to else { continue };
            let lasted = format::short_duration(to.0.saturating_sub(hold.since.at.0));
            let words = format!(
                "held it from {} for {lasted}, {}",
                rfc3339(hold.since.at),
                ending_words(hold)
            );
            add(&hold.id, false, bar(hold.since.at.0, to.0, class(hold.ended), words));
            past += 1;
        }
        let waiters = lock.map(|lock| lock.waiters.as_slice()).unwrap_or_default();
        for waiter in waiters {
            let words = format!("waits since {}", rfc3339(waiter.since.at));
            add(&waiter.id, true, bar(waiter.since.at.0, now, "waits", words));
        }
        if lanes.is_empty() {
            return None;
        }
        for event in lock.map(|lock| &*lock.events).unwrap_or_default() {
            let renewed = event.event == "renewed" && event.at.0 >= from;
            if let Some(lane) = lanes.first_mut().filter(|lane| renewed && !lane.waits) {
                lane.ticks.push(x(event.at.0));
            }
        }
        let (mut holders, mut waiters): (Vec<Lane>, Vec<Lane>) =
            lanes.into_iter().partition(|lane| !lane.waits);
        let who = if by_client { ("client", "clients") } else { ("holder", "holders") };
        let words = words((holders.len(), who), past, waiters.len(), window.millis);
        let more_holders = holders.len().saturating_sub(MAX_HOLDERS);
        let more_waiters = waiters.len().saturating_sub(MAX_WAITERS);
        holders.truncate(MAX_HOLDERS);
        waiters.truncate(MAX_WAITERS);
        holders.extend(waiters);
        let used: Vec<&str> =
            holders.iter().flat_map(|lane| lane.bars.iter().map(|bar| bar.class)).collect();
        let mark = |i: u64| {
            let at = WallMillis(from + window.millis * i / PARTS);
            (at.0, rfc3339(at).get(11..19).unwrap_or_default().to_owned())
        };
        Some(Self {
            lanes: holders,
            more_holders,
            more_waiters,
            marks: (0..=PARTS).map(mark).collect(),
            legend: LEGEND.into_iter().filter(|(class, _)| used.contains(class)).collect(),
            words,
            choices: choices
                .into_iter()
                .map(|(word, link)| Choice {
                    here: window.chosen.as_deref().unwrap_or("15m") == word,
                    word,
                    link,
                })
                .collect(),
            remembered: !window.kept,
        })
    }
}

fn words(
    (holders, who): (usize, (&str, &str)),
    past: usize,
    waiters: usize,
    millis: u64,
) -> String {
    let count = |n: usize, one: &str, many: &str| match n {
        1 => format!("1 {one}"),
        n => format!("{n} {many}"),
    };
    let mut words = format!(
        "The last {}: {} and {} that ended",
        format::duration(millis),
        count(holders, who.0, who.1),
        count(past, "hold", "holds"),
    );
    if waiters > 0 {
        words.push_str(&format!("; {}", count(waiters, "waiter", "waiters")));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::super::tests::hold;
    use super::*;

    const NOW: WallMillis = WallMillis(10_000_000);

    fn window(holds: Vec<crate::model::past::PastHoldView>) -> PastWindow {
        PastWindow { millis: 1_000_000, holds, kept: true, chosen: None }
    }

    #[test]
    fn bars_stand_where_their_times_are() {
        let window = window(vec![
            hold("b", 9_500_000, 9_750_000, "released"),
            hold("a", 1, 9_250_000, "ran_out"),
            hold("b", 9_999_000, 9_999_001, "released"),
        ]);
        let timeline = Timeline::new(None, &window, NOW, Vec::new()).unwrap();
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
    fn it_changes_only_now_and_then() {
        let window = window(vec![hold("b", 9_500_000, 9_750_000, "released")]);
        let at = |ms: u64| {
            Timeline::new(None, &window, WallMillis(ms), Vec::new()).unwrap().render().unwrap()
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
            Timeline::new(None, &window(holds), NOW, Vec::new()).unwrap()
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
        let timeline = Timeline::new(None, &window(holds.collect()), NOW, Vec::new()).unwrap();
        assert_eq!((timeline.lanes.len(), timeline.more_holders), (MAX_HOLDERS, 20));
        assert!(Timeline::new(None, &window(Vec::new()), NOW, Vec::new()).is_none());
    }
}
