//! Checks that the top-level modules of the crate import one another in one direction only.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

type Graph = BTreeMap<String, BTreeSet<String>>;

/// Adds the imports of all source files of a folder to the graph.
fn read(root: &Path, folder: &Path, graph: &mut Graph) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read(root, &path, graph);
            continue;
        }
        let first = path.strip_prefix(root).unwrap().iter().next().unwrap();
        let module = first.to_str().unwrap().trim_end_matches(".rs").to_owned();
        // lockctl is a program of its own, and the roots import everything.
        if ["lib", "lockctl", "main", "module_graph"].contains(&module.as_str()) {
            continue;
        }
        let source = std::fs::read_to_string(&path).unwrap();
        let product = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let imports = graph.entry(module.clone()).or_default();
        for import in product.split("crate::").skip(1) {
            let name: String =
                import.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            if !name.is_empty() && name != module {
                imports.insert(name);
            }
        }
    }
}

#[test]
fn modules_have_no_circular_imports() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut graph = Graph::new();
    read(&root, &root, &mut graph);
    assert!(graph["types"].is_empty(), "the ground imports nothing: {:?}", graph["types"]);
    assert!(graph["core"].len() > 2, "the sources were not read: {graph:?}");
    // Removes modules whose imports are all removed; a circle is what remains.
    while let Some(leaf) = graph
        .iter()
        .find(|(_, imports)| imports.iter().all(|import| !graph.contains_key(import)))
        .map(|(module, _)| module.clone())
    {
        graph.remove(&leaf);
    }
    assert!(graph.is_empty(), "circular imports: {graph:#?}");
}
