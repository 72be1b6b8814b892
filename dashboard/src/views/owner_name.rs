//! Names of owners on pages: service and host if these are known, otherwise the beginning of the id.

use askama::Template;
use askama::filters::HtmlSafe;
use redisson::{ClientId, HolderId};

use super::links;
use crate::model::owner_names::OwnerNames;
use crate::model::types::{ClientView, HolderView, client_of};
use crate::text;

/// The characters of a client's uuid that are shown.
const UUID_PART: usize = 8;
/// The word for the number of an agent's hold.
const GRANT: &str = "grant";
/// The length of a uuid.
const UUID: usize = 36;

/// A holder, waiter or client, short enough for a table.
#[derive(Debug, Template)]
#[template(path = "parts/owner_name.html")]
pub(super) struct OwnerName {
    /// Its name, or its id if it has no name.
    pub(super) text: String,
    /// True if `text` is a name.
    named: bool,
    /// The process, thread or grant.
    detail: Option<String>,
    /// The whole id, with every character visible.
    id: String,
    link: String,
    gone: bool,
    /// The reason why the process is only claimed.
    claimed: Option<&'static str>,
}

impl HtmlSafe for OwnerName {}

impl OwnerName {
    /// Creates the name of a holder of a lock.
    pub(super) fn of_holder(deployment: &str, holder: &HolderView) -> Self {
        Self::new(deployment, &holder.id, holder.client.as_deref())
    }

    /// Creates the name of a holder or waiter with its process.
    pub(super) fn new(deployment: &str, id: &str, client: Option<&ClientView>) -> Self {
        let label = client.and_then(ClientView::label);
        let pid = client.and_then(|client| client.pid).map(|pid| format!("pid {pid}"));
        let gone = client.is_some_and(|client| client.alive == Some(false));
        // The number of a grant means nothing to people, and the title contains the whole id.
        let grant = |unit: &String| unit.starts_with(GRANT) && label.is_some();
        let detail = pid.or_else(|| unit(id).filter(|unit| !grant(unit)));
        let claimed = client.and_then(|client| client.unverified_because);
        Self { gone, detail, claimed, ..Self::made(deployment, id, label) }
    }

    /// Creates the name of an owner that is only remembered.
    pub(super) fn remembered(deployment: &str, id: &str, names: &OwnerNames) -> Self {
        let label = names.name(id).map(|name| name.to_string());
        Self { detail: unit(id), ..Self::made(deployment, id, label) }
    }

    fn made(deployment: &str, id: &str, label: Option<String>) -> Self {
        Self {
            named: label.is_some(),
            text: label.unwrap_or_else(|| text::visible(short_client(client_of(id)).as_bytes())),
            detail: None,
            id: text::visible(id.as_bytes()),
            link: links::owner(deployment, client_of(id)),
            gone: false,
            claimed: None,
        }
    }

    /// Returns the name in plain text.
    pub(super) fn plain(&self) -> String {
        match &self.detail {
            Some(detail) => format!("{} · {detail}", self.text),
            None => self.text.clone(),
        }
    }
}

/// Returns the thread of a Redisson client, or an agent's grant, with the word for it.
pub(super) fn unit(id: &str) -> Option<String> {
    let holder = HolderId::parse(id.as_bytes())?;
    let number = short_number(id.split(':').nth(1)?);
    Some(match holder.looks_like_agent() {
        true => format!("{GRANT} {number}"),
        false => format!("thread {number}"),
    })
}

/// Returns a number, or the end of a long one, since an agent's grants differ at the end.
fn short_number(number: &str) -> String {
    match number.len().checked_sub(6) {
        Some(hidden) if hidden > 4 => format!("…{}", number.get(hidden..).unwrap_or(number)),
        _ => number.to_owned(),
    }
}

/// Returns a client's id, shortened for a table.
pub(super) fn short_client(id: &str) -> String {
    match id.chars().count() {
        UUID => id.chars().take(UUID_PART).collect(),
        _ => id.chars().take(24).collect(),
    }
}

/// Returns a sentence in which the ids of holders are replaced by their names, or shortened. Ids of clients remain.
pub(super) fn with_names(sentence: &str, names: &OwnerNames) -> String {
    let mut out = String::with_capacity(sentence.len());
    let mut rest = sentence;
    while let Some(first) = rest.chars().next() {
        let uuid = rest.split_at_checked(UUID);
        let uuid = uuid.filter(|(uuid, _)| ClientId::parse(uuid.as_bytes()).is_some());
        let Some((uuid, tail)) = uuid else {
            out.push(first);
            rest = rest.get(first.len_utf8()..).unwrap_or_default();
            continue;
        };
        let digits = tail.strip_prefix(':').map_or(0, |number| {
            number.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'-').count()
        });
        let id = rest.split_at_checked(UUID + 1 + digits);
        // The id of an unknown client may begin like one of Redisson's.
        let id = id.filter(|(_, after)| !after.starts_with(char::is_alphanumeric));
        let Some((id, after)) = id.filter(|_| digits > 0) else {
            // A client's id remains, so that people can search for it.
            out.push_str(uuid);
            rest = tail;
            continue;
        };
        let name = names.name(id).map_or_else(|| short_client(uuid), |name| name.to_string());
        out.push_str(&name);
        if let Some(unit) = unit(id) {
            out.push_str(&format!(" ({unit})"));
        }
        rest = after;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: &str = "285475da-9152-4c83-822a-67ee2f116a79";

    #[test]
    fn long_numbers_show_their_end() {
        assert_eq!(short_number("52"), "52");
        assert_eq!(short_number("1234567890"), "1234567890");
        assert_eq!(short_number("1927612615576518676"), "…518676");
        assert_eq!(short_number("-9223372036854775808"), "…775808");
    }

    #[test]
    fn a_thread_and_a_grant_are_called_what_they_are() {
        assert_eq!(unit(&format!("{CLIENT}:52")).as_deref(), Some("thread 52"));
        let grant = format!("{CLIENT}:{}", 1_700_000_000_i64 << 30);
        assert!(unit(&grant).unwrap().starts_with("grant …"), "{:?}", unit(&grant));
        assert_eq!(unit("odd"), None);
    }

    #[test]
    fn sentences_name_owners() {
        let names = OwnerNames::default();
        let sentence = format!("released by {CLIENT}:52, é {CLIENT}");
        let short = format!("released by 285475da (thread 52), é {CLIENT}");
        assert_eq!(with_names(&sentence, &names), short);
        let foreign = format!("held by {CLIENT}:8b2d9f10-0c1d when first read");
        assert_eq!(with_names(&foreign, &names), foreign);
        names.record(CLIENT, "invoices@web-7");
        let named = format!("released by invoices@web-7 (thread 52), é {CLIENT}");
        assert_eq!(with_names(&sentence, &names), named);
        assert_eq!(with_names("nobody: a-b", &names), "nobody: a-b");
    }
}
