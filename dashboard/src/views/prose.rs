//! Sentences that contain names and commands.

use std::borrow::Cow;

use askama::Template;
use askama::filters::HtmlSafe;

use super::owner_name::with_names;
use crate::model::owner_names::OwnerNames;

/// A sentence in which text between two backticks is shown as code.
#[derive(Debug, Clone, Template)]
#[template(path = "parts/prose.html")]
pub(super) struct Prose<'a> {
    text: Cow<'a, str>,
    /// The names that replace the ids of holders outside of code.
    names: Option<&'a OwnerNames>,
}

impl HtmlSafe for Prose<'_> {}

impl<'a, T: Into<Cow<'a, str>>> From<T> for Prose<'a> {
    fn from(text: T) -> Self {
        Self { text: text.into(), names: None }
    }
}

impl<'a> Prose<'a> {
    /// Creates a sentence that shows the names of owners.
    pub(super) fn naming(text: impl Into<Cow<'a, str>>, names: &'a OwnerNames) -> Self {
        Self { text: text.into(), names: Some(names) }
    }

    /// Returns the parts of the sentence in order, each with true if it is code.
    fn parts(&self) -> Vec<(bool, Cow<'_, str>)> {
        let words = |text| match self.names {
            Some(names) => Cow::Owned(with_names(text, names)),
            None => Cow::Borrowed(text),
        };
        let mut parts = Vec::new();
        let mut rest = &*self.text;
        while let Some((before, after)) = rest.split_once('`')
            && let Some((code, after)) = after.split_once('`')
        {
            parts.extend([(false, words(before)), (true, Cow::Borrowed(code))]);
            rest = after;
        }
        parts.push((false, words(rest)));
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_between_backticks_is_code() {
        let html = |text: &str| Prose::from(text).render().unwrap();
        assert_eq!(html("run `a b`, then `c`."), "run <code>a b</code>, then <code>c</code>.");
        assert_eq!(html("`<b>`<i>"), "<code>&#60;b&#62;</code>&#60;i&#62;");
        assert_eq!(html("one ` alone"), "one ` alone");
        assert_eq!(html("`a` and b`"), "<code>a</code> and b`");
    }

    #[test]
    fn owners_are_named_outside_of_code_and_their_names_are_no_code() {
        let client = "285475da-9152-4c83-822a-67ee2f116a79";
        let names = OwnerNames::default();
        names.record(client, "a`b@web-7");
        let text = format!("count 0 of {client}:52, field `{client}:52`");
        let html = Prose::naming(text, &names).render().unwrap();
        let expected = format!("count 0 of a`b@web-7 (thread 52), field <code>{client}:52</code>");
        assert_eq!(html, expected);
    }
}
