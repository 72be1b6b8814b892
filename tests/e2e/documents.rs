//! Checks of the documents against the programs and tests.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use harness::{Agent, Dashboard, RedisServer, project};

#[tokio::test]
async fn every_metric_is_documented() -> Result<()> {
    let redis = RedisServer::start().await?;
    let agent = Agent::start(&redis).await?;
    let dashboard = Dashboard::start(&redis.url(), &[]).await?;
    let mut worker = agent.client().await?;
    worker.call("LOCK a").await?.ok()?;
    worker.call("LOCK").await?;
    let documented = project::text("docs/reference/metrics.md")?;
    for metrics in [agent.metrics().await?, dashboard.metrics().await?] {
        let families = metrics.0.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        for family in families {
            let (name, kind) = family.split_once(' ').unwrap_or_default();
            let mut rows = documented.lines().filter(|line| line.starts_with('|'));
            let row = rows.find(|line| line.contains(&format!("`{name}`")));
            let row = row.unwrap_or_else(|| panic!("{name} is not in metrics.md"));
            assert!(name.starts_with("process_") || row.contains(kind), "{name} is a {kind}");
        }
    }
    Ok(())
}

/// Returns every document of a folder by its path from the top folder, with those of the folders in it except for the top one.
pub(crate) fn documents(folder: &str) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(project::path(folder))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
        if entry.file_type()?.is_dir() && !folder.is_empty() {
            files.extend(documents(&path)?);
        } else if path.ends_with(".md") {
            files.push(path);
        }
    }
    Ok(files)
}

/// Returns the anchors of a document's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    // Every other part is a block of code.
    let prose = text.split("```").step_by(2);
    let titles = prose.flat_map(str::lines).filter(|line| line.starts_with('#'));
    let anchor = |title: &str| {
        let kept = title.trim_start_matches('#').trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.collect::<String>().replace(' ', "-")
    };
    titles.map(anchor).collect()
}

#[test]
fn every_link_points_to_a_file_and_a_heading() -> Result<()> {
    let files = [documents("")?, documents("docs")?, documents("clients")?].concat();
    assert!(files.contains(&"clients/python/README.md".to_owned()), "{files:?}");
    let mut missing = BTreeSet::new();
    for file in &files {
        let text = project::text(file)?;
        let folder = Path::new(file).parent().unwrap_or_else(|| Path::new(""));
        let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in links.filter(|link| !link.contains("://")) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { PathBuf::from(file) } else { folder.join(path) };
            let found = project::path(target);
            let leads = found.exists()
                && (anchor.is_empty()
                    || anchors(&std::fs::read_to_string(found)?).contains(anchor));
            if !leads {
                missing.insert(format!("{file}: {link}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
    Ok(())
}

#[test]
fn the_readme_has_the_redis_user_that_is_tested() -> Result<()> {
    let readme = project::text("README.md")?;
    let user = readme.lines().find(|line| line.starts_with("ACL SETUSER "));
    let user = user.context("no user in README.md")?;
    ensure!(project::text("docs/howto/acl.md")?.lines().any(|line| line == user), "{user}");
    Ok(())
}

/// The index lists every page below its folder, except the runbooks, which alerts link to.
#[test]
fn every_document_is_in_the_index() -> Result<()> {
    let index = project::text("docs/README.md")?;
    let pages = documents("docs")?;
    let pages = pages.iter().filter_map(|page| page.strip_prefix("docs/"));
    let missing: Vec<&str> = pages
        .filter(|page| *page != "README.md" && !page.starts_with("runbooks/"))
        .filter(|page| !index.contains(&format!("]({page})")))
        .collect();
    assert!(missing.is_empty(), "not in docs/README.md: {missing:?}");
    Ok(())
}

/// Appends the sources below a folder to `text`.
fn sources(folder: &Path, text: &mut String) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            sources(&path, text)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(path)?);
        }
    }
    Ok(())
}

#[test]
fn every_documented_log_message_exists() -> Result<()> {
    let mut code = String::new();
    for folder in ["agent/src", "dashboard/src", "service-kit/src"] {
        sources(&project::path(folder), &mut code)?;
    }
    let logs = project::text("docs/reference/logs.md")?;
    let rows: Vec<&str> = logs.lines().filter(|line| line.starts_with("| `")).collect();
    assert!(rows.len() > 15, "{rows:?}");
    for row in rows {
        let messages = row.split(" | ").next().unwrap_or_default().split('`').skip(1).step_by(2);
        for message in messages {
            assert!(code.contains(&format!("\"{message}")), "no such message: {message}");
        }
    }
    Ok(())
}

/// Returns the names in backticks that are paths of tests.
fn named_tests(text: &str) -> BTreeSet<String> {
    let spans = text.split('`').skip(1).step_by(2);
    spans.filter(|span| span.contains("::")).map(str::to_owned).collect()
}

/// Returns the names of the tests in a file.
fn tests_in(file: &Path) -> Result<BTreeSet<String>> {
    let text = std::fs::read_to_string(file)?;
    let after_attribute = text.split("test]\n").skip(1);
    let signatures = after_attribute.filter_map(|rest| rest.lines().next());
    let names = signatures.filter_map(|line| line.split_once("fn ")?.1.split('(').next());
    Ok(names.map(str::to_owned).collect())
}

/// The folder of the tests that documents name.
const TESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/e2e");

/// Returns the named tests that do not exist.
fn missing(named: &BTreeSet<String>) -> Vec<&String> {
    let is_there = |test: &str| {
        let (module, name) = test.rsplit_once("::").unwrap_or_default();
        let file = Path::new(TESTS).join(module.replace("::", "/")).with_extension("rs");
        tests_in(&file).is_ok_and(|tests| tests.contains(name))
    };
    named.iter().filter(|test| !is_there(test)).collect()
}

#[test]
fn every_failure_mode_has_a_test() -> Result<()> {
    let named = named_tests(&project::text("docs/evidence/faults.md")?);
    let missing = missing(&named);
    assert!(missing.is_empty(), "named in faults.md, and there is no such test: {missing:?}");
    let mut unnamed = BTreeSet::new();
    for entry in std::fs::read_dir(Path::new(TESTS).join("faults"))? {
        let file = entry?.path();
        let module = file.file_stem().unwrap_or_default().to_string_lossy();
        let tests = tests_in(&file)?.into_iter().map(|name| format!("faults::{module}::{name}"));
        unnamed.extend(tests.filter(|test| !named.contains(test)));
    }
    assert!(unnamed.is_empty(), "not in faults.md: {unnamed:?}");
    Ok(())
}

/// Each guarantee in docs/evidence/lockctl.md names an existing test.
#[test]
fn every_documented_lockctl_guarantee_has_a_test() -> Result<()> {
    let text = project::text("docs/evidence/lockctl.md")?;
    let table = text.lines().skip_while(|line| !line.starts_with("| asked for |"));
    let rows: Vec<&str> = table.take_while(|line| line.starts_with('|')).skip(2).collect();
    assert!(rows.len() > 15, "{rows:?}");
    for row in &rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        assert_eq!(cells.len(), 3, "{row}");
        assert!(!named_tests(cells[2]).is_empty(), "without a test: {row}");
    }
    let named = named_tests(&rows.join("\n"));
    let missing = missing(&named);
    assert!(missing.is_empty(), "named in lockctl.md, and there is no such test: {missing:?}");
    Ok(())
}

/// Each result in docs/evidence/interop.md names an existing test, for each version and kind.
#[test]
fn the_interop_table_lists_all_tests_versions_and_kinds() -> Result<()> {
    let text = project::text("docs/evidence/interop.md")?;
    let rows = |head: &str| -> Vec<Vec<String>> {
        let table = text.lines().skip_while(|line| !line.starts_with(head));
        let table = table.take_while(|line| line.starts_with('|'));
        let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect();
        table.map(cells).collect()
    };
    let named: BTreeSet<String> = rows("| what | how it is shown | test |")
        .iter()
        .skip(2)
        .filter_map(|cells| cells.iter().rev().nth(1))
        .flat_map(|cell| cell.split(", "))
        .map(|word| word.trim_matches('`').to_owned())
        .collect();
    let modules = project::text("tests/interop/main.rs")?;
    let modules = modules.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
    let modules: BTreeSet<String> =
        modules.filter(|name| !["bed", "sections"].contains(name)).map(str::to_owned).collect();
    assert_eq!(named, modules);

    let makefile = project::text("Makefile")?;
    let versions = makefile.lines().find_map(|line| line.strip_prefix("REDISSON := "));
    let versions: Vec<&str> = versions.unwrap_or_default().split(' ').collect();
    let shown = rows("| kind | ");
    let head: Vec<&str> = shown[0][2..shown[0].len() - 1].iter().map(String::as_str).collect();
    assert_eq!(head, versions);
    let kinds: Vec<&str> = shown[2..].iter().map(|cells| cells[1].as_str()).collect();
    let all = ["`lock`", "`fenced`", "`read`", "`write`", "`fair`", "several at once", "`red`"];
    assert_eq!(kinds, all);
    for row in &shown[2..] {
        let known = |cell: &String| ["passed", "partly", "Redisson has none"].contains(&&**cell);
        assert!(row[2..row.len() - 1].iter().all(known), "{row:?}");
        assert_eq!(row.len(), shown[0].len());
    }
    Ok(())
}
