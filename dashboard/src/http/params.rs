//! Query parameters.

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use axum::http::Uri;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::{Engine as _, alphabet};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::error::ApiError;
use crate::clock::{DAY_MS, SteadyMillis, WallMillis};
use crate::model::types::ProblemKind;
use crate::query::{Listed, MAX_ROWS, Order};
use crate::text::revealed;

/// The parameters of a request, or the error in them.
pub type Params<T> = Result<Query<T>, QueryRejection>;

/// The parameters of a list.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ListParams {
    /// The language of the filter box: words and globs for the name; prefix: owner: host: service: kind: problem: acknowledged:
    /// waiting: db: deployment: age: ttl: confirmed: state:. It matches confirmed locks that are held or waited for or have a
    /// problem, and with confirmed:, state: or a name others too.
    #[serde(default)]
    #[param(required = false, max_length = 512, example = "orders:* kind:lock")]
    pub filter: String,
    /// The values depend on the list.
    pub sort: Option<String>,
    /// One row for each client, or for all clients of a service or host.
    pub by: Option<String>,
    /// The default depends on the sort: names ascending, everything else the most, the worst or the longest first.
    #[param(inline, value_type = Option<Order>)]
    pub order: Option<String>,
    /// `next` or `prev` of a response with the same filter, sort and order.
    #[param(pattern = "^[A-Za-z0-9_-]*$")]
    pub cursor: Option<String>,
    /// The maximum number of rows.
    #[param(value_type = Option<u8>, minimum = 1, maximum = 100, default = 100)]
    pub limit: Option<String>,
    /// `csv`: all rows, up to 100,000, as a file that no spreadsheet reads as formulas. If rows are left out its last line
    /// says so.
    #[param(inline, value_type = Option<Format>)]
    pub format: Option<String>,
    /// `yes`: also report how many locks match by view and by property.
    pub facets: Option<String>,
}

impl ListParams {
    /// Returns the sort, or the list's default.
    ///
    /// # Errors
    /// If the list cannot be sorted by the word.
    pub fn sort<T: Listed>(&self) -> Result<&'static str, ApiError> {
        let Some(word) = non_empty(self.sort.as_deref()) else { return Ok(T::SORTS[0]) };
        T::SORTS.iter().find(|sort| **sort == word).copied().ok_or_else(|| {
            let known = T::SORTS.join(", ");
            ApiError::bad_request(format!("`sort` is not understood: expected one of {known}"))
        })
    }

    /// Returns the grouping, or the list's default.
    ///
    /// # Errors
    /// If the list cannot be grouped by the word.
    pub fn by<T: Listed>(&self) -> Result<&'static str, ApiError> {
        let Some(word) = non_empty(self.by.as_deref()) else { return Ok(T::GROUPINGS[0]) };
        T::GROUPINGS.iter().find(|by| **by == word).copied().ok_or_else(|| {
            ApiError::bad_request(match T::GROUPINGS {
                [_] => "`by` is not a parameter of this list: only owners are grouped".to_owned(),
                known => format!("`by` is not understood: expected one of {}", known.join(", ")),
            })
        })
    }

    /// Returns whether the list's counts by view and by property are requested.
    ///
    /// # Errors
    /// If the word is neither `yes` nor `no`, or the list has no such counts.
    pub fn facets<T: Listed>(&self) -> Result<bool, ApiError> {
        match non_empty(self.facets.as_deref()) {
            None | Some("no") => Ok(false),
            Some("yes") if T::FACETS => Ok(true),
            Some("yes") => Err(ApiError::bad_request("only the list of locks has `facets`")),
            Some(_) => Err(ApiError::bad_request("`facets` must be yes or no")),
        }
    }

    /// Returns the order, or the default for the sort.
    ///
    /// # Errors
    /// If the word is neither `asc` nor `desc`.
    pub fn order<T: Listed>(&self, sort: &str) -> Result<Order, ApiError> {
        order(self.order.as_deref(), T::default_order(sort))
    }

    /// Returns the cursor, or `None` on the first page.
    #[must_use]
    pub fn cursor(&self) -> Option<&str> {
        non_empty(self.cursor.as_deref())
    }
}

/// Reads an order.
///
/// # Errors
/// If the word is neither `asc` nor `desc`.
pub fn order(text: Option<&str>, default: Order) -> Result<Order, ApiError> {
    let Some(word) = non_empty(text) else { return Ok(default) };
    Order::parse(word)
        .ok_or_else(|| ApiError::bad_request("`order` is not understood: expected asc or desc"))
}

/// Returns the instant of a parameter that is required.
///
/// # Errors
/// If it is missing or malformed.
pub fn required_instant(
    key: &str,
    text: Option<&str>,
    now: SteadyMillis,
) -> Result<SteadyMillis, ApiError> {
    let text = text.ok_or_else(|| {
        let why = format!("`{key}` is missing: an instant, such as 2026-11-21T03:12:00Z");
        ApiError::bad_request(why)
    })?;
    instant(key, text, now)
}

/// Returns the text, or `None` if it is empty.
fn non_empty(text: Option<&str>) -> Option<&str> {
    text.filter(|text| !text.is_empty())
}

/// Returns the text, or `None` if it consists of blanks.
#[must_use]
pub fn non_blank(text: Option<&str>) -> Option<&str> {
    text.filter(|text| !text.trim().is_empty())
}

/// The formats of lists in the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[schema(rename_all = "lowercase", default = "json")]
pub enum Format {
    /// One page as JSON.
    Json,
    /// All rows as CSV.
    Csv,
}

impl Format {
    /// Reads the parameter. The default is JSON.
    ///
    /// # Errors
    /// If the word is neither `json` nor `csv`.
    pub fn parse(word: Option<&str>) -> Result<Self, ApiError> {
        match word {
            None | Some("" | "json") => Ok(Self::Json),
            Some("csv") => Ok(Self::Csv),
            Some(_) => Err(ApiError::bad_request("`format` must be json or csv")),
        }
    }
}

/// The parameters of a client's page.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct OwnerParams {
    /// The client's uuid, or the whole holder id if that contains none.
    pub id: Option<String>,
    /// Required if there are several.
    pub deployment: Option<String>,
}

/// Reads the number of rows of a page.
///
/// # Errors
/// If it is not a number within the bounds.
pub fn limit(text: Option<&str>) -> Result<usize, ApiError> {
    limit_up_to(MAX_ROWS, text)
}

/// Parses the number of rows of a page, at most `most`, which is also the default.
///
/// # Errors
/// If it is not a number within the bounds.
pub fn limit_up_to(most: usize, text: Option<&str>) -> Result<usize, ApiError> {
    let Some(text) = text else { return Ok(most) };
    let limit = text.parse().ok().filter(|n| (1..=most).contains(n));
    limit.ok_or_else(|| ApiError::bad_request(format!("`limit` must be from 1 to {most}")))
}

/// The parameters that identify a lock, and those of its page.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct LockParams {
    /// Required if there are several.
    pub deployment: Option<String>,
    /// Required if there are several.
    #[param(value_type = Option<u32>, maximum = 4294967295_u32)]
    pub db: Option<String>,
    /// The lock's name; either this or name64.
    #[param(min_length = 1, example = "orders:42")]
    pub name: Option<String>,
    /// The name in base64 (standard or URL-safe), if it is not UTF-8 or has the character U+FFFD.
    #[param(
        min_length = 2,
        pattern = "^(?:[A-Za-z0-9+/_-]{4})*(?:[A-Za-z0-9+/_-]{2}(?:==)?|[A-Za-z0-9+/_-]{3}=?|[A-Za-z0-9+/_-]{4})$"
    )]
    pub name64: Option<String>,
    /// The instant to show, instead of now.
    #[param(ignore)]
    pub at: Option<String>,
    /// The length of the timeline, such as `1h`.
    #[param(ignore)]
    pub window: Option<String>,
    /// `bundle`: everything known about the lock as one file.
    #[param(ignore)]
    pub format: Option<String>,
}

/// The parameters that identify an incident.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct IncidentParams {
    /// Required if there are several.
    pub deployment: Option<String>,
    /// The incident's problem.
    #[param(inline, required = true, value_type = ProblemKind)]
    pub problem: Option<String>,
    /// The incident's key, as the list of incidents has it.
    #[param(required = true, min_length = 1)]
    pub key: Option<String>,
}

/// The parameters of past events.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct EventsParams {
    /// An instant in UTC: 2026-11-21T03:12:00Z, 03:12 for the latest such time of day, or -15m for that long ago.
    #[param(required = true, example = "-15m")]
    pub from: Option<String>,
    /// An instant in UTC: 2026-11-21T03:12:00Z, 03:12 for the latest such time of day, or -15m for that long ago. The
    /// default is now.
    #[param(example = "-15m")]
    pub to: Option<String>,
    /// Required with a name if there are several.
    pub deployment: Option<String>,
    /// Required with a name if there are several.
    #[param(value_type = Option<u32>, maximum = 4294967295_u32)]
    pub db: Option<String>,
    /// The lock's name. The default is all locks.
    #[param(min_length = 1, example = "orders:42")]
    pub name: Option<String>,
    /// The name in base64 (standard or URL-safe), if it is not UTF-8 or has the character U+FFFD.
    #[param(
        min_length = 2,
        pattern = "^(?:[A-Za-z0-9+/_-]{4})*(?:[A-Za-z0-9+/_-]{2}(?:==)?|[A-Za-z0-9+/_-]{3}=?|[A-Za-z0-9+/_-]{4})$"
    )]
    pub name64: Option<String>,
    /// The language of the page's filter box: words and globs for the name; prefix: owner: host: service: event: problem:
    /// ended: deployment: db:.
    #[param(max_length = 512, example = "orders:* event:ended")]
    pub filter: Option<String>,
    /// Oldest or newest first. The default is `asc`.
    #[param(inline, value_type = Option<Order>)]
    pub order: Option<String>,
    /// `next` or `prev` of a response with the same span, lock, filter and order.
    #[param(pattern = "^(before|after)-[0-9]+-[0-4]-[0-9]+$")]
    pub cursor: Option<String>,
    /// The maximum number of events.
    #[param(value_type = Option<u16>, minimum = 1, maximum = 1000, default = 1000)]
    pub limit: Option<String>,
    /// The instant of the page's time cursor.
    #[param(ignore)]
    pub at: Option<String>,
    /// `csv`: a file that no spreadsheet reads as formulas. If events are left out its last line says so.
    #[param(inline, value_type = Option<Format>)]
    pub format: Option<String>,
}

/// The parameters of the holds at an instant.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct HeldParams {
    /// An instant in UTC: 2026-11-21T03:12:00Z, 03:12 for the latest such time of day, or -15m for that long ago.
    #[param(required = true, example = "-15m")]
    pub at: Option<String>,
    /// Words and globs for the name; prefix: owner: host: service: deployment: db:.
    #[param(max_length = 512, example = "orders:*")]
    pub filter: Option<String>,
    /// `csv`: a file that no spreadsheet reads as formulas. If holds are left out its last line says so.
    #[param(inline, value_type = Option<Format>)]
    pub format: Option<String>,
}

/// Reads an instant in UTC: `2026-11-21T03:12:00Z`, the same without seconds or zone, `03:12` for the latest such time
/// of day, or `-15m` for that long before `now`.
///
/// # Errors
/// If it is none of these.
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
    // Visitors name instants of the wall clock.
    let now = now.to_wall();
    let at = ago(text, now).or_else(|| time_of_day(text, now)).or_else(whole);
    at.map(|at| WallMillis(at).to_steady()).ok_or_else(|| {
        let typed = recognizable(text);
        ApiError::bad_request(format!(
            "`{key}`: invalid time `{typed}`: expected UTC, such as 2026-11-21T03:12:00Z, 03:12, or -15m"
        ))
    })
}

/// Reads an end like [`instant`], but `03:12` is the next such time of day.
///
/// # Errors
/// Like [`instant`].
pub fn end_instant(key: &str, text: &str, now: SteadyMillis) -> Result<SteadyMillis, ApiError> {
    let at = instant(key, text, now)?;
    let is_time_of_day = time_of_day(text.trim(), now.to_wall()).is_some();
    Ok(if is_time_of_day { at.plus(DAY_MS) } else { at })
}

/// Returns the start of a value that is quoted in a sentence, long enough to recognize it.
#[must_use]
pub fn recognizable(text: &str) -> String {
    const ENOUGH: usize = 40;
    let text = text.trim();
    let mut quoted: String = revealed(text).replace('`', "'").chars().take(ENOUGH).collect();
    if text.chars().count() > ENOUGH {
        quoted.push('…');
    }
    quoted
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

/// Returns the bytes of a name in base64, of the standard or the URL-safe alphabet, with or without padding.
pub fn name_of_base64(text: &str) -> Option<Vec<u8>> {
    const ANY_PADDING: GeneralPurposeConfig =
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let standard = text.replace('-', "+").replace('_', "/");
    GeneralPurpose::new(&alphabet::STANDARD, ANY_PADDING).decode(standard).ok()
}

/// Returns the parameters of an address.
///
/// # Errors
/// If they cannot be read.
pub fn of_address<T: for<'de> Deserialize<'de>>(uri: &Uri) -> Result<T, ApiError> {
    understood(Query::try_from_uri(uri))
}

/// Returns the parameters of a request.
///
/// # Errors
/// If they cannot be read.
pub fn understood<T>(params: Params<T>) -> Result<T, ApiError> {
    params.map(|Query(params)| params).map_err(|error| {
        let text = error.body_text();
        let repeated = text.split_once("duplicate field ");
        ApiError::bad_request(match repeated {
            Some((_, name)) => format!("{name} is given more than once"),
            None => text,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_in_each_common_form_of_base64() {
        for text in ["+/+/+w==", "-_-_-w==", "-_-_-w", "+/+/+w"] {
            assert_eq!(name_of_base64(text).as_deref(), Some(&b"\xfb\xff\xbf\xfb"[..]), "{text}");
        }
        for text in ["+/+/+w===", "a", "a b=", "é"] {
            assert_eq!(name_of_base64(text), None, "{text}");
        }
    }

    #[test]
    fn a_repeated_parameter_is_named() {
        for query in ["name=a&db=0&name=b", "name=&name="] {
            let uri: Uri = format!("/api/v1/lock?{query}").parse().unwrap();
            let detail = of_address::<LockParams>(&uri).unwrap_err().detail;
            assert_eq!(detail, "`name` is given more than once");
            assert_eq!(of_address::<EventsParams>(&uri).unwrap_err().detail, detail);
        }
    }

    #[test]
    fn instants_are_read_in_all_their_forms() {
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
            let detail = read(text).unwrap_err().detail;
            assert!(detail.starts_with(&format!("`at`: invalid time `{text}`")), "{detail}");
        }
    }

    #[test]
    fn an_end_at_a_time_of_day_is_the_next() {
        // 2026-11-22T04:00:00Z
        let now = SteadyMillis(1_795_320_000_000);
        for (text, after_ms) in [
            ("06:00", 2 * 3_600_000),
            ("03:00", 23 * 3_600_000),
            ("2026-11-22T05:00:00Z", 3_600_000),
        ] {
            assert_eq!(end_instant("until", text, now).unwrap().0, now.0 + after_ms, "{text}");
        }
    }
}
