//! A list that has a page: its columns, its rows and its address.

use super::format::AGELESS;
use super::fragments::{Fragments, LiveRow};
use super::row::row_id;
use super::tabs::Tabs;
use super::{Chrome, ListPage, links};
use crate::clock::SteadyMillis;
use crate::query::{Order, Paged};

/// A list that has a page.
pub trait ListView: Paged {
    /// The path of the page.
    const PATH: &'static str;
    const TITLE: &'static str;
    const COLUMNS: &'static [Heading];
    /// The heading and the sentence of an empty list.
    const NOTHING: (&'static str, &'static str);
    /// A sentence about the list. It may be empty.
    const ABOUT: &'static str;

    /// Renders the row: its start tag and each of its cells on separate lines.
    ///
    /// # Errors
    /// If the template fails, which is a bug.
    fn html(&self, chrome: &Chrome, now: SteadyMillis) -> Result<String, askama::Error>;

    /// Renders the row as a stream sends it.
    ///
    /// # Errors
    /// If the template fails, which is a bug.
    fn live_row(&self, chrome: &Chrome, _fragments: &Fragments) -> Result<LiveRow, askama::Error> {
        let id = row_id(self.id());
        Ok(LiveRow { id: id.into(), html: self.html(chrome, AGELESS)?.into(), ttl: None })
    }

    /// Returns the columns of a list that is grouped by one of [`crate::query::Listed::GROUPINGS`].
    fn columns(_by: &str) -> &'static [Heading] {
        Self::COLUMNS
    }

    /// Returns the links above the list, if there are any.
    fn tabs(_page: &ListPage<Self>) -> Option<Tabs> {
        None
    }
}

/// The heading of a column.
#[derive(Debug)]
pub struct Heading {
    pub label: &'static str,
    /// The effect of a click.
    pub hint: &'static str,
    /// The sort that a click selects, if the list can be sorted by this column.
    pub sort: Option<&'static str>,
    pub class: &'static str,
}

impl Heading {
    pub(super) const fn sorted_by(
        label: &'static str,
        sort: &'static str,
        class: &'static str,
    ) -> Self {
        Self { label, hint: "Sort by this", sort: Some(sort), class }
    }

    pub(super) const fn unsorted(label: &'static str, class: &'static str) -> Self {
        Self { label, hint: "", sort: None, class }
    }
}

/// Returns the address of a list with its filter and grouping. Parameters with their default values are left out.
pub(super) fn address<T: ListView>(
    page: &ListPage<T>,
    path: &str,
    (sort, order): (&str, Order),
    more: &[(&str, Option<&str>)],
) -> String {
    let own = [
        ("filter", Some(page.filter.as_str()).filter(|filter| !filter.is_empty())),
        ("by", Some(page.by).filter(|by| T::GROUPINGS[0] != *by)),
        ("sort", Some(sort).filter(|sort| T::SORTS[0] != *sort)),
        ("order", Some(order.as_str()).filter(|_| order != T::default_order(sort))),
    ];
    links::address(path, &[&own, more].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::tests::fixtures::{grouped_owners, locks as locks_page};

    #[test]
    fn addresses_leave_out_defaults() {
        let locks = |filter: &str, sort: &str, order, cursor| {
            let page = ListPage { filter: filter.into(), ..locks_page(Vec::new()) };
            address(&page, "/", (sort, order), &[("cursor", cursor)])
        };
        assert_eq!(locks("", "problems", Order::Descending, None), "/");
        assert_eq!(locks("", "age", Order::Descending, None), "/?sort=age");
        assert_eq!(
            locks("x", "ttl", Order::Descending, Some("c=")),
            "/?filter=x&sort=ttl&order=desc&cursor=c%3D"
        );
        let page = grouped_owners("service");
        let services = address(&page, "/owners", ("holds", Order::Descending), &[]);
        assert_eq!(services, "/owners?by=service");
    }
}
