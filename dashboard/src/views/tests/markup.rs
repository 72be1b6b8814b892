//! Tests of escaping, and of the rules that the content security policy and the script rely on.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::ROOT;
use super::every::all;
use super::fixtures::hostile_names;
use crate::model::types::ProblemKind;
use crate::views::assets;

/// A start tag: its name and its attributes.
#[derive(Debug)]
struct Tag {
    name: String,
    attributes: Vec<(String, String)>,
}

/// Reads a page's tags like a browser, but strictly: a page with careless markup fails.
fn tags(html: &str) -> Vec<Tag> {
    let mut tags = Vec::new();
    let mut rest = html;
    while let Some((_, after)) = rest.split_once('<') {
        rest = after;
        if rest.starts_with(['/', '!']) {
            continue;
        }
        let name_end = rest.find(|c: char| !c.is_ascii_alphanumeric()).expect("a tag ends");
        assert!(name_end > 0, "a stray < before {rest:.40}");
        let (name, after) = rest.split_at(name_end);
        let name = name.to_owned();
        rest = after;
        let mut attributes = Vec::new();
        loop {
            rest = rest.trim_start();
            if let Some(after) = rest.strip_prefix('>').or_else(|| rest.strip_prefix("/>")) {
                rest = after;
                break;
            }
            let end = rest.find(['=', '>', ' ', '/']).expect("an attribute ends");
            let (attribute, after) = rest.split_at(end);
            let attribute = attribute.to_owned();
            assert!(
                !attribute.is_empty()
                    && attribute.chars().all(|c| c.is_ascii_lowercase()
                        || c == '-'
                        || c.is_ascii_digit()
                        || c == 'B'),
                "odd attribute {attribute:?} in <{name}>"
            );
            rest = after;
            let value = match rest.strip_prefix("=\"") {
                None => String::new(),
                Some(quoted) => {
                    let (value, after) = quoted.split_once('"').expect("a value ends");
                    rest = after;
                    assert!(rest.starts_with([' ', '>', '/', '\n']), "a value runs on: {rest:.40}");
                    assert!(!value.contains('<'), "an unescaped < in {attribute}");
                    value.to_owned()
                }
            };
            attributes.push((attribute, value));
        }
        tags.push(Tag { name, attributes });
    }
    tags
}

#[test]
fn no_name_becomes_markup() {
    for (page, html) in all() {
        let tags = tags(&html);
        let scripts: Vec<&Tag> = tags.iter().filter(|tag| tag.name == "script").collect();
        // A visitor who is not let in gets no live page.
        assert_eq!(scripts.len(), if page == "denied" { 1 } else { 5 }, "{page}");
        assert!(!html.contains("<script>"), "{page}");
        assert!(tags.iter().all(|tag| tag.name != "img" && tag.name != "style"), "{page}");
        for tag in &tags {
            for (attribute, value) in &tag.attributes {
                assert!(attribute != "style" && !attribute.starts_with("on"), "{page}: {tag:?}");
                if matches!(attribute.as_str(), "href" | "src" | "action") {
                    let own = value.starts_with('/') && !value.starts_with("//");
                    assert!(own || value == "#main", "{page}: {value}");
                }
            }
        }
    }
}

#[test]
fn problems_have_names_for_people() {
    let word = ProblemKind::RenewalOverdue.as_str();
    let texts = |html: &str| {
        let texts = html.split('<').filter_map(|part| part.split_once('>'));
        texts.map(|(_, text)| text.to_owned()).collect::<Vec<_>>()
    };
    let mut named = BTreeSet::new();
    for (page, html) in all() {
        for text in texts(&html) {
            assert!(!text.contains(word), "{page}: {text}");
            if text.contains(ProblemKind::RenewalOverdue.name()) {
                named.insert(page.clone());
            }
        }
    }
    for page in ["healthy", "history", "lock-overdue", "overview", "problems"] {
        assert!(named.contains(page), "{page} of {named:?}");
    }
}

#[test]
fn an_empty_table_says_why() {
    let says = |page: &str| match page {
        "empty-none" => "No lock is held",
        "empty-denied" => "the user lacks <code>scan</code>",
        "empty-filter" => "Nothing currently known matches <code>owner:nobody age:&#62;5m</code>",
        "empty-bad-filter" => "Invalid filter",
        "empty-scanning" => "431,200 of about 1,000,000 keys",
        "empty-partly" => {
            "as far as is known</h2><p>But the picture is not complete:</p><p>main: 1 slot"
        }
        "empty-down" => "Nothing has been seen yet",
        "empty-lost" => "When it was last read, there was nothing to show here",
        other => panic!("no text for {other}"),
    };
    let empty: Vec<_> = all().into_iter().filter(|(name, _)| name.starts_with("empty-")).collect();
    assert_eq!(empty.len(), 8);
    for (page, html) in empty {
        let foot = html.split("id=\"foot\"").nth(1).unwrap();
        assert!(foot.contains(says(&page)), "{page}: {foot}");
    }
}

#[test]
fn hidden_characters_are_shown() {
    let odd = |c: char| c != '\n' && (c.is_control() || redisson::name::is_invisible(c));
    for (page, html) in all() {
        assert_eq!(html.chars().find(|&c| odd(c)), None, "{page}");
    }
    let (_, page) = all().into_iter().find(|(name, _)| name == "hostile").unwrap();
    for shown in [
        "user\\u{202e}nimda\\u{202c}\\u{200b}",
        "line\\r\\nbreak\\ttab\\u{0}zero",
        "\\xff\\xfe\\xc3(bytes",
    ] {
        assert!(page.contains(shown), "{shown}");
    }
    assert_eq!(page.matches("<tr id=").count(), hostile_names().len());
}

fn templates() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(ROOT).join("templates")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push((path.clone(), std::fs::read_to_string(path).unwrap()));
            }
        }
    }
    assert!(found.len() > 10);
    found
}

#[test]
fn templates_leave_nothing_unescaped_or_inline() {
    for (path, text) in templates() {
        let path = path.display();
        assert!(path.to_string().ends_with(".html"), "{path}: only .html is escaped");
        for lifting in ["|safe", "| safe", "|escape", "| escape", "{% filter"] {
            assert!(!text.contains(lifting), "{path}: nothing may lift escaping");
        }
        for inline in [" style=", " onclick", " onload", " on", "javascript:", "<style"] {
            let found = match inline {
                " on" => text.split(" on").skip(1).any(|after| {
                    after.split_once('=').is_some_and(|(name, _)| {
                        name.chars().all(|c| c.is_ascii_lowercase()) && name.len() < 14
                    })
                }),
                other => text.contains(other),
            };
            assert!(!found, "{path} has {inline}");
        }
    }
}

/// Returns the quoted text after each occurrence of a call.
fn arguments<'a>(script: &'a str, call: &str) -> BTreeSet<&'a str> {
    script
        .split(call)
        .skip(1)
        .filter_map(|after| after.strip_prefix('"')?.split('"').next())
        .collect()
}

#[test]
fn the_scripts_find_what_they_look_for() {
    let script = |name| std::str::from_utf8(assets::find(name).unwrap().body).unwrap();
    let script = &["time.js", "stream.js", "live.js", "page.js"].map(script).concat();
    let text: String = templates().into_iter().map(|(_, text)| text).collect();

    let ids = arguments(script, "byId(");
    assert!(ids.len() >= 8, "{ids:?}");
    for id in ids {
        assert!(text.contains(&format!("id=\"{id}\"")), "no element has the id {id}");
    }
    let mut selectors = arguments(script, "querySelector(");
    selectors.extend(arguments(script, "querySelectorAll("));
    selectors.extend(arguments(script, "closest?.("));
    assert!(selectors.len() >= 6, "{selectors:?}");
    for selector in selectors {
        for part in selector.split_whitespace() {
            let (element, class) = part.split_once('.').unwrap_or((part, ""));
            let (element, attribute) = element.split_once('[').unwrap_or((element, ""));
            if !class.is_empty() {
                let has = text.split("class=\"").skip(1).any(|after| {
                    after
                        .split('"')
                        .next()
                        .unwrap()
                        .split([' ', '{', '}'])
                        .any(|word| word == class)
                });
                assert!(has, "no element has the class {class}");
            }
            if !attribute.is_empty() {
                let attribute = attribute.trim_end_matches(']');
                assert!(text.contains(&format!(" {attribute}=")), "no element has {attribute}");
            }
            if !element.is_empty() {
                assert!(text.contains(&format!("<{element}")), "there is no <{element}>");
            }
        }
    }
}

#[test]
fn ids_are_unique() {
    for (page, html) in all() {
        let mut seen = BTreeSet::new();
        for tag in tags(&html) {
            for (_, id) in tag.attributes.into_iter().filter(|(name, _)| name == "id") {
                assert!(seen.insert(id.clone()), "{page} has two of {id}");
            }
        }
    }
}

#[test]
fn every_file_is_served_as_it_is_named() {
    for asset in assets::ASSETS {
        assert_eq!(assets::find(asset.name).unwrap().body, asset.body);
        assert!(!asset.body.is_empty(), "{}", asset.name);
    }
    assert!(assets::find("../Cargo.toml").is_none());
    let (_, page) = all().remove(0);
    for asset in assets::ASSETS {
        let address = format!("\"/static/{}?v={}\"", asset.name, asset.version());
        assert!(page.contains(&address), "{address}");
    }
}
