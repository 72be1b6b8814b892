//! Records the MONITOR output of each Redisson operation in `tests/data/monitor/<version>/<operation>.txt`.
//!
//! `make recordings` runs it. A file is a log: `#` lines describe a call and its result, followed by the lines that Redis
//! printed during the call. Redisson's script sources are not stored: the source in an EVAL or SCRIPT LOAD is replaced by
//! `sha1:` and its digest.

#![expect(clippy::print_stdout, reason = "a program for a terminal, which reports its progress")]

mod operations;
mod tape;

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use harness::{Jvm, RedisServer};

use operations::OPERATIONS;
use tape::Tape;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let versions: Vec<String> = std::env::args().skip(1).collect();
    ensure!(!versions.is_empty(), "which versions of Redisson?");
    for version in versions {
        record(&version).await.with_context(|| format!("Redisson {version}"))?;
    }
    Ok(())
}

async fn record(version: &str) -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/monitor").join(version);
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    let (jvm, redis) = (Jvm::start(version)?, RedisServer::start().await?);
    for operation in OPERATIONS {
        let mut tape = Tape::new(&jvm, &redis, version, operation).await?;
        match tape.record(operation).await.with_context(|| operation.name.to_owned())? {
            Some(text) => {
                std::fs::write(folder.join(operation.name).with_extension("txt"), text)?;
                println!("{version} {}", operation.name);
            }
            None => println!("{version} {}: this version has no such thing", operation.name),
        }
    }
    Ok(())
}
