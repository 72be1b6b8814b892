//! Names that are hard to quote, to tag, or to read: both sides must use the same key and the same channel.

use anyhow::{Context as _, Result};

use super::bed::{for_each_kind, lock, unlock};
use super::{Bed, Kind};

for_each_kind!(a_name_is_the_same_lock_on_both_sides);

/// In Java a name is text, so bytes that are not UTF-8 are left out.
fn names() -> Vec<String> {
    let long = "x".repeat(512);
    let odd = [
        "a{b}c",
        "{a}",
        "{a}{b}",
        "a{b",
        "}a{",
        "{}",
        "{}x",
        "x{}",
        "}{",
        " ",
        "a b",
        "a\tb",
        "a\r\nb",
        "\0",
        "a\0b",
        "\"quoted\"",
        "it's",
        "\\",
        "%41",
        "+",
        ":",
        "a:b:c",
        "*",
        "[a-z]?",
        "ü",
        "锁",
        "\u{1F512}",
        "e\u{301}",
        "\u{202E}abc",
        "\u{feff}a",
        "mode",
        "null",
        "-1",
        "0",
        "redisson_lock__channel:{x}",
        "redisson_lock_queue:{x}",
        "lockscope:agent:{x}",
        &long,
    ];
    odd.map(str::to_owned).to_vec()
}

mod cases {
    use super::*;

    pub(super) async fn a_name_is_the_same_lock_on_both_sides(kind: Kind) -> Result<()> {
        let mut bed = Bed::new().await?;
        for name in names() {
            check_both_sides(&mut bed, kind, &name)
                .await
                .with_context(|| format!("the name {name:?}"))?;
        }
        bed.assert_nothing_left().await;
        Ok(())
    }

    async fn check_both_sides(bed: &mut Bed, kind: Kind, name: &str) -> Result<()> {
        let mut worker = bed.session().await?;
        let java = bed.java(kind, name);
        assert!(lock(&mut worker, kind, name, "").await?);
        assert!(java.is("isLocked").await?);
        let waiting = java.begin_wait().await?;
        assert_eq!(unlock(&mut worker, kind, name).await?, 0);
        waiting.answer().await??;
        bed.begin_wait(&mut worker, kind, name).await?;
        java.call("unlock").await?;
        assert_eq!(worker.reply().await?.ok()?.field("holds")?.int()?, 1);
        assert_eq!(unlock(&mut worker, kind, name).await?, 0);
        Ok(())
    }
}
