//! `/lock?…&format=bundle`: everything known about a lock, in one file for a ticket.

use std::sync::Arc;

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;

use super::api::SourcesJson;
use super::app::App;
use super::error::ApiError;
use super::params::{LockParams, instant, non_blank};
use crate::archive::{EventSearch, Gap, HoldersAt, MAX_EVENTS, PastEvent};
use crate::clock::SteadyMillis;
use crate::model::types::{LockId, LockView, PastHoldView};
use crate::views::Subject;

/// The name of the bundle's format, so that a program can distinguish it from a later one.
const FORM: &str = "lockscope-bundle/1";
/// The default span of timeline and events.
const USUAL_WINDOW: &str = "1h";
/// The longest part of a lock's name that the file's name contains, in characters.
const FILE_NAME: usize = 60;

#[derive(Serialize)]
struct Bundle<'a> {
    form: &'static str,
    #[serde(serialize_with = "crate::clock::as_wall")]
    made_at: SteadyMillis,
    made_by: Option<&'a str>,
    dashboard: BundleHead<'a>,
    lock: &'a LockId,
    /// The current state of the lock; null if it is unknown, and `why` says what was found instead.
    now: Option<&'a LockView>,
    why: Option<String>,
    /// The holder at the requested instant.
    then: Option<HoldersAt>,
    #[serde(serialize_with = "crate::clock::as_wall")]
    from: SteadyMillis,
    /// The holds that ended within the window, newest first, from the history if there is one.
    holds: Vec<PastHoldView>,
    /// The history of that time; null if none is stored (`now` has the latest events).
    history: Option<History>,
    sources: SourcesJson,
}

#[derive(Serialize)]
struct BundleHead<'a> {
    version: &'static str,
    environment: Option<&'a str>,
    note: Option<&'a str>,
    settings: &'a Value,
}

#[derive(Serialize)]
struct History {
    /// The latest events, oldest first.
    events: Vec<PastEvent>,
    /// False if there were more events in that time, or finding all of them would have taken too long.
    complete: bool,
    gaps: Vec<Gap>,
}

/// Returns everything known about a lock as one file.
///
/// # Errors
/// If a parameter is malformed, or the history cannot be read.
pub async fn bundle(
    app: &App,
    mut params: LockParams,
    made_by: Option<&str>,
) -> Result<Response, ApiError> {
    params.window = Some(non_blank(params.window.as_deref()).unwrap_or(USUAL_WINDOW).to_owned());
    let made_at = SteadyMillis::now();
    let at = params.at.take();
    let at = non_blank(at.as_deref()).map(|at| instant("at", at, made_at)).transpose()?;
    let page = app.lock_page("", &params, None).await?;
    if page.past.unreadable {
        let why = "the holds of the lock cannot be read from the history; the log says why";
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why));
    }
    let then = match at {
        Some(at) => {
            let id = page.id.clone();
            Some(app.history(|archive| async move { archive.at(id, at).await }).await?)
        }
        None => None,
    };
    let from = made_at.minus(page.past.millis);
    let history = match &app.archive {
        Some(_) => {
            let id = page.id.clone();
            let search = EventSearch {
                from,
                to: made_at,
                lock: Some(id),
                newest_first: true,
                cursor: None,
                limit: MAX_EVENTS,
            };
            let mut found = app.search_events(search, &Arc::default()).await?;
            found.events.reverse();
            let gaps = app.history(|archive| async move { archive.gaps(from, made_at).await });
            let (events, complete) = (found.events, found.next.is_none());
            Some(History { events, complete, gaps: gaps.await? })
        }
        None => None,
    };
    let (now, why) = match &page.subject {
        Subject::Known(lock) => (Some(&**lock), None),
        Subject::Absent { .. } => {
            (None, Some("There is no such key, and no such lock is remembered.".to_owned()))
        }
        Subject::NoLock(what) | Subject::Unreadable(what) => (None, Some(what.clone())),
    };
    let bundle = Bundle {
        form: FORM,
        made_at,
        made_by,
        dashboard: BundleHead {
            version: page.chrome.version,
            environment: app.about.environment.as_deref(),
            note: app.about.note.as_deref(),
            settings: &app.about.settings,
        },
        lock: &page.id,
        now,
        why,
        then,
        from,
        holds: page.past.holds,
        history,
        sources: SourcesJson::new(app),
    };
    let file = file_name(&page.id, made_at);
    let headers = [(header::CONTENT_DISPOSITION, format!("attachment; filename=\"{file}\""))];
    Ok((headers, Json(bundle)).into_response())
}

/// Returns a file name that is valid on every system.
fn file_name(id: &LockId, at: SteadyMillis) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let name: String = id.name.to_string().chars().take(FILE_NAME).map(plain).collect();
    let at: String = crate::views::rfc3339(at).chars().map(plain).collect();
    format!("lockscope-{name}-{at}.json")
}

#[cfg(test)]
mod tests {
    use redisson::LockName;

    use super::*;

    #[test]
    fn a_file_is_called_after_its_lock_and_nothing_else() {
        let id = |name: &[u8]| LockId {
            deployment: "main".into(),
            db: 0,
            name: LockName::new(name).unwrap(),
        };
        let at = SteadyMillis(1_795_320_000_000);
        assert_eq!(
            file_name(&id(b"orders:42"), at),
            "lockscope-orders_42-2026-11-22T04_00_00_000Z.json"
        );
        for odd in [&b"../../etc/passwd"[..], b"a\"\r\nSet-Cookie: b=c", b"\xff\x00", &[b'x'; 400]]
        {
            let name = file_name(&id(odd), at);
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            assert!(name.chars().all(plain) && name.matches('.').count() == 1, "{name}");
            assert!(name.len() < 120, "{name}");
        }
    }
}
