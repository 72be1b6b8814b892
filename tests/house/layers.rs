//! Tests of the layers: each module belongs to a layer and imports only from layers below.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::graph::circles;
use super::imports::Crate;
use super::project;

/// The layers of a crate from the lowest up, each with its modules. The crate's root is above them all.
struct Plan {
    root: &'static str,
    layers: &'static [&'static [&'static str]],
}

const PLANS: [Plan; 5] = [
    Plan {
        root: "redisson/src/lib.rs",
        layers: &[
            &["holder", "kind", "lease", "slot"],
            &["name", "shape"],
            &["group", "keys", "signed_entry"],
            &["script"],
            &["monitor"],
        ],
    },
    Plan {
        root: "service-kit/src/lib.rs",
        layers: &[
            &["clock", "memory", "open_files", "settings", "shutdown", "signing", "stderr"],
            &["redis"],
            &["trace"],
            &["metrics", "telemetry"],
            &["http"],
        ],
    },
    Plan {
        root: "agent/src/lib.rs",
        layers: &[
            &["collections"],
            &["identity", "protocol", "thread_time", "types"],
            &["journal", "policy", "systemd"],
            &["core", "state"],
            &["http", "metrics"],
            &["runtime", "server"],
            &["config", "holder_registry"],
        ],
    },
    Plan {
        root: "agent/src/lockctl/main.rs",
        layers: &[
            &["columns", "duration", "exit", "runtime", "signals"],
            &["reply"],
            &["client", "output", "table"],
            &["cli", "holders", "list"],
            &["show", "tail", "watch"],
            &["exec", "verbs"],
        ],
    },
    Plan {
        root: "dashboard/src/lib.rs",
        layers: &[
            &["schema"],
            &["access", "clock", "metrics", "redis", "text"],
            &["model"],
            &["archive", "config", "query"],
            &["release", "sources"],
            &["doctor", "exporter", "rules", "views"],
            &["http"],
        ],
    },
];

/// The maximum number of files in an import circle inside one folder.
const LARGEST_CIRCLE: usize = 7;

#[test]
fn every_module_imports_only_from_layers_below_its_own() -> Result<()> {
    for plan in &PLANS {
        let parsed = Crate::read(&project().join(plan.root))?;
        let planned: BTreeSet<&str> = plan.layers.iter().copied().flatten().copied().collect();
        assert_eq!(planned, parsed.top_level(), "the modules of {}", plan.root);
        let layer = |module: &str| plan.layers.iter().position(|layer| layer.contains(&module));
        let climbs: BTreeSet<String> = parsed
            .edges()
            .iter()
            .filter_map(|(from, to)| Some((from.first()?, to.first().map_or("the root", |to| to))))
            .filter(|(from, to)| from != to && layer(to).is_none_or(|to| layer(from) <= Some(to)))
            .map(|(from, to)| format!("{from} -> {to}"))
            .collect();
        assert!(climbs.is_empty(), "{} imports upwards: {climbs:?}", plan.root);
    }
    Ok(())
}

#[test]
fn no_circle_of_imports_leaves_its_folder_or_grows_large() -> Result<()> {
    let mut bad = String::new();
    for plan in &PLANS {
        let root = project().join(plan.root);
        let edges = Crate::read(&root)?.file_edges();
        for circle in circles(&edges) {
            let folders: BTreeSet<PathBuf> =
                circle.iter().map(|file| folder(&root, file)).collect();
            if !nested(&folders) || circle.len() > LARGEST_CIRCLE {
                bad += &format!("{}: {} files in {folders:?}\n", plan.root, circle.len());
                for (from, to) in &edges {
                    if circle.contains(from) && circle.contains(to) {
                        bad += &format!("    {} -> {}\n", from.display(), to.display());
                    }
                }
            }
        }
    }
    assert!(bad.is_empty(), "circles of imports:\n{bad}");
    Ok(())
}

/// Returns whether each folder lies in the previous one, as a submodule's folder lies in its parent's.
fn nested(folders: &BTreeSet<PathBuf>) -> bool {
    folders.iter().zip(folders.iter().skip(1)).all(|(outer, inner)| inner.starts_with(outer))
}

/// Returns the folder that a file belongs to: that of its submodules or, without any, the one that it lies in.
fn folder(root: &Path, file: &Path) -> PathBuf {
    let of_submodules = file.with_extension("");
    let has_submodules = root.parent().is_some_and(|top| top.join(&of_submodules).is_dir());
    let lies_in = || file.parent().unwrap_or(file).to_owned();
    if has_submodules { of_submodules } else { lies_in() }
}

#[test]
fn imports_are_seen_through_groups_paths_and_re_exports() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let write = |file: &str, text: &str| std::fs::write(folder.path().join(file), text);
    write("lib.rs", "mod a; mod b; mod c; #[cfg(test)] mod t;")?;
    write("a.rs", "pub use crate::b::Thing; pub struct Own;")?;
    write("b.rs", "pub struct Thing; #[cfg(test)] mod tests { use crate::c::Never; }")?;
    write("c.rs", "use crate::{a::{Own, Thing}}; fn f(_: super::a::Own) {}")?;
    let edges = Crate::read(&folder.path().join("lib.rs"))?.file_edges();
    let edges: Vec<String> =
        edges.iter().map(|(from, to)| format!("{} -> {}", from.display(), to.display())).collect();
    assert_eq!(edges, ["c.rs -> a.rs", "c.rs -> b.rs"]);
    Ok(())
}
