//! Tests of the words of comments, messages and documents: plain statements in the terms of the field.

use std::path::Path;

use anyhow::Result;

use super::{files, project, rust_files};

/// Openings of comments that ask instead of stating: `/// Which.`
const QUESTIONS: [&str; 9] =
    ["What", "Who", "Whose", "Which", "Whether", "When", "Where", "How", "Until when"];

/// The number of comments that may start this way, per thousand lines of a crate.
const ALLOWED: usize = 4;

/// Words that confuse outside readers, with a plain one for each.
const DIALECT: [(&str, &str); 14] = [
    ("all the same", "anyway"),
    ("anew", "again"),
    ("to be had", "available"),
    ("none where", "`None` if"),
    ("whoever", "a client that"),
    ("for ever", "forever"),
    ("of itself", "itself"),
    ("is no good", "is invalid"),
    ("parted by", "separated by"),
    ("goes on", "continues"),
    ("expected such as", "expected, for example,"),
    ("explicit lease", "fixed lease"),
    ("the case that", "the case where"),
    ("somebody", "someone"),
];

/// The folders whose texts people read, each with the extension of its files.
const READ: [(&str, &str); 6] = [
    ("redisson/src", "rs"),
    ("service-kit/src", "rs"),
    ("agent/src", "rs"),
    ("dashboard/src", "rs"),
    ("templates", "html"),
    ("docs", "md"),
];

/// Returns the first lines of doc comments.
fn openings(text: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    text.lines().map(str::trim_start).filter_map(move |line| {
        let comment = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        let opens = comment.is_some() && !inside;
        inside = comment.is_some();
        comment.filter(|_| opens).map(str::trim_start)
    })
}

/// Returns whether a text contains these words, not as a part of longer ones.
fn contains(text: &str, words: &str) -> bool {
    text.split(words).collect::<Vec<_>>().windows(2).any(|around| {
        let [left, right] = around else { return false };
        !left.ends_with(char::is_alphanumeric) && !right.starts_with(char::is_alphanumeric)
    })
}

/// Returns whether a text begins with these words, not with a longer one.
fn begins_with(text: &str, words: &str) -> bool {
    text.strip_prefix(words).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
}

#[test]
fn doc_comments_state_rather_than_ask() -> Result<()> {
    for folder in ["redisson/src", "service-kit/src", "agent/src", "dashboard/src", "tests"] {
        let (mut lines, mut found) = (0, Vec::new());
        for file in rust_files(&project().join(folder))? {
            let text = std::fs::read_to_string(&file)?;
            lines += text.lines().count();
            let asks =
                |opening: &&str| QUESTIONS.iter().any(|question| begins_with(opening, question));
            let asking = openings(&text).filter(asks);
            found.extend(asking.map(|opening| format!("{}: {opening}", file.display())));
        }
        assert!(lines > 1000, "{folder} has {lines} lines");
        let list = found.join("\n");
        assert!(found.len() * 1000 < ALLOWED * lines, "{} in {folder}:\n{list}", found.len());
    }
    Ok(())
}

#[test]
fn comments_messages_and_documents_are_in_plain_words() -> Result<()> {
    let mut found = Vec::new();
    for (folder, extension) in READ {
        for file in files(&project().join(folder), extension)? {
            let text = std::fs::read_to_string(&file)?;
            for (words, plain) in DIALECT {
                let has = |line: &&str| contains(line, words);
                found.extend(
                    text.lines().filter(has).map(|line| {
                        format!("{}: \"{words}\" (say \"{plain}\"): {line}", name(&file))
                    }),
                );
            }
        }
    }
    assert!(found.is_empty(), "{} lines:\n{}", found.len(), found.join("\n"));
    Ok(())
}

fn name(file: &Path) -> std::path::Display<'_> {
    file.strip_prefix(project()).unwrap_or(file).display()
}

#[test]
fn questions_are_distinguished_from_statements() {
    let text = "/// Which.\n/// Not an opening: How.\nfn a() {}\n  /// Whenever asked.\nfn b() {}\n//! What it is\n";
    let asking: Vec<&str> = openings(text)
        .filter(|opening| QUESTIONS.iter().any(|question| begins_with(opening, question)))
        .collect();
    assert_eq!(asking, ["Which.", "What it is"]);
}
