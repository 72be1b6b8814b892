//! Loads the identity and the journal from the state folder. A folder on a mount that hangs blocks the thread that reads it,
//! so a separate thread does, and the agent reports what it waits for.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context;
use tokio::sync::watch;
use tokio::time::{Instant, interval_at};

use crate::identity::{self, Identity, SYSTEM_FOLDER};
use crate::journal::{self, Restored};
use crate::types::Status;

/// The time that a state folder may take before the agent reports that it waits.
const PATIENCE: Duration = Duration::from_secs(2);
/// The interval at which the log repeats that the agent waits.
const REPEAT: Duration = Duration::from_secs(60);

/// The state of earlier runs.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) identity: Identity,
    /// The journal with its records, or the reason for its absence.
    pub(crate) journal: Result<(journal::File, Restored), String>,
}

/// Loads the state from `folder`, or from the default folder. While that takes long, logs it and sets the status.
/// Cancel safe; a thread that hangs ends with the process.
///
/// # Errors
/// Fails if the kernel provides no random bytes.
pub(crate) async fn load(
    folder: Option<PathBuf>,
    status: &watch::Sender<Status>,
) -> anyhow::Result<State> {
    let chosen = Arc::new(OnceLock::new());
    let mut reading = tokio::task::spawn_blocking({
        let chosen = Arc::clone(&chosen);
        move || read(folder, &chosen)
    });
    let started = Instant::now();
    let mut late = interval_at(started + PATIENCE, REPEAT);
    loop {
        tokio::select! {
            read = &mut reading => {
                if status.borrow().awaited.is_some() {
                    let waited_ms = started.elapsed().as_millis();
                    tracing::info!(waited_ms, "the state folder answers");
                    status.send_modify(|status| status.awaited = None);
                }
                return read.context("the thread that reads the state folder has panicked")?;
            }
            _ = late.tick() => {
                let system = || Path::new(SYSTEM_FOLDER);
                let folder = chosen.get().map_or_else(system, |folder| folder.as_path()).display();
                tracing::warn!(
                    %folder, waited_ms = started.elapsed().as_millis(),
                    "the state folder does not answer: no worker is served until it does; check its mount and disk"
                );
                let awaited = format!("the state folder {folder} does not answer");
                status.send_modify(|status| status.awaited = Some(awaited));
            }
        }
    }
}

/// Reads the state, and sets `chosen` to its folder before it does.
fn read(folder: Option<PathBuf>, chosen: &OnceLock<PathBuf>) -> anyhow::Result<State> {
    let folder = folder.or_else(identity::default_folder);
    let folder = folder.as_ref().map(|folder| chosen.get_or_init(|| folder.clone()).as_path());
    let identity = Identity::load(folder, service_kit::clock::wall_millis() / 1000)
        .context("the kernel provides no random bytes")?;
    let journal = match &identity.folder {
        Some(folder) => journal::open(folder, identity.client).map_err(|error| {
            format!("cannot read the journal in {}: {error}", folder.path().display())
        }),
        None => Err("the agent has no usable state folder; see its log".to_owned()),
    };
    if let Err(why) = &journal {
        tracing::warn!(why, "session grace disabled: journal unavailable");
    }
    Ok(State { identity, journal })
}
