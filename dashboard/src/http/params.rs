//! What addresses say.

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use axum::http::Uri;
use serde::Deserialize;

use super::error::ApiError;
use crate::clock::{SteadyMillis, WallMillis};
use crate::query::{Listed, MAX_ROWS, Order};

/// The parameters of a list.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct ListParams {
    #[serde(default)]
    pub filter: String,
    pub sort: Option<String>,
    pub order: Option<String>,
    /// The page's first row, from the page before.
    pub cursor: Option<String>,
    /// The number of rows; of the API only.
    pub limit: Option<String>,
    /// `json` or `csv`; of the API only.
    pub format: Option<String>,
}

impl ListParams {
    /// Returns the sort, or the list's default.
    ///
    /// # Errors
    /// If the list cannot be sorted by the word.
    pub fn sort<T: Listed>(&self) -> Result<&'static str, ApiError> {
        let Some(word) = given(self.sort.as_deref()) else { return Ok(T::SORTS[0]) };
        T::SORTS.iter().find(|sort| **sort == word).copied().ok_or_else(|| {
            let known = T::SORTS.join(", ");
            ApiError::bad_request(format!("`sort` is not understood: expected one of {known}"))
        })
    }

    /// Returns the order, or the default for the sort.
    ///
    /// # Errors
    /// If the word is neither `asc` nor `desc`.
    pub fn order<T: Listed>(&self, sort: &str) -> Result<Order, ApiError> {
        let Some(word) = given(self.order.as_deref()) else { return Ok(T::default_order(sort)) };
        Order::parse(word)
            .ok_or_else(|| ApiError::bad_request("`order` is not understood: expected asc or desc"))
    }

    /// Returns the cursor; none on the first page.
    #[must_use]
    pub fn cursor(&self) -> Option<&str> {
        given(self.cursor.as_deref())
    }
}

/// Returns a parameter's value. An empty one counts as absent.
fn given(text: Option<&str>) -> Option<&str> {
    text.filter(|text| !text.is_empty())
}

/// How the API writes a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A page of it, as JSON.
    Json,
    /// All of it, as CSV.
    Csv,
}

impl Format {
    /// Reads the parameter; JSON where there is none.
    ///
    /// # Errors
    /// Where it is neither.
    pub fn parse(word: Option<&str>) -> Result<Self, ApiError> {
        match word {
            None | Some("" | "json") => Ok(Self::Json),
            Some("csv") => Ok(Self::Csv),
            Some(_) => Err(ApiError::bad_request("`format` must be json or csv")),
        }
    }
}

/// What the address of a client's page says.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct OwnerParams {
    /// The client's uuid, or the whole holder where it has none.
    pub id: Option<String>,
    /// Deployment; needed where there are several.
    pub deployment: Option<String>,
}

/// How many rows are asked for.
///
/// # Errors
/// Where that is no number, or out of bounds.
pub fn limit(text: Option<&str>) -> Result<usize, ApiError> {
    let Some(text) = text else { return Ok(MAX_ROWS) };
    let limit = text.parse().ok().filter(|n| (1..=MAX_ROWS).contains(n));
    limit.ok_or_else(|| ApiError::bad_request(format!("`limit` must be from 1 to {MAX_ROWS}")))
}

/// What a lock's address says.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct LockParams {
    /// Deployment; needed where there are several.
    pub deployment: Option<String>,
    /// Database; needed where there are several.
    pub db: Option<String>,
    pub name: Option<String>,
    /// The name in base64, where it is not UTF-8.
    pub name64: Option<String>,
    /// The instant it is asked about, where that is not now.
    pub at: Option<String>,
    /// How far back its picture goes, such as `1h`.
    pub window: Option<String>,
    /// `bundle`: all that is known, as one file; the page's only.
    pub format: Option<String>,
}

/// What the address of past events says.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct EventsParams {
    pub from: Option<String>,
    /// Until when; none: now.
    pub to: Option<String>,
    /// Deployment, where one lock is asked about.
    pub deployment: Option<String>,
    pub db: Option<String>,
    /// The name; none: all locks.
    pub name: Option<String>,
    /// The name in base64.
    pub name64: Option<String>,
    /// `asc`, oldest first (the API's usual order), or `desc`.
    pub order: Option<String>,
    /// `json` or `csv`; the API's only.
    pub format: Option<String>,
}

/// A day, milliseconds.
const DAY_MS: u64 = 86_400_000;

/// Reads an instant in UTC: `2026-11-21T03:12:00Z`, the same without seconds or zone, `03:12` for the latest such time
/// of day, or `-15m` for so long before `now`.
///
/// # Errors
/// Where it is none of these.
pub fn instant(key: &str, text: &str, now: SteadyMillis) -> Result<SteadyMillis, ApiError> {
    let text = text.trim();
    let whole = || {
        let at = if text.len() == "2026-11-21T03:12".len() {
            format!("{text}:00")
        } else {
            text.to_owned()
        };
        let at = humantime::parse_rfc3339_weak(&at).ok()?;
        let since = at.duration_since(std::time::UNIX_EPOCH).ok()?;
        u64::try_from(since.as_millis()).ok()
    };
    // What is named is named by the clock on the wall.
    let now = now.to_wall();
    let at = ago(text, now).or_else(|| time_of_day(text, now)).or_else(whole);
    at.map(|at| WallMillis(at).to_steady()).ok_or_else(|| {
        ApiError::bad_request(format!(
            "`{key}` is not an instant: expected one in UTC, such as 2026-11-21T03:12:00Z, 03:12, or -15m"
        ))
    })
}

fn ago(text: &str, now: WallMillis) -> Option<u64> {
    let before = humantime::parse_duration(text.strip_prefix('-')?).ok()?;
    Some(now.0.saturating_sub(u64::try_from(before.as_millis()).ok()?))
}

fn time_of_day(text: &str, now: WallMillis) -> Option<u64> {
    let mut parts = text.split(':');
    let mut part = |below: u64| {
        let part = parts.next()?;
        let two = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
        part.parse::<u64>().ok().filter(|n| two && *n < below)
    };
    let (hour, minute) = (part(24)?, part(60)?);
    let second = if text.len() > 5 { part(60)? } else { 0 };
    if parts.next().is_some() {
        return None;
    }
    let at = now.0 - now.0 % DAY_MS + ((hour * 60 + minute) * 60 + second) * 1_000;
    Some(if at > now.0 { at.saturating_sub(DAY_MS) } else { at })
}

/// Returns the parameters of an address.
///
/// # Errors
/// If they cannot be read.
pub fn of_address<T: for<'de> Deserialize<'de>>(uri: &Uri) -> Result<T, ApiError> {
    understood(Query::try_from_uri(uri))
}

/// A query's parameters.
///
/// # Errors
/// Where they cannot be read.
pub fn understood<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, ApiError> {
    query.map(|query| query.0).map_err(|error| ApiError::bad_request(error.body_text()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_read_as_people_write_them() {
        // 2026-11-22T04:00:00Z
        let now = SteadyMillis(1_795_320_000_000);
        let read = |text: &str| instant("at", text, now).map(|at| at.0);
        for (text, before_ms) in [
            ("2026-11-22T03:12:00Z", 48 * 60_000),
            ("2026-11-22T03:12:00", 48 * 60_000),
            ("2026-11-22T03:12", 48 * 60_000),
            (" 03:12 ", 48 * 60_000),
            ("03:12:30", 48 * 60_000 - 30_000),
            ("04:00", 0),
            ("04:01", DAY_MS - 60_000),
            ("-15m", 15 * 60_000),
            ("-1h", 3_600_000),
        ] {
            assert_eq!(read(text).unwrap(), now.0 - before_ms, "{text}");
        }
        for text in
            ["", "soon", "3:12", "24:00", "03:60", "03:12:00:00", "15m", "--1h", "-", "03:1x"]
        {
            assert!(read(text).unwrap_err().detail.contains("`at`"), "{text}");
        }
    }
}
