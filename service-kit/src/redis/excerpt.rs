//! Excerpts of replies for errors.

use std::fmt;

/// Formats the beginning of a reply, for an error: the server determines its length.
pub(crate) fn excerpt(reply: &dyn fmt::Debug) -> String {
    const LENGTH: usize = 200;
    /// Fails once it is full, which ends the formatting.
    struct Excerpt(String);
    impl fmt::Write for Excerpt {
        fn write_str(&mut self, part: &str) -> fmt::Result {
            self.0.extend(part.chars().take(LENGTH - self.0.len().min(LENGTH)));
            if self.0.len() < LENGTH { Ok(()) } else { Err(fmt::Error) }
        }
    }
    let mut excerpt = Excerpt(String::new());
    if fmt::write(&mut excerpt, format_args!("{reply:?}")).is_err() {
        excerpt.0.push('…');
    }
    excerpt.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_of_a_reply_is_short() {
        assert_eq!(excerpt(&7), "7");
        let long = excerpt(&vec![7; 1_000_000]);
        assert!(long.starts_with("[7, 7,") && long.chars().count() <= 201, "{long}");
    }
}
