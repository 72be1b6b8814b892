//! The files that pages refer to, embedded.

use std::hash::{DefaultHasher, Hasher};
use std::sync::LazyLock;

/// A file that is served under `/static/`.
#[derive(Debug, Clone, Copy)]
pub struct Asset {
    /// The name within `/static/`.
    pub name: &'static str,
    /// The value of the `Content-Type` header.
    pub content_type: &'static str,
    pub body: &'static [u8],
}

macro_rules! asset {
    ($name:literal, $content_type:literal) => {
        Asset {
            name: $name,
            content_type: $content_type,
            body: include_bytes!(concat!("../../../static/", $name)),
        }
    };
}

/// All files. Addresses in pages end in `?v=` and the [`Asset::version`].
pub const ASSETS: [Asset; 9] = [
    asset!("app.css", "text/css; charset=utf-8"),
    asset!("time.js", "text/javascript; charset=utf-8"),
    asset!("stream.js", "text/javascript; charset=utf-8"),
    asset!("live.js", "text/javascript; charset=utf-8"),
    asset!("page.js", "text/javascript; charset=utf-8"),
    asset!("theme.js", "text/javascript; charset=utf-8"),
    asset!("favicon.svg", "image/svg+xml"),
    asset!("inter-latin.woff2", "font/woff2"),
    asset!("inter-OFL.txt", "text/plain; charset=utf-8"),
];

impl Asset {
    /// Returns a name for this content, which changes when the content does.
    #[must_use]
    pub fn version(&self) -> String {
        let mut hasher = DefaultHasher::new();
        hasher.write(self.body);
        format!("{:016x}", hasher.finish())
    }
}

/// Returns the file of that name within `/static/`.
#[must_use]
pub fn find(name: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.name == name)
}

/// The addresses of the files, for the templates.
pub(super) struct Addresses {
    pub(super) css: String,
    pub(super) time: String,
    pub(super) stream: String,
    pub(super) live: String,
    pub(super) page: String,
    pub(super) theme: String,
    pub(super) icon: String,
    pub(super) font: String,
    pub(super) font_licence: String,
}

pub(super) static ADDRESSES: LazyLock<Addresses> = LazyLock::new(|| {
    let [css, time, stream, live, page, theme, icon, font, font_licence] =
        ASSETS.map(|asset| format!("/static/{}?v={}", asset.name, asset.version()));
    Addresses { css, time, stream, live, page, theme, icon, font, font_licence }
});

static BUILD: LazyLock<String> = LazyLock::new(|| {
    let mut hasher = DefaultHasher::new();
    hasher.write(env!("CARGO_PKG_VERSION").as_bytes());
    ASSETS.iter().for_each(|asset| hasher.write(asset.version().as_bytes()));
    format!("{:016x}", hasher.finish())
});

/// Returns a name for this program's pages and files together. An open page of another build has to be loaded again.
#[must_use]
pub fn build() -> &'static str {
    &BUILD
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_style_sheet_names_the_font_by_its_version() {
        let css = std::str::from_utf8(find("app.css").unwrap().body).unwrap();
        let address = ADDRESSES.font.strip_prefix("/static/").unwrap();
        assert!(css.contains(&format!("url(\"{address}\")")), "expected {address}");
    }

    #[test]
    fn the_font_comes_with_its_licence() {
        let licence = std::str::from_utf8(find("inter-OFL.txt").unwrap().body).unwrap();
        assert!(licence.contains("The Inter Project Authors"), "{licence}");
        assert!(licence.contains("SIL OPEN FONT LICENSE Version 1.1"), "{licence}");
    }
}
