//! Lists as CSV (RFC 4180), written so that no spreadsheet reads them as formulas.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::archive::{HeldLock, PastEvent};
use crate::clock::SteadyMillis;
use crate::model::types::{LockId, LockView, PastEnding, Since};
use crate::query::blockers::BlockerRow;
use crate::query::contention::ContentionRow;
use crate::query::incidents::IncidentRow;
use crate::query::owners::OwnerRow;
use crate::query::problems::ProblemRow;

/// The maximum number of rows in one answer. If there are more, its last line says so.
pub const MAX_ROWS: usize = 100_000;
/// The number of rows that are written at once.
const CHUNK: usize = 500;

/// A row of CSV.
pub trait Record: Send + Sync + 'static {
    const COLUMNS: &'static [&'static str];
    /// Returns the cells, one for each column.
    fn cells(&self) -> Vec<String>;
}

/// The number of rows without a limit.
#[derive(Debug, Clone, Copy)]
pub enum Total {
    Exactly(usize),
    AtLeast(usize),
}

/// Returns rows as a file named after their list, written as fast as it is read.
pub fn response<T: Record>(name: &str, rows: Vec<T>, total: Total) -> Response {
    let cut = match (rows.len(), total) {
        (count, Total::Exactly(total)) => {
            (total > count).then(|| format!("cut: {count} of {total} rows"))
        }
        (count, Total::AtLeast(least)) if least <= count => {
            Some("incomplete: the search took too long".to_owned())
        }
        (count, Total::AtLeast(least)) => Some(format!("cut: {count} of at least {least} rows")),
    };
    let head = line(T::COLUMNS.iter().map(ToString::to_string));
    let mut rows = rows.into_iter();
    let body = std::iter::once(head)
        .chain(std::iter::from_fn(move || {
            let lines: String = rows.by_ref().take(CHUNK).map(|row| line(row.cells())).collect();
            (!lines.is_empty()).then_some(lines)
        }))
        .chain(cut.map(|cut| line([cut])))
        .map(|lines| Ok::<_, std::convert::Infallible>(Bytes::from(lines)));
    let headers = [
        (header::CONTENT_TYPE, "text/csv; charset=utf-8".to_owned()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"lockscope-{name}.csv\"")),
    ];
    (headers, Body::from_stream(futures_util::stream::iter(body))).into_response()
}

fn line(cells: impl IntoIterator<Item = String>) -> String {
    let cells: Vec<String> = cells.into_iter().map(|text| cell(&text)).collect();
    let mut line = cells.join(",");
    line.push_str("\r\n");
    line
}

/// Returns a cell, quoted if necessary, and with an apostrophe before a text that a spreadsheet would run. In some languages
/// spreadsheets split a line at semicolons instead, and take a quote within a cell literally.
fn cell(raw: &str) -> String {
    let mut text = String::with_capacity(raw.len());
    if raw.starts_with(['\t', '\r', '\n']) {
        text.push('\'');
    }
    let mut begins = true;
    for c in raw.chars() {
        if begins && matches!(c, '=' | '+' | '-' | '@') {
            text.push('\'');
        }
        begins = matches!(c, ';' | '\t' | '\r' | '\n') || begins && matches!(c, ' ' | '"');
        text.push(c);
    }
    if text.contains(['"', ',', ';', '\t', '\n', '\r', '\'', ' ']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text
    }
}

fn instant(at: SteadyMillis) -> String {
    crate::views::rfc3339(at)
}

/// Returns an instant, and `true` if it is exact rather than an upper bound.
fn since(since: Option<Since>) -> [String; 2] {
    match since {
        Some(since) => [instant(since.at), since.exact.to_string()],
        None => Default::default(),
    }
}

fn number<T: ToString>(n: Option<T>) -> String {
    n.map(|n| n.to_string()).unwrap_or_default()
}

/// Returns the deployment, database and name. Bytes of a name that are not UTF-8 are escaped.
fn place(id: &LockId) -> Vec<String> {
    vec![id.deployment.to_string(), id.db.to_string(), id.name.to_string()]
}

impl Record for Arc<LockView> {
    const COLUMNS: &'static [&'static str] = &[
        "deployment",
        "db",
        "name",
        "state",
        "confirmed",
        "kind",
        "holders",
        "held_since",
        "held_since_exact",
        "ttl_ms",
        "observed_at",
        "lease_ms",
        "renewed",
        "waiting",
        "waiters_exact",
        "problems",
        "acknowledged",
    ];

    fn cells(&self) -> Vec<String> {
        let holders =
            self.holders.iter().map(|h| format!("{} x{} {}", h.id, h.count, h.mode.as_str()));
        let holders: Vec<String> = holders.collect();
        let problems = self.problems.iter();
        let problems = problems.map(|p| format!("{} {}", p.problem.as_str(), p.certainty.as_str()));
        let problems: Vec<String> = problems.collect();
        let acknowledged = self.problems.iter().filter(|p| p.acknowledged.is_some());
        let acknowledged: Vec<&str> = acknowledged.map(|p| p.problem.as_str()).collect();
        let (observed_at, ttl) = self.last_reading();
        let mut cells = place(&self.id);
        cells.extend([
            self.state.as_str().to_owned(),
            self.confirmed.to_string(),
            self.kind.as_str().to_owned(),
            holders.join("; "),
        ]);
        cells.extend(since(self.held_since()));
        cells.extend([
            number(ttl),
            instant(observed_at),
            number(self.lease_ms),
            self.renewed.to_string(),
            self.waiting.to_string(),
            self.waiters_exact.to_string(),
            problems.join("; "),
            acknowledged.join("; "),
        ]);
        cells
    }
}

impl Record for OwnerRow {
    const COLUMNS: &'static [&'static str] = &[
        "deployment",
        "id",
        "holds",
        "with_problems",
        "waits",
        "oldest",
        "oldest_exact",
        "host",
        "pid",
        "process",
        "address",
        "alive",
        "verified",
        "by",
        "processes",
        "gone",
    ];

    fn cells(&self) -> Vec<String> {
        let client = self.client.clone().unwrap_or_default();
        let mut cells = vec![
            self.deployment.to_string(),
            self.id.clone(),
            self.holds.to_string(),
            self.with_problems.to_string(),
            self.waits.to_string(),
        ];
        cells.extend(since(self.oldest));
        cells.extend([
            number(client.host),
            number(client.pid),
            number(client.comm),
            number(client.addr),
            number(client.alive),
            number(client.verified),
            self.by.to_owned(),
            self.processes.to_string(),
            self.gone.to_string(),
        ]);
        cells
    }
}

impl Record for BlockerRow {
    const COLUMNS: &'static [&'static str] = &[
        "deployment",
        "db",
        "name",
        "holders",
        "held_since",
        "held_since_exact",
        "blocks",
        "locks",
    ];

    fn cells(&self) -> Vec<String> {
        let root = self.root();
        let holders: Vec<&str> = root.holders.iter().map(|holder| &*holder.id).collect();
        let mut cells = place(&root.id);
        cells.push(holders.join("; "));
        cells.extend(since(root.held_since()));
        cells.extend([self.blocks.to_string(), self.steps.len().to_string()]);
        cells
    }
}

impl Record for IncidentRow {
    const COLUMNS: &'static [&'static str] = &[
        "deployment",
        "problem",
        "certainty",
        "since",
        "locks",
        "first_lock",
        "owner",
        "waiting",
        "acknowledged",
        "advice",
        "deployments",
    ];

    fn cells(&self) -> Vec<String> {
        let (lock, problem) = self.first();
        vec![
            self.place().0.to_owned(),
            self.problem.as_str().to_owned(),
            self.certainty.as_str().to_owned(),
            instant(self.since),
            self.locks.len().to_string(),
            lock.id.name.to_string(),
            self.owner().unwrap_or_default().to_owned(),
            self.waiting.to_string(),
            self.acknowledged.to_string(),
            problem.advice.clone(),
            self.deployments().collect::<Vec<_>>().join(", "),
        ]
    }
}

impl Record for ProblemRow {
    const COLUMNS: &'static [&'static str] = &[
        "deployment",
        "db",
        "name",
        "problem",
        "certainty",
        "since",
        "evidence",
        "advice",
        "acknowledged",
    ];

    fn cells(&self) -> Vec<String> {
        let problem = self.problem();
        let evidence = problem.evidence.iter();
        let evidence = evidence.map(|e| format!("{} {}: {}", instant(e.at), e.source, e.text));
        let evidence: Vec<String> = evidence.collect();
        let mut cells = place(&self.lock.id);
        cells.extend([
            problem.problem.as_str().to_owned(),
            problem.certainty.as_str().to_owned(),
            instant(problem.since),
            evidence.join("; "),
            problem.advice.clone(),
            problem.acknowledged.is_some().to_string(),
        ]);
        cells
    }
}

impl Record for ContentionRow {
    const COLUMNS: &'static [&'static str] = &[
        "deployment",
        "db",
        "name",
        "waiting",
        "waiters_exact",
        "longest_wait_since",
        "longest_wait_since_exact",
        "held_since",
        "held_since_exact",
        "acquisitions",
        "waits",
        "waits_given_up",
        "waiting_ms",
        "longest_wait_ms",
        "holds",
        "holds_lost",
        "hold_p50_ms",
        "hold_p99_ms",
        "longest_hold_ms",
    ];

    fn cells(&self) -> Vec<String> {
        let hour = &self.last_hour;
        let mut cells = place(&self.id);
        cells.extend([self.waiting().to_string(), self.is_exact().to_string()]);
        cells.extend(since(self.longest_wait()));
        cells.extend(since(self.held_since()));
        cells.extend([
            hour.acquisitions.to_string(),
            hour.waits.count().to_string(),
            hour.waits_given_up.to_string(),
            hour.waiting_ms.to_string(),
            number(hour.longest_wait_ms()),
            hour.holds.count().to_string(),
            hour.holds_lost.to_string(),
            number(hour.holds.percentile_ms(50)),
            number(hour.holds.percentile_ms(99)),
            number(hour.longest_hold_ms()),
        ]);
        cells
    }
}

impl Record for PastEvent {
    const COLUMNS: &'static [&'static str] =
        &["at", "event", "deployment", "db", "name", "subject", "detail"];

    fn cells(&self) -> Vec<String> {
        let mut cells = vec![instant(self.at), self.event.clone()];
        cells.extend(place(&self.lock));
        cells.extend([self.subject.clone(), self.detail.clone().unwrap_or_default()]);
        cells
    }
}

impl Record for HeldLock {
    const COLUMNS: &'static [&'static str] = &[
        "deployment",
        "db",
        "name",
        "holder",
        "held_since",
        "held_since_exact",
        "ended_at",
        "ended",
        "problems",
    ];

    fn cells(&self) -> Vec<String> {
        let problems = self.problems.iter().map(|p| format!("{} {}", p.problem, p.certainty));
        let problems: Vec<String> = problems.collect();
        let mut cells = place(&self.lock);
        cells.push(self.hold.id.clone());
        cells.extend(since(Some(self.hold.since)));
        cells.extend([
            self.hold.to.map(instant).unwrap_or_default(),
            number(self.hold.ended.map(PastEnding::as_str)),
            problems.join("; "),
        ]);
        cells
    }
}

#[cfg(test)]
mod tests {
    use redisson::{ClientId, HolderId};

    use super::*;
    use crate::archive::ProblemThen;
    use crate::model::contention::{Longest, Tally};
    use crate::model::types::{
        ClientView, Ending, Evidence, PastHoldView, ProblemView, WaiterView,
    };
    use crate::query::fixtures::{acknowledged, lock, published};
    use crate::query::{Filter, Listed, LockRow};

    #[test]
    fn nothing_runs_as_a_formula_and_nothing_breaks_out_of_its_cell() {
        for (text, safe) in [
            ("orders:42", "orders:42"),
            ("=1+1", "\"'=1+1\""),
            ("+49", "\"'+49\""),
            ("-1", "\"'-1\""),
            ("@SUM(A1)", "\"'@SUM(A1)\""),
            ("\t=1", "\"'\t'=1\""),
            ("x;=1;y", "\"x;'=1;y\""),
            ("x; @A1", "\"x; '@A1\""),
            ("a\n-1", "\"a\n'-1\""),
            ("a;\"=1", "\"a;\"\"'=1\""),
            ("\"\"=1", "\"\"\"\"\"'=1\""),
            ("a-b;c=d", "\"a-b;c=d\""),
            ("a,b", "\"a,b\""),
            ("say \"x\"", "\"say \"\"x\"\"\""),
            ("two\nlines", "\"two\nlines\""),
            ("", ""),
        ] {
            assert_eq!(cell(text), safe);
        }
    }

    async fn written<T: Record>(rows: Vec<T>, total: Total) -> String {
        let body = response("x", rows, total).into_body();
        let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    const EXPECTED: [&str; 8] = [
        "deployment=main db=0 name=\"'=cmd\" state=held confirmed=true kind=lock \
            holders=\"285475da-9152-4c83-822a-67ee2f116a79:52 x2 lock\" \
            held_since=1970-01-01T00:16:40.000Z held_since_exact=true ttl_ms=30000 \
            observed_at=1970-01-01T00:17:40.000Z lease_ms=90000 renewed=true waiting=3 \
            waiters_exact=true problems=\"leaked certain\" acknowledged=leaked",
        "deployment=main id=285475da-9152-4c83-822a-67ee2f116a79 holds=1 with_problems=0 \
            waits=0 oldest=1970-01-01T00:16:40.000Z oldest_exact=true host=web-7 pid=41 \
            process=java address=10.0.0.7 alive=false verified=true by=instance processes=0 \
            gone=0",
        "deployment=main db=0 name=\"'=cmd\" holders=285475da-9152-4c83-822a-67ee2f116a79:52 \
            held_since=1970-01-01T00:16:40.000Z held_since_exact=true blocks=3 locks=1",
        "deployment=main problem=leaked certainty=certain since=1970-01-01T00:00:00.000Z \
            locks=1 first_lock=\"'=cmd\" owner=285475da-9152-4c83-822a-67ee2f116a79 waiting=3 \
            acknowledged=true advice=look deployments=main",
        "deployment=main db=0 name=\"'=cmd\" problem=leaked certainty=certain \
            since=1970-01-01T00:00:00.000Z evidence=\"1970-01-01T00:17:30.000Z poll: seen\" \
            advice=look acknowledged=true",
        "deployment=main db=0 name=\"'=cmd\" waiting=3 waiters_exact=true \
            longest_wait_since=1970-01-01T00:17:10.000Z longest_wait_since_exact=false \
            held_since=1970-01-01T00:16:40.000Z held_since_exact=true acquisitions=5 waits=0 \
            waits_given_up=7 waiting_ms=8 longest_wait_ms=10 holds=0 holds_lost=6 hold_p50_ms= \
            hold_p99_ms= longest_hold_ms=9",
        "at=1970-01-01T00:16:40.000Z event=ended deployment=main db=0 name=a subject=x:1 \
            detail=released",
        "deployment=main db=0 name=a holder=x:1 held_since=1970-01-01T00:16:40.000Z \
            held_since_exact=true ended_at=1970-01-01T00:17:40.000Z ended=released \
            problems=\"leaked certain\"",
    ];

    /// Returns each heading of a row with its cell.
    async fn pairs<T: Record>(row: T) -> String {
        let text = written(vec![row], Total::Exactly(1)).await;
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
        let [headings, cells] = &lines[..] else { panic!("{text}") };
        assert_eq!(headings.len(), cells.len(), "{text}");
        let pairs = headings.iter().zip(cells).map(|(heading, cell)| format!("{heading}={cell}"));
        pairs.collect::<Vec<_>>().join(" ")
    }

    /// Returns the first row of a list of one lock in trouble, which someone waits for.
    fn first<T: Listed>() -> T {
        let waiter = WaiterView {
            id: "7ee2f116-9152-4c83-822a-285475da0000:9".into(),
            since: Since { at: SteadyMillis(1_030_000), exact: false },
            attempts: Some(1),
            client: None,
        };
        let mut view = lock("=cmd");
        (view.waiting, view.waiters_exact, view.lease_ms) = (3, true, Some(90_000));
        view.renewed = true;
        view.waiters.push(waiter);
        view.holders[0].count = 2;
        view.holders[0].client = Some(Box::new(ClientView {
            addr: Some("10.0.0.7".into()),
            host: Some("web-7".into()),
            pid: Some(41),
            comm: Some("java".into()),
            alive: Some(false),
            verified: Some(true),
            ..ClientView::default()
        }));
        let evidence =
            Evidence { at: SteadyMillis(1_050_000), source: "poll", text: "seen".into() };
        let (evidence, advice) = (vec![evidence], "look".into());
        view.problems.push(ProblemView { evidence, advice, ..acknowledged() });
        let filter = Filter::default();
        T::all(&published([view]), &filter, SteadyMillis(1_060_000)).remove(0)
    }

    #[tokio::test]
    async fn each_heading_has_its_value() {
        let id = lock("a").id;
        let longest = |ms| {
            let (lock, id) = (id.clone(), HolderId::new(ClientId::from_random([1; 16]), 1).into());
            let since = Since { at: SteadyMillis(1), exact: true };
            Some(Box::new(Longest { lock, id, since, ms }))
        };
        let last_hour = Tally {
            acquisitions: 5,
            holds_lost: 6,
            waits_given_up: 7,
            waiting_ms: 8,
            longest_hold: longest(9),
            longest_wait: longest(10),
            ..Tally::default()
        };
        let (at, to) = (SteadyMillis(1_000_000), SteadyMillis(1_060_000));
        let event = PastEvent {
            at,
            event: "ended".into(),
            lock: id.clone(),
            subject: "x:1".into(),
            detail: Some("released".into()),
        };
        let (problem, certainty) = ("leaked".into(), "certain".into());
        let problems = vec![ProblemThen { problem, certainty, since: at, to: None }];
        let (since, ended) = (Since { at, exact: true }, Some(PastEnding::Seen(Ending::Released)));
        let hold = PastHoldView { id: "x:1".into(), since, to: Some(to), ended };
        let rows = [
            pairs(first::<LockRow>()).await,
            pairs(first::<OwnerRow>()).await,
            pairs(first::<BlockerRow>()).await,
            pairs(first::<IncidentRow>()).await,
            pairs(first::<ProblemRow>()).await,
            pairs(ContentionRow { last_hour, ..first() }).await,
            pairs(event).await,
            pairs(HeldLock { lock: id, hold, problems }).await,
        ];
        assert_eq!(rows, EXPECTED);
    }

    #[tokio::test]
    async fn all_rows_come_and_a_cut_is_stated() {
        let rows = |n: usize| (0..n).map(|i| Arc::new(lock(&format!("l{i}")))).collect::<Vec<_>>();
        let whole = written(rows(1_201), Total::Exactly(1_201)).await;
        assert_eq!(whole.lines().count(), 1_202);
        for (total, last) in [
            (Total::Exactly(7), "\"cut: 3 of 7 rows\""),
            (Total::AtLeast(4), "\"cut: 3 of at least 4 rows\""),
            (Total::AtLeast(3), "\"incomplete: the search took too long\""),
        ] {
            assert_eq!(written(rows(3), total).await.lines().last(), Some(last));
        }
    }
}
