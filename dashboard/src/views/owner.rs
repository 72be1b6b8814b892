//! `/owner`: one client, with every lock that it holds or waits for.

use askama::Template;
use askama::filters::HtmlSafe;

use super::format::{Ago, Clock};
use super::lock_link::LockLink;
use super::owner_name::{OwnerName, unit};
use super::page::{self, Frame};
use super::picture::{ending_words, lasted_words};
use super::row::{Row, client_words, unverified_remark};
use super::shell::RawKey;
use super::{OwnerPage, links};
use crate::query::with_term;

/// The client's facts at a glance.
#[derive(Template)]
#[template(path = "parts/owner_state.html")]
struct Summary<'a> {
    page: &'a OwnerPage,
    who: Option<String>,
    remark: Option<&'static str>,
    oldest: Option<Ago>,
    alive: Option<bool>,
}

impl HtmlSafe for Summary<'_> {}

impl<'a> Summary<'a> {
    fn new(page: &'a OwnerPage) -> Self {
        let client = page.owner.client.as_ref();
        Self {
            page,
            who: client.map(client_words).filter(|words| !words.is_empty()),
            remark: client.and_then(unverified_remark),
            oldest: page.owner.oldest.map(|since| Ago::since(since, page.chrome.now)),
            alive: client.and_then(|client| client.alive),
        }
    }
}

struct Wait {
    lock: LockLink,
    unit: Option<String>,
    since: Ago,
    attempts: Option<u32>,
}

#[derive(Template)]
#[template(path = "parts/owner_waits.html")]
struct Waits {
    waits: Vec<Wait>,
}

impl HtmlSafe for Waits {}

impl Waits {
    fn new(page: &OwnerPage) -> Self {
        let wait = |(lock, i): &(std::sync::Arc<crate::model::types::LockView>, usize)| {
            let waiter = &lock.waiters[*i];
            Wait {
                lock: LockLink::new(&lock.id, &page.chrome),
                unit: unit(&waiter.id),
                since: Ago::since(waiter.since, page.chrome.now),
                attempts: waiter.attempts,
            }
        };
        Self { waits: page.waits.iter().map(wait).collect() }
    }
}

struct PastHold<'a> {
    lock: LockLink,
    holder: &'a str,
    unit: Option<String>,
    from: Clock,
    lasted: String,
    ended: &'static str,
}

#[derive(Template)]
#[template(path = "parts/owner_past.html")]
struct Past<'a> {
    past: Vec<PastHold<'a>>,
}

impl HtmlSafe for Past<'_> {}

impl<'a> Past<'a> {
    fn new(page: &'a OwnerPage) -> Self {
        let past = page.past.iter().map(|(lock, hold)| PastHold {
            lock: LockLink::new(&lock.id, &page.chrome),
            holder: &hold.id,
            unit: unit(&hold.id),
            from: Clock::new(hold.since.at, page.chrome.now),
            lasted: lasted_words(hold).unwrap_or_default(),
            ended: ending_words(hold),
        });
        Self { past: past.collect() }
    }
}

#[derive(Template)]
#[template(path = "owner.html")]
struct OwnerTemplate<'a> {
    frame: Frame<'a>,
    page: &'a OwnerPage,
    id: RawKey,
    name: String,
    summary: Summary<'a>,
    rows: Vec<Row<'a>>,
    waits: Waits,
    past: Past<'a>,
    /// The addresses of all locks that it holds, as a table, as JSON and as CSV.
    all: String,
    json: String,
    csv: String,
}

/// Renders the page.
///
/// # Errors
/// If the template fails, which is a bug.
pub fn owner_page(page: &OwnerPage) -> Result<String, askama::Error> {
    let chrome = &page.chrome;
    let row = |lock| Row::new(lock, chrome.several_deployments, chrome.several_dbs, chrome.now);
    let place = chrome.several_deployments.then_some(&*page.owner.deployment);
    let filter = links::in_deployment(with_term("", "owner", &page.owner.id), place);
    OwnerTemplate {
        frame: Frame::new(title(page), "owners", chrome),
        page,
        id: RawKey::new("Client", page.owner.id.as_bytes()),
        name: name(page),
        summary: Summary::new(page),
        rows: page.locks.iter().map(|lock| row(lock)).collect(),
        waits: Waits::new(page),
        past: Past::new(page),
        all: links::filtered(&filter),
        json: links::with("/api/v1/locks", &[("filter", filter.clone())]),
        csv: links::with("/api/v1/locks", &[("filter", filter), ("format", "csv".to_owned())]),
    }
    .render()
}

/// Returns the owner's name, or the beginning of its id.
fn name(page: &OwnerPage) -> String {
    OwnerName::remembered(&page.owner.deployment, &page.owner.id, &page.chrome.names).text
}

/// Returns the document's title.
pub(super) fn title(page: &OwnerPage) -> String {
    page::title(&page.chrome, &format!("Owner {}", name(page)))
}

/// Renders the parts outside the table that a stream updates.
pub(super) fn regions(page: &OwnerPage) -> Result<Vec<(&'static str, String)>, askama::Error> {
    Ok(vec![
        ("owner-state", Summary::new(page).render()?),
        ("owner-waits", Waits::new(page).render()?),
        ("owner-past", Past::new(page).render()?),
    ])
}
