//! The last hour as a heat map: a row for each group of locks, a column for each minute.
//!
//! Only whole minutes are drawn, so that the picture changes once a minute.

use askama::Template;
use askama::filters::HtmlSafe;

use super::super::lock_link::GroupLink;
use super::super::{format, links};
use crate::clock::SteadyMillis;
use crate::model::contention::{Contention, GroupTally, MINUTES, Minute};

/// The maximum number of rows drawn.
const MAX_ROWS: usize = 20;
/// The width of a column and the height of a row.
const COLUMN: usize = 10;
const ROW: usize = 20;
const MINUTE_MS: u64 = 60_000;
/// The waiting time from which a cell is darker, in milliseconds per minute: a tenth of a waiter, half of one, two,
/// ten.
const LEVELS: [u64; 4] = [6_000, 30_000, 120_000, 600_000];

#[derive(Debug, Template)]
#[template(path = "parts/heat.html")]
pub(in super::super) struct Heat {
    rows: Vec<HeatRow>,
    width: usize,
    height: usize,
    marks: Vec<(u64, String)>,
    /// The beginning of the picture, or of counting if that is later.
    from: format::Minute,
    /// The width of the minutes that were not counted.
    unseen: u64,
    /// The number of groups without waits or problems, and that of groups for which there is no room.
    calm: usize,
    more: usize,
}

impl HtmlSafe for Heat {}

#[derive(Debug)]
struct HeatRow {
    group: GroupLink,
    waited: Option<String>,
    cells: Vec<Cell>,
    /// The group's hour in a sentence.
    words: String,
    y: usize,
}

#[derive(Debug)]
struct Cell {
    link: String,
    words: String,
    x: usize,
    /// The level of waiting: 0 without waits, at most 5.
    level: usize,
    /// The corners of the sign that marks a problem.
    problem: Option<String>,
}

impl Heat {
    /// `places` is true if there are several deployments.
    pub(in super::super) fn new(contention: &Contention, places: bool) -> Self {
        let (busy, calm): (Vec<&GroupTally>, Vec<&GroupTally>) =
            contention.groups.iter().partition(|group| !group.minutes.is_empty());
        let end = contention.minute;
        let row = |(i, group): (usize, &&GroupTally)| HeatRow::new(group, places, end, i * ROW);
        let rows: Vec<HeatRow> = busy.iter().take(MAX_ROWS).enumerate().map(row).collect();
        let mark = |at: SteadyMillis| (at.to_wall().0, time(at));
        let (begin, width) = (end.minus(MINUTES as u64 * MINUTE_MS), MINUTES * COLUMN);
        let not_counted = contention.from.millis_since(begin) / MINUTE_MS * COLUMN as u64;
        let marks = [60, 45, 30, 15, 0].map(|ago| mark(end.minus(ago * MINUTE_MS)));
        Self {
            width,
            unseen: not_counted.min(width as u64),
            height: rows.len() * ROW,
            more: busy.len() - rows.len(),
            calm: calm.len(),
            from: format::Minute::new(contention.from.max(begin)),
            marks: marks.into(),
            rows,
        }
    }
}

impl HeatRow {
    fn new(group: &GroupTally, places: bool, end: SteadyMillis, y: usize) -> Self {
        let waited: u64 = group.minutes.iter().map(|minute| minute.waiting_ms).sum();
        let longest = group.minutes.iter().max_by_key(|minute| minute.waiting_ms);
        let problems = group.minutes.iter().filter(|minute| minute.problems > 0);
        let mut words = match longest.filter(|minute| minute.waiting_ms > 0) {
            Some(longest) => format!(
                "{} waited in total, most at {} UTC",
                format::short_duration(waited),
                time(began(longest, end))
            ),
            None => "no waits".to_owned(),
        };
        let times: Vec<String> = problems.map(|minute| time(began(minute, end))).collect();
        if !times.is_empty() {
            words.push_str(&format!("; problems at {} UTC", times.join(", ")));
        }
        Self {
            group: GroupLink::new(group, places),
            waited: (waited > 0).then(|| format::short_duration(waited)),
            cells: group.minutes.iter().map(|minute| Cell::new(minute, end, y)).collect(),
            words,
            y,
        }
    }
}

impl Cell {
    fn new(minute: &Minute, end: SteadyMillis, y: usize) -> Self {
        let (from, x) = (began(minute, end), minute.column * COLUMN);
        let to = from.plus(MINUTE_MS);
        let query = [("from", format::rfc3339(from)), ("to", format::rfc3339(to))];
        let mut words = match minute.waiting_ms {
            0 => format!("{} UTC: no waits", time(from)),
            waited => {
                format!("{} UTC: waited for {}", time(from), format::short_duration(waited))
            }
        };
        match minute.problems {
            0 => {}
            1 => words.push_str(", a problem"),
            n => words.push_str(&format!(", {n} problems")),
        }
        let above = LEVELS.iter().filter(|least| minute.waiting_ms >= **least).count();
        Self {
            link: links::with("/history", &query),
            words,
            x,
            level: if minute.waiting_ms == 0 { 0 } else { above + 1 },
            problem: (minute.problems > 0)
                .then(|| format!("M{} {}l4 7h-8z", x + COLUMN / 2, y + 6)),
        }
    }
}

/// Returns the beginning of a minute.
fn began(minute: &Minute, end: SteadyMillis) -> SteadyMillis {
    let minutes_ago = u64::try_from(MINUTES - minute.column).unwrap_or(0);
    end.minus(minutes_ago * MINUTE_MS)
}

/// Returns the time of day in UTC.
fn time(at: SteadyMillis) -> String {
    format::rfc3339(at).get(11..16).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::contention::Tally;

    fn group(name: &str, minutes: Vec<Minute>) -> GroupTally {
        GroupTally {
            deployment: "d".into(),
            lock_group: name.into(),
            tally: Tally::default(),
            minutes,
        }
    }

    fn minute(column: usize, waiting_ms: u64, problems: u32) -> Minute {
        Minute { column, waiting_ms, problems }
    }

    #[test]
    fn a_cell_is_a_minute_and_more_waiting_is_darker() {
        let minutes = vec![minute(0, 900, 0), minute(58, 700_000, 0), minute(59, 0, 2)];
        let contention = Contention {
            minute: SteadyMillis(1_795_546_800_000),
            groups: vec![group("a<b>", minutes), group("calm", Vec::new())],
            ..Contention::default()
        };
        let heat = Heat::new(&contention, false);
        assert_eq!((heat.rows.len(), heat.calm, heat.more, heat.height), (1, 1, 0, ROW));
        let row = &heat.rows[0];
        let levels: Vec<usize> = row.cells.iter().map(|cell| cell.level).collect();
        assert_eq!(levels, [1, 5, 0]);
        assert_eq!(row.words, "11m 40s waited in total, most at 18:58 UTC; problems at 18:59 UTC");
        assert_eq!(row.cells[2].words, "18:59 UTC: no waits, 2 problems");
        let link = "/history?from=2026-11-24T18:58:00.000Z&to=2026-11-24T18:59:00.000Z";
        assert_eq!((row.cells[1].link.as_str(), row.cells[1].x), (link, 580));
        let html = heat.render().unwrap();
        assert!(html.contains("a&#60;b&#62;") && html.contains("heat-5"), "{html}");
        assert!(html.contains("1 group had neither") && !html.contains("place"), "{html}");
        let html = Heat::new(&contention, true).render().unwrap();
        assert!(html.contains("<span class=\"place\">d</span> <bdi>a&#60;b&#62;"), "{html}");
    }

    #[test]
    fn an_empty_picture_states_since_when_nothing_has_happened() {
        let minute = SteadyMillis(1_795_546_800_000);
        let empty = |from| {
            let contention = Contention { from, minute, ..Contention::default() };
            Heat::new(&contention, false).render().unwrap()
        };
        let html = empty(minute.minus(150_000));
        assert!(html.contains("no problem began") && html.contains(">18:57</time>"), "{html}");
        assert!(empty(minute.minus(4_000_000)).contains(">18:00</time>"));
    }

    #[test]
    fn rows_are_bounded() {
        let groups = (0..30).map(|i| group(&i.to_string(), vec![minute(3, 5, 0)])).collect();
        let heat = Heat::new(&Contention { groups, ..Contention::default() }, false);
        assert_eq!((heat.rows.len(), heat.more), (MAX_ROWS, 10));
        let whole: Vec<Minute> = (0..MINUTES).map(|column| minute(column, 9_000, 1)).collect();
        let groups = (0..20).map(|i| group(&i.to_string(), whole.clone())).collect();
        let html =
            Heat::new(&Contention { groups, ..Contention::default() }, true).render().unwrap();
        assert!(html.len() < 400_000, "{} bytes", html.len());
    }
}
