//! Rules that every page must follow, whatever its content.
//!
//! To look at the pages: `cargo test -p lockscope-dashboard --lib preview -- --ignored`.

mod claims;
mod counts;
mod every;
pub(in crate::views) mod fixtures;
mod live;
mod markup;
mod sources;
mod trace;
mod wording;

use std::path::Path;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

#[test]
#[ignore = "writes every page to target/ui-preview, for people to look at"]
fn preview() {
    let folder = Path::new(ROOT).join("target/ui-preview");
    std::fs::create_dir_all(folder.join("static")).unwrap();
    for asset in super::assets::ASSETS {
        std::fs::write(folder.join("static").join(asset.name), asset.body).unwrap();
    }
    for (name, html) in every::all() {
        std::fs::write(folder.join(format!("{name}.html")), html).unwrap();
    }
    std::fs::write(folder.join("patches.json"), live::story()).unwrap();
}
