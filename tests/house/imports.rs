//! The imports of a crate, read from its sources: an edge for each module that another module names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use syn::visit::Visit;
use syn::{Attribute, Item, ItemUse, Meta, UseTree};

/// A module's path from the crate's root; the root's path is empty.
pub(crate) type ModulePath = Vec<String>;

/// A crate's modules without those that exist only in tests.
pub(crate) struct Crate {
    folder: PathBuf,
    modules: BTreeMap<ModulePath, Module>,
}

struct Module {
    file: PathBuf,
    /// The paths that its code names, resolved to the crate's root.
    paths: BTreeSet<Vec<String>>,
    /// The names that its `use` items bring into scope, and the paths behind them.
    aliases: BTreeMap<String, Vec<String>>,
}

impl Crate {
    /// Reads the crate with that root file, and all modules below it.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let folder = root.parent().context("a file without a folder")?.to_owned();
        let mut parsed = Self { folder, modules: BTreeMap::new() };
        parsed.add_file(root, &[])?;
        Ok(parsed)
    }

    fn add_file(&mut self, file: &Path, path: &[String]) -> Result<()> {
        let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let parsed = syn::parse_file(&text).with_context(|| file.display().to_string())?;
        self.add_module(file, path, &parsed.items)
    }

    fn add_module(&mut self, file: &Path, path: &[String], items: &[Item]) -> Result<()> {
        let children: BTreeSet<String> = items
            .iter()
            .filter_map(|item| match item {
                Item::Mod(module) => Some(module.ident.to_string()),
                _ => None,
            })
            .collect();
        let mut reader = Reader {
            module: path,
            children: &children,
            paths: BTreeSet::new(),
            aliases: BTreeMap::new(),
        };
        for item in items {
            match item {
                Item::Mod(module) if is_test_only(&module.attrs) => {}
                Item::Mod(module) => {
                    let name = module.ident.to_string();
                    let child = [path, std::slice::from_ref(&name)].concat();
                    match &module.content {
                        Some((_, items)) => self.add_module(file, &child, items)?,
                        None => self.add_file(&file_of_child(file, &name)?, &child)?,
                    }
                }
                _ => reader.visit_item(item),
            }
        }
        let Reader { paths, aliases, .. } = reader;
        self.modules.insert(path.to_vec(), Module { file: file.to_owned(), paths, aliases });
        Ok(())
    }

    /// Returns the module that a path leads to, through re-exports.
    fn resolve(&self, path: &[String]) -> ModulePath {
        let mut path = path.to_vec();
        // Deeper chains of re-exports do not occur; a loop of them ends here.
        for _ in 0..8 {
            let module = (0..=path.len())
                .rev()
                .map(|length| &path[..length])
                .find(|prefix| self.modules.contains_key(*prefix))
                .unwrap_or_default()
                .to_vec();
            let rest = &path[module.len()..];
            let alias = rest.first().and_then(|name| self.modules[&module].aliases.get(name));
            match alias {
                Some(target) => path = [target.as_slice(), &rest[1..]].concat(),
                None => return module,
            }
        }
        path
    }

    /// Returns each pair of a module and another one that it names.
    pub(crate) fn edges(&self) -> BTreeSet<(ModulePath, ModulePath)> {
        let edges = self.modules.iter().flat_map(|(from, module)| {
            module.paths.iter().map(move |path| (from.clone(), self.resolve(path)))
        });
        edges.filter(|(from, to)| from != to).collect()
    }

    /// Returns the same pairs as files, relative to the crate's folder.
    pub(crate) fn file_edges(&self) -> BTreeSet<(PathBuf, PathBuf)> {
        let file = |path: &ModulePath| {
            let file = self.modules.get(path).map(|module| module.file.as_path());
            let file = file.unwrap_or_else(|| Path::new(""));
            file.strip_prefix(&self.folder).unwrap_or(file).to_owned()
        };
        let edges = self.edges().into_iter().map(|(from, to)| (file(&from), file(&to)));
        edges.filter(|(from, to)| from != to).collect()
    }

    /// Returns the modules directly below the root.
    pub(crate) fn top_level(&self) -> BTreeSet<&str> {
        let paths = self.modules.keys().filter(|path| path.len() == 1);
        paths.map(|path| path[0].as_str()).collect()
    }
}

/// Returns the file of a module that is declared in `parent`.
fn file_of_child(parent: &Path, name: &str) -> Result<PathBuf> {
    let folder = parent.parent().context("a file without a folder")?;
    let stem = parent.file_stem().unwrap_or_default();
    let folder = match stem.to_str() {
        Some("mod" | "lib" | "main") => folder.to_owned(),
        _ => folder.join(stem),
    };
    let candidates = [folder.join(format!("{name}.rs")), folder.join(name).join("mod.rs")];
    let found = candidates.into_iter().find(|file| file.exists());
    found.with_context(|| format!("no file for `mod {name}` of {}", parent.display()))
}

/// Returns whether an item exists only in tests.
fn is_test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            condition.contains("test") && !condition.contains("not")
        }
        _ => false,
    })
}

/// Collects the paths of one module.
struct Reader<'a> {
    module: &'a [String],
    children: &'a BTreeSet<String>,
    paths: BTreeSet<Vec<String>>,
    aliases: BTreeMap<String, Vec<String>>,
}

impl Reader<'_> {
    /// Returns the path from the crate's root, if it leads into this crate.
    fn to_root(&self, path: &[String]) -> Option<Vec<String>> {
        let (mut base, mut rest) = match path.first()?.as_str() {
            "crate" => (Vec::new(), &path[1..]),
            "self" => (self.module.to_vec(), &path[1..]),
            "super" => (self.module.to_vec(), path),
            child if self.children.contains(child) => (self.module.to_vec(), path),
            _ => return None,
        };
        while rest.first().is_some_and(|segment| segment == "super") {
            base.pop();
            rest = &rest[1..];
        }
        base.extend_from_slice(rest);
        Some(base)
    }

    fn add_tree(&mut self, tree: &UseTree, prefix: &[String]) {
        let with = |name: String| [prefix, &[name]].concat();
        match tree {
            UseTree::Path(path) => self.add_tree(&path.tree, &with(path.ident.to_string())),
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.add_tree(tree, prefix));
            }
            UseTree::Glob(_) => self.add(prefix, None),
            UseTree::Name(name) if name.ident == "self" => {
                self.add(prefix, prefix.last().cloned());
            }
            UseTree::Name(name) => {
                self.add(&with(name.ident.to_string()), Some(name.ident.to_string()));
            }
            UseTree::Rename(renamed) => {
                self.add(&with(renamed.ident.to_string()), Some(renamed.rename.to_string()));
            }
        }
    }

    fn add(&mut self, path: &[String], name: Option<String>) {
        let Some(path) = self.to_root(path) else { return };
        if let Some(name) = name {
            self.aliases.insert(name, path.clone());
        }
        self.paths.insert(path);
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            Item::Mod(item) => &item.attrs,
            _ => return syn::visit::visit_item(self, item),
        };
        if !is_test_only(attributes) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test_only(&item.attrs) {
            syn::visit::visit_impl_item_fn(self, item);
        }
    }

    /// The path in `pub(in …)` is not an import.
    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let paths = self.paths.clone();
        self.add_tree(&item.tree, &[]);
        // A re-export counts for the modules that use it, not for the module that contains it.
        if !matches!(item.vis, syn::Visibility::Inherited) {
            self.paths = paths;
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 && path.leading_colon.is_none() {
            let segments: Vec<_> =
                path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.add(&segments, None);
        }
        syn::visit::visit_path(self, path);
    }
}
