//! `lockctl watch`: the live list. Redrawn in a terminal; elsewhere each change is printed as a line.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::time::Duration;

use redis::Value;
use service_kit::clock::wall_millis;
use tokio::time::sleep;

use crate::client::{Agent, Failure};
use crate::output::{self, notice, print};
use crate::reply::{Fields as _, printable};
use crate::{columns, list, table};

/// Moves the cursor to the upper left corner.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K\r\n";
const CLEAR_BELOW: &str = "\x1b[J";
/// The rows and columns of a terminal of unknown size.
const DEFAULT_SIZE: (usize, usize) = (24, 80);

/// Follows the list until a signal ends the process.
///
/// # Errors
/// Fails if standard output is closed.
pub(crate) async fn watch(
    socket: &Path,
    glob: Option<&[u8]>,
    interval: Duration,
    as_json: bool,
) -> io::Result<()> {
    let live = io::stdout().is_terminal() && !as_json;
    let mut agent = None;
    let mut previous = Snapshot::new();
    let mut disconnected = false;
    loop {
        match poll(socket, &mut agent, glob).await {
            Ok(rows) => {
                disconnected = false;
                if live {
                    draw(&rows, None)?;
                } else {
                    let current = snapshot(&rows);
                    print(&changes(&previous, &current, as_json))?;
                    previous = current;
                }
            }
            Err(failure) if live => draw(&[], Some(&failure.to_string()))?,
            // Reported once per outage; the previous rows stay valid until the agent answers again.
            Err(failure) if !disconnected => {
                disconnected = true;
                notice(&failure.to_string());
            }
            Err(_) => {}
        }
        sleep(interval).await;
    }
}

/// Reads the rows, reconnecting after a failure.
async fn poll(
    socket: &Path,
    agent: &mut Option<Agent>,
    glob: Option<&[u8]>,
) -> Result<Vec<Value>, Failure> {
    let connected = match agent {
        Some(connected) => connected,
        None => agent.insert(Agent::connect(socket).await?),
    };
    let rows = list::rows(connected, glob).await;
    if rows.is_err() {
        *agent = None;
    }
    rows
}

fn draw(rows: &[Value], error: Option<&str>) -> io::Result<()> {
    let size = output::terminal_size().filter(|(height, _)| *height > 2);
    let size = size.unwrap_or(DEFAULT_SIZE);
    let mut screen = HOME.to_owned();
    for line in lines(rows, error, size) {
        screen.push_str(&line);
        screen.push_str(CLEAR_LINE);
    }
    screen.push_str(CLEAR_BELOW);
    let mut out = io::stdout().lock();
    out.write_all(screen.as_bytes())?;
    out.flush()
}

/// Returns the lines of a screen of that many rows and columns.
fn lines(rows: &[Value], error: Option<&str>, (height, width): (usize, usize)) -> Vec<String> {
    let cells: Vec<Vec<String>> = rows.iter().map(list::cells).collect();
    let held = rows.iter().filter(|row| row.text("state").as_deref() != Some("waiting")).count();
    let mut lines = match error {
        Some(error) => columns::wrapped(&printable(error.as_bytes()), width),
        None => vec![format!("{held} held, {} waiting", rows.len() - held)],
    };
    lines.extend(table::table(&list::COLUMNS, cells, Some(width)));
    let hidden = lines.len().saturating_sub(height - 1);
    if hidden > 0 {
        lines.truncate(height - 2);
        lines.push(format!("… {} more", hidden + 1));
    }
    lines.iter().map(|line| columns::start(line, width)).collect()
}

/// A row as it is printed when it appears or disappears.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    row: serde_json::Value,
    state: String,
    line: String,
}

/// The rows by a unique key: the holder id, or the lock and session of a waiter.
type Snapshot = BTreeMap<String, Entry>;

fn snapshot(rows: &[Value]) -> Snapshot {
    let mut snapshot = Snapshot::new();
    for row in rows {
        let cell = |key: &str| row.bytes(key).map(printable).unwrap_or_default();
        let cells = list::cells(row);
        let [.., pid, uid, session, who] = cells.as_slice() else { continue };
        let (lock, state) = (cell("lock"), cell("state"));
        let line =
            format!("{lock} {} pid={pid} user={uid} session={session} who={who}", cell("kind"));
        let holder = cell("holder");
        let mut key = if holder.is_empty() { format!("waiting {lock} {session}") } else { holder };
        // Several waits of one session have the same key.
        while snapshot.contains_key(&key) {
            key.push('+');
        }
        snapshot.insert(key, Entry { row: table::json(row), state, line });
    }
    snapshot
}

fn changes(previous: &Snapshot, current: &Snapshot, as_json: bool) -> Vec<String> {
    let removed = previous.iter().filter(|(key, _)| !current.contains_key(*key));
    // A hold keeps its key when the lock delay begins.
    let changed = current
        .iter()
        .filter(|(key, entry)| previous.get(*key).is_none_or(|before| before.state != entry.state));
    let time = std::time::UNIX_EPOCH + Duration::from_millis(wall_millis());
    let time = humantime::format_rfc3339_millis(time).to_string();
    let format = |event: &str, entry: &Entry| {
        if as_json {
            serde_json::json!({"time": time, "event": event, "row": entry.row}).to_string()
        } else {
            format!("{time} {event} {}", entry.line)
        }
    };
    let removed = removed.map(|(_, entry)| {
        format(if entry.state == "waiting" { "waited" } else { "released" }, entry)
    });
    let changed = changed.map(|(_, entry)| format(&entry.state, entry));
    removed.chain(changed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(lock: &str, state: &str, holder: &str, pid: i64) -> Value {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        Value::Map(vec![
            (text("lock"), text(lock)),
            (text("kind"), text("lock")),
            (text("state"), text(state)),
            (text("holder"), text(holder)),
            (text("pid"), Value::Int(pid)),
            (text("uid"), Value::Int(0)),
            (text("session"), text(&format!("s-{pid}"))),
            (text("comm"), text("worker")),
        ])
    }

    #[test]
    fn a_screen_shows_the_whole_error_and_fits_the_terminal() {
        let error = "`注文:42` is not listed: NOPERM this user has no permissions (UNAVAILABLE)";
        let shown = lines(&[], Some(error), (24, 30));
        assert!(shown.iter().all(|line| columns::width(line) <= 30), "{shown:?}");
        let (head, message) = shown.split_last().unwrap();
        assert_eq!((message.join(" "), head.starts_with("LOCK")), (error.to_owned(), true));
        assert_eq!(lines(&[], Some(error), (4, 30)).len(), 3);
        let rows = ["注文:42", "a"].map(|lock| row(lock, "held", "u:1", 7));
        let shown = lines(&rows, None, (24, 30));
        assert_eq!(shown[0], "2 held, 0 waiting");
        assert!(shown[1..].iter().all(|line| columns::width(line) <= 30), "{shown:?}");
    }

    #[test]
    fn each_change_is_printed_once() {
        let one = snapshot(&[
            row("a", "held", "u:1", 7),
            row("a", "waiting", "", 8),
            row("a", "waiting", "", 8),
        ]);
        assert_eq!(one.len(), 3);
        let printed = |previous: &Snapshot, current: &Snapshot| -> Vec<String> {
            let lines = changes(previous, current, false).into_iter();
            lines.filter_map(|line| Some(line.split_once(' ')?.1.to_owned())).collect()
        };
        assert_eq!(printed(&Snapshot::new(), &one).len(), 3);
        assert!(printed(&one, &one).is_empty());
        let two = snapshot(&[row("a", "held", "u:2", 8), row("a", "waiting", "", 8)]);
        assert_eq!(
            printed(&one, &two),
            [
                "released a lock pid=7 user=0 session=s-7 who=worker",
                "waited a lock pid=8 user=0 session=s-8 who=worker",
                "held a lock pid=8 user=0 session=s-8 who=worker"
            ]
        );
        let delayed = snapshot(&[row("a", "delayed", "u:2", 8), row("a", "waiting", "", 8)]);
        assert_eq!(
            printed(&two, &delayed),
            ["delayed a lock pid=8 user=0 session=s-8 who=worker"],
            "the lock delay has begun, and the lock is not released"
        );
        let json: serde_json::Value = serde_json::from_str(&changes(&one, &two, true)[0]).unwrap();
        assert_eq!(json["event"], "released");
        assert_eq!((&json["row"]["lock"], &json["row"]["pid"]), (&"a".into(), &7.into()));
    }
}
