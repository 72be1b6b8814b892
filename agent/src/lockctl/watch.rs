//! `lockctl watch`: the list, live. In a terminal it is drawn anew each time; elsewhere each change is a line.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::time::Duration;

use redis::Value;
use rustix::termios::tcgetwinsize;
use service_kit::clock::wall_millis;
use tokio::time::sleep;

use crate::cli::shown;
use crate::client::{Agent, Failure, bytes, field, text};
use crate::{list, table};

/// Moves to the upper left corner; each line then ends by clearing what was behind it, and the last one what is below.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K\r\n";
const CLEAR_BELOW: &str = "\x1b[J";
/// The size of a terminal that does not tell it.
const USUAL: (usize, usize) = (24, 80);

/// Until nobody reads any more, or a signal comes.
///
/// # Errors
/// When standard output is closed.
pub(crate) async fn watch(
    socket: &Path,
    glob: Option<&[u8]>,
    interval: Duration,
    as_json: bool,
) -> io::Result<()> {
    let live = io::stdout().is_terminal() && !as_json;
    let mut agent = None;
    let mut before: Option<Seen> = None;
    let mut away = false;
    loop {
        let rows = look(socket, &mut agent, glob).await;
        match rows {
            Ok(mut rows) => {
                away = false;
                list::oldest_first(&mut rows);
                if live {
                    draw(&rows, None)?;
                } else {
                    let now = seen(&rows);
                    table::print(&changes(before.as_ref(), &now, as_json))?;
                    before = Some(now);
                }
            }
            Err(failure) if live => draw(&[], Some(&failure.to_string()))?,
            // Told once: what was seen before stands until somebody says otherwise.
            Err(failure) if !away => {
                away = true;
                crate::say::say(&failure.to_string());
            }
            Err(_) => {}
        }
        sleep(interval).await;
    }
}

/// The rows, over a connection that is made anew after it has failed.
async fn look(
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

fn draw(rows: &[Value], trouble: Option<&str>) -> io::Result<()> {
    let out = io::stdout();
    let (height, width) = tcgetwinsize(&out)
        .map(|size| (usize::from(size.ws_row), usize::from(size.ws_col)))
        .ok()
        .filter(|(height, width)| *height > 2 && *width > 0)
        .unwrap_or(USUAL);
    let cells: Vec<Vec<String>> = rows.iter().map(list::cells).collect();
    let held = rows
        .iter()
        .filter(|row| field(row, "state").and_then(text).as_deref() != Some("waiting"))
        .count();
    let mut lines = vec![match trouble {
        Some(trouble) => trouble.to_owned(),
        None => format!("{held} held, {} waiting", rows.len() - held),
    }];
    lines.extend(table::table(&list::HEADS, &cells));
    let hidden = lines.len().saturating_sub(height - 1);
    if hidden > 0 {
        lines.truncate(height - 2);
        lines.push(format!("… {} more", hidden + 1));
    }
    let mut screen = HOME.to_owned();
    for line in lines {
        screen.extend(line.chars().take(width));
        screen.push_str(CLEAR_LINE);
    }
    screen.push_str(CLEAR_BELOW);
    let mut out = out.lock();
    out.write_all(screen.as_bytes())?;
    out.flush()
}

/// What is told of a row when it comes or goes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    row: serde_json::Value,
    state: String,
    line: String,
}

/// Rows by what makes each of them unique: its holder id, or who waits for what.
type Seen = BTreeMap<String, Entry>;

fn seen(rows: &[Value]) -> Seen {
    let mut seen = Seen::new();
    for row in rows {
        let cell = |key: &str| field(row, key).and_then(bytes).map(shown).unwrap_or_default();
        let cells = list::cells(row);
        let [.., pid, uid, session, who] = cells.as_slice() else { continue };
        let (lock, state) = (cell("lock"), cell("state"));
        let line =
            format!("{lock} {} pid={pid} user={uid} session={session} who={who}", cell("kind"));
        let mut key = format!("{state} {} {lock} {session}", cell("holder"));
        // Several waits of one session are alike.
        while seen.contains_key(&key) {
            key.push('+');
        }
        seen.insert(key, Entry { row: table::json(row), state, line });
    }
    seen
}

fn changes(before: Option<&Seen>, now: &Seen, as_json: bool) -> Vec<String> {
    let none = Seen::new();
    let before = before.unwrap_or(&none);
    let gone =
        before.iter().filter(|(key, _)| !now.contains_key(*key)).map(|(_, entry)| (false, entry));
    let came =
        now.iter().filter(|(key, _)| !before.contains_key(*key)).map(|(_, entry)| (true, entry));
    let time = std::time::UNIX_EPOCH + Duration::from_millis(wall_millis());
    let time = humantime::format_rfc3339_millis(time).to_string();
    let told = |(came, entry): (bool, &Entry)| {
        let what = match (came, entry.state.as_str()) {
            (true, state) => state.to_owned(),
            (false, "waiting") => "waited".to_owned(),
            (false, _) => "released".to_owned(),
        };
        if as_json {
            serde_json::json!({"time": time, "event": what, "row": entry.row}).to_string()
        } else {
            format!("{time} {what} {}", entry.line)
        }
    };
    gone.chain(came).map(told).collect()
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
    fn each_change_is_told_once() {
        let one = seen(&[
            row("a", "held", "u:1", 7),
            row("a", "waiting", "", 8),
            row("a", "waiting", "", 8),
        ]);
        assert_eq!(one.len(), 3);
        let told = |before: Option<&Seen>, now: &Seen| -> Vec<String> {
            let lines = changes(before, now, false).into_iter();
            lines.filter_map(|line| Some(line.split_once(' ')?.1.to_owned())).collect()
        };
        assert_eq!(told(None, &one).len(), 3);
        assert!(told(Some(&one), &one).is_empty());
        let two = seen(&[row("a", "held", "u:2", 8), row("a", "waiting", "", 8)]);
        assert_eq!(
            told(Some(&one), &two),
            [
                "released a lock pid=7 user=0 session=s-7 who=worker",
                "waited a lock pid=8 user=0 session=s-8 who=worker",
                "held a lock pid=8 user=0 session=s-8 who=worker"
            ]
        );
        let json: serde_json::Value =
            serde_json::from_str(&changes(Some(&one), &two, true)[0]).unwrap();
        assert_eq!(json["event"], "released");
        assert_eq!((&json["row"]["lock"], &json["row"]["pid"]), (&"a".into(), &7.into()));
    }
}
