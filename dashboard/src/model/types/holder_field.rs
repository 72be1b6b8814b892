//! Holders as the fields of a lock's hash.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use redisson::HolderId;
use serde::ser::{Serialize, Serializer};

use crate::text::visible;

/// The field of a holder in a lock's hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HolderField {
    /// An id of Redisson's form.
    Id(HolderId),
    /// A field of another form, as text. Its client is unknown.
    Foreign(Arc<str>),
}

impl HolderField {
    /// Parses the text of a field.
    #[must_use]
    pub fn parse(text: String) -> Self {
        HolderId::parse(text.as_bytes()).map_or_else(|| Self::Foreign(text.into()), Self::Id)
    }

    /// Returns the text of the field as stored.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Id(id) => Cow::Owned(id.to_string()),
            Self::Foreign(field) => Cow::Borrowed(field),
        }
    }

    /// Returns the id, if it has Redisson's form.
    #[must_use]
    pub fn id(&self) -> Option<HolderId> {
        match self {
            Self::Id(id) => Some(*id),
            Self::Foreign(_) => None,
        }
    }

    /// Returns whether the holder is a grant of an agent.
    #[must_use]
    pub fn looks_like_agent(&self) -> bool {
        matches!(self, Self::Id(id) if id.looks_like_agent())
    }
}

impl From<HolderId> for HolderField {
    fn from(id: HolderId) -> Self {
        Self::Id(id)
    }
}

/// Shows every character of the field, for sentences, in which backticks enclose code.
impl fmt::Display for HolderField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Foreign(field) => f.write_str(&visible(field.as_bytes()).replace('`', "\\x60")),
        }
    }
}

impl Serialize for HolderField {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_another_form_begins_no_code_in_a_sentence() {
        let field = HolderField::parse("wor`ker\n1".to_owned());
        assert_eq!((&*field.text(), &*field.to_string()), ("wor`ker\n1", "wor\\x60ker\\n1"));
    }
}
