//! The journal's file: reading, appending, and compacting it.

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use redisson::ClientId;
use serde::{Deserialize, Serialize};

use super::record::Record;
use super::restored::Restored;
use crate::identity::StateFolder;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const FILE: &str = "journal";
/// The temporary name of a compacted journal.
const NEW: &str = ".journal.new";
/// The longest valid line: each of a name's 512 bytes takes up to six characters, and the leases up to 2,900 in all.
const MAX_LINE: u64 = 8192;
/// Shorter files are never compacted for their length.
const SMALL: u64 = 1 << 20;

/// The first line, which identifies the agent and the boot that the records belong to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    agent: String,
    boot: String,
}

/// An open journal.
#[derive(Debug)]
pub struct File {
    folder: Arc<StateFolder>,
    head: Head,
    /// Open for appending; `None` until this run has written the whole file once.
    file: Option<fs::File>,
    /// The length in bytes up to the last complete line.
    length: u64,
    compacted_length: u64,
}

/// Opens the journal of `client` in its state folder and restores the state that an earlier run recorded. Damaged lines
/// are skipped and logged, since a killed agent may have left half a line. The journal of another agent is ignored, and
/// records of an earlier boot serve only to clean up Redis.
///
/// # Errors
/// Fails if the file exists but cannot be read, or if the kernel does not report the boot id.
pub fn open(folder: &Arc<StateFolder>, client: ClientId) -> io::Result<(File, Restored)> {
    let boot = fs::read_to_string(BOOT_ID)
        .map_err(|error| io::Error::other(format!("{BOOT_ID}: {error}")))?;
    open_as(Arc::clone(folder), Head { agent: client.to_string(), boot: boot.trim().to_owned() })
}

fn open_as(folder: Arc<StateFolder>, head: Head) -> io::Result<(File, Restored)> {
    let restored = match fs::File::open(folder.path().join(FILE)) {
        Ok(file) => read(BufReader::new(file), &head)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Restored::default(),
        Err(error) => return Err(error),
    };
    // The first write replaces the whole file; until then it stays untouched.
    Ok((File { folder, head, file: None, length: 0, compacted_length: 0 }, restored))
}

fn read(mut from: impl BufRead, own: &Head) -> io::Result<Restored> {
    let mut restored = Restored::default();
    let mut line = Vec::new();
    let mut damaged = 0_u64;
    let head = match next_line(&mut from, &mut line)? {
        Line::End => return Ok(restored),
        Line::Whole => serde_json::from_slice::<Head>(&line).ok(),
        Line::Damaged => None,
    };
    let Some(head) = head else {
        tracing::warn!("the first line of the journal is damaged; ignoring the journal");
        return Ok(restored);
    };
    if head.agent != own.agent {
        tracing::warn!("the journal in the state folder belongs to another agent; ignoring it");
        return Ok(restored);
    }
    loop {
        match next_line(&mut from, &mut line)? {
            Line::End => break,
            Line::Damaged => damaged += 1,
            Line::Whole => match serde_json::from_slice(&line) {
                Ok(record) => restored.add(record),
                Err(_) => damaged += 1,
            },
        }
    }
    if damaged > 0 {
        tracing::warn!(lines = damaged, "skipped damaged lines in the journal");
    }
    if head.boot != own.boot {
        restored.discard_boot();
    }
    Ok(restored)
}

enum Line {
    Whole,
    /// Too long, or incomplete because the agent was killed while writing it.
    Damaged,
    End,
}

fn next_line(from: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Line> {
    line.clear();
    if from.by_ref().take(MAX_LINE).read_until(b'\n', line)? == 0 {
        return Ok(Line::End);
    }
    if line.last() == Some(&b'\n') {
        return Ok(Line::Whole);
    }
    from.skip_until(b'\n')?;
    Ok(Line::Damaged)
}

/// Serializes records, one per line.
pub(super) fn lines(records: impl IntoIterator<Item = Record>) -> Vec<u8> {
    let mut lines = Vec::new();
    for record in records {
        serde_json::to_writer(&mut lines, &record)
            .expect("writing to a vector does not fail, and every record is valid JSON");
        lines.push(b'\n');
    }
    lines
}

impl File {
    /// Returns a journal that appends to a pipe.
    #[cfg(test)]
    pub(super) fn appending_to(folder: &Path, pipe: io::PipeWriter) -> Self {
        let head = Head { agent: "me".to_owned(), boot: "now".to_owned() };
        let file = Some(fs::File::from(std::os::fd::OwnedFd::from(pipe)));
        Self { folder: StateFolder::unlocked(folder), head, file, length: 0, compacted_length: 0 }
    }

    /// Returns a journal whose next append panics, because its length overflows.
    #[cfg(test)]
    pub(super) fn panicking(folder: &Path) -> Self {
        let (_, pipe) = io::pipe().unwrap();
        let file = Some(fs::File::create(folder.join(FILE)).unwrap());
        let compacted_length = u64::MAX / 4;
        let length = compacted_length * 4;
        Self { file, length, compacted_length, ..Self::appending_to(folder, pipe) }
    }

    /// Returns whether the next write should replace the file rather than append to it.
    #[must_use]
    pub fn needs_rewrite(&self) -> bool {
        self.file.is_none() || self.length > SMALL.max(self.compacted_length * 4)
    }

    /// Appends lines. Returns false if the file was removed, replaced or truncated meanwhile, so that the next agent would
    /// not find the lines. The next write must then replace the file, as after a failure.
    ///
    /// # Errors
    /// Fails if not all lines could be written; the file then contains none of them.
    pub(super) fn append(&mut self, lines: &[u8]) -> io::Result<bool> {
        let Some(file) = &mut self.file else { return Err(io::ErrorKind::NotFound.into()) };
        if let Err(error) = file.write_all(lines) {
            // Removes a partially written line. Truncation needs no free disk space.
            drop(file.set_len(self.length));
            self.file = None;
            return Err(error);
        }
        self.length += lines.len() as u64;
        let there = fs::symlink_metadata(self.folder.path().join(FILE));
        let in_place =
            file.metadata().and_then(|ours| Ok((ours, there?))).is_ok_and(|(ours, there)| {
                (there.dev(), there.ino(), there.len()) == (ours.dev(), ours.ino(), self.length)
            });
        if !in_place {
            self.file = None;
        }
        Ok(in_place)
    }

    /// Replaces the whole file atomically, in a new state folder if that was removed.
    ///
    /// # Errors
    /// Fails if the new file cannot be written; the old one then remains.
    pub(super) fn rewrite(&mut self, lines: &[u8]) -> io::Result<()> {
        self.folder.restore()?;
        let new = self.folder.path().join(NEW);
        let written = self.write_new(&new, lines);
        if written.is_err() {
            // The file may not exist.
            fs::remove_file(&new).ok();
        }
        written
    }

    fn write_new(&mut self, new: &Path, lines: &[u8]) -> io::Result<()> {
        let mut head = serde_json::to_vec(&self.head)?;
        head.push(b'\n');
        // A killed agent may have left a partial file.
        match fs::remove_file(new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(new)?;
        file.write_all(&head)?;
        file.write_all(lines)?;
        fs::rename(new, self.folder.path().join(FILE))?;
        self.length = (head.len() + lines.len()) as u64;
        (self.compacted_length, self.file) = (self.length, Some(file));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::{hold, session};
    use super::*;

    fn head(agent: &str, boot: &str) -> Head {
        Head { agent: agent.to_owned(), boot: boot.to_owned() }
    }

    fn own(folder: &tempfile::TempDir) -> (File, Restored) {
        open_as(StateFolder::unlocked(folder.path()), head("me", "now")).unwrap()
    }

    fn records() -> Vec<Record> {
        vec![Record::Session(session(1)), Record::Hold(hold(1, 3, b"a"))]
    }

    #[test]
    fn records_are_read_back_as_written() {
        let folder = tempfile::tempdir().unwrap();
        let (mut file, restored) = own(&folder);
        assert!(restored.is_empty() && file.needs_rewrite());
        file.rewrite(&lines(records())).unwrap();
        assert!(!file.needs_rewrite());
        file.append(&lines([Record::Hold(hold(1, 4, b"\xff\n"))])).unwrap();
        let (_, restored) = own(&folder);
        let holds = &restored.sessions.values().next().unwrap().holds;
        assert_eq!(holds.keys().copied().collect::<Vec<_>>(), [3, 4]);
        assert_eq!(holds[&4].lock.as_bytes(), b"\xff\n");
        let mode = fs::metadata(folder.path().join(FILE)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600, "it contains secrets");
    }

    #[test]
    fn lines_that_the_next_agent_would_not_find_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let changes: [fn(&Path); 4] = [
            |path| fs::remove_file(path).unwrap(),
            |path| fs::write(path, "").unwrap(),
            |path| fs::write(path.with_extension("new"), "").unwrap(),
            |path| {
                let copy = path.with_extension("copy");
                fs::copy(path, &copy).unwrap();
                fs::rename(copy, path).unwrap();
            },
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let (mut file, _) = own(&folder);
            file.rewrite(&lines(records())).unwrap();
            assert!(file.append(&lines([Record::Gone { number: 3 }])).unwrap());
            change(&path);
            let is_in_place = number == 2;
            assert_eq!(file.append(&lines(records())).unwrap(), is_in_place, "{number}");
            assert_eq!(file.needs_rewrite(), !is_in_place, "{number}");
            file.rewrite(&lines(records())).unwrap();
            assert_eq!(own(&folder).1.sessions.len(), 1, "{number}");
        }
    }

    #[test]
    fn a_long_file_is_due_for_compaction() {
        let folder = tempfile::tempdir().unwrap();
        let (mut file, _) = own(&folder);
        file.rewrite(&lines(records())).unwrap();
        let gone = lines((0..30_000).map(|number| Record::Gone { number }));
        while !file.needs_rewrite() {
            file.append(&gone).unwrap();
        }
        assert!((SMALL..4 * SMALL).contains(&file.length), "{}", file.length);
        file.rewrite(&lines(records())).unwrap();
        assert!(!file.needs_rewrite());
        assert_eq!(fs::metadata(folder.path().join(FILE)).unwrap().len(), file.length);
        let big = lines((0..30_000).map(|n| Record::Hold(hold(1, n, b"a"))));
        file.rewrite(&big).unwrap();
        assert!(!file.needs_rewrite(), "all of it is live");
    }

    #[test]
    fn only_damaged_lines_are_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let (mut file, _) = own(&folder);
        let mut bytes = lines(records());
        bytes.extend_from_slice(b"\0\xfe{]\n\n{\"what\":\"hold\"}\n");
        bytes.extend_from_slice(&[b'x'; 100_000]);
        bytes.push(b'\n');
        bytes.extend(lines([Record::Hold(hold(1, 5, b"b"))]));
        let whole = bytes.len();
        bytes.extend(lines([Record::Hold(hold(1, 6, b"c"))]));
        file.rewrite(&bytes).unwrap();
        let path = folder.path().join(FILE);
        let all = fs::read(&path).unwrap();
        let numbers = || -> Vec<_> {
            let (_, restored) = own(&folder);
            restored.sessions.into_values().flat_map(|s| s.holds.into_keys()).collect()
        };
        assert_eq!(numbers(), [3, 5, 6]);
        // At every position of the cut.
        let head = all.len() - bytes.len();
        for cut in (head + whole..all.len()).step_by(7) {
            fs::write(&path, &all[..cut]).unwrap();
            assert_eq!(numbers(), [3, 5], "cut at {cut}");
        }
        fs::write(&path, b"").unwrap();
        assert!(numbers().is_empty());
        fs::write(&path, [0; 5000]).unwrap();
        assert!(numbers().is_empty());
    }

    #[test]
    fn a_journal_of_another_agent_is_ignored_and_one_of_an_earlier_boot_only_cleaned_up() {
        let folder = tempfile::tempdir().unwrap();
        own(&folder).0.rewrite(&lines(records())).unwrap();
        let (_, restored) =
            open_as(StateFolder::unlocked(folder.path()), head("you", "now")).unwrap();
        assert!(restored.is_empty());
        let (_, restored) =
            open_as(StateFolder::unlocked(folder.path()), head("me", "later")).unwrap();
        assert!(restored.sessions.is_empty());
        assert_eq!(restored.orphans.keys().copied().collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn a_file_of_any_length_is_read_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        own(&folder).0.rewrite(&lines([Record::Session(session(1))])).unwrap();
        let path = folder.path().join(FILE);
        let mut file = OpenOptions::new().append(true).open(path).unwrap();
        // A hole takes no space: one long line that is not a record.
        file.set_len(300 << 20).unwrap();
        file.write_all(b"\n").unwrap();
        file.write_all(&lines([Record::Hold(hold(1, 3, b"a"))])).unwrap();
        let (_, restored) = own(&folder);
        let held = restored.sessions.values().next().unwrap().holds.keys();
        assert_eq!(held.copied().collect::<Vec<_>>(), [3]);
    }

    /// The journal of version 0.1.0, with each kind of record.
    const RECORDED: &str = r#"{"agent":"me","boot":"now"}
{"what":"session","session":"5f-1","secret":"000102030405060708090a0b0c0d0e0f","peer":{"pid":1,"uid":2,"gid":3,"comm":"sh"},"client":null,"grace_ms":300000}
{"what":"hold","session":"5f-1","owner":0,"number":7,"lock":"orders:1","kind":"fenced","count":2,"token":9,"until":null,"longest":30000,"granted":9}
{"what":"hold","session":"5f-1","owner":1,"number":8,"lock":"orders:2","kind":"read","count":1,"token":null,"until":60,"longest":30000,"granted":9}
{"what":"away","session":"5f-1","since":5}
{"what":"trace","number":10,"lock":"a","kind":"fair","after":0}
{"what":"trace","number":11,"lock":"b","kind":"lock","after":0}
{"what":"gone","number":11}
"#;

    #[test]
    fn journals_of_other_versions_are_read_in_both_directions() {
        for line in RECORDED.lines().skip(1) {
            let record: Record = serde_json::from_str(line).unwrap();
            assert_eq!(serde_json::to_string(&record).unwrap(), line, "earlier versions read it");
        }
        // Later versions may add fields and records, which this one does not know.
        let later = RECORDED.replace("\"what\"", "\"added\":[1],\"what\"")
            + "{\"what\":\"added\",\"number\":7}\n";
        for journal in [RECORDED, &later] {
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join(FILE), journal).unwrap();
            let (_, restored) = own(&folder);
            let session = restored.sessions.values().next().unwrap();
            assert_eq!(session.holds.keys().copied().collect::<Vec<_>>(), [7, 8]);
            assert_eq!(restored.orphans.keys().copied().collect::<Vec<_>>(), [10]);
        }
    }

    #[test]
    fn old_records_survive_a_full_disk() {
        let folder = tempfile::tempdir().unwrap();
        let (mut file, _) = own(&folder);
        file.rewrite(&lines(records())).unwrap();
        // A device that is always full replaces the file.
        let full = OpenOptions::new().append(true).open("/dev/full").unwrap();
        let original = file.file.replace(full);
        let error = file.append(&lines(records())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        drop(original);
        assert!(file.needs_rewrite(), "it may end in half a line");
        assert_eq!(own(&folder).1.sessions.len(), 1);
        file.rewrite(&lines([])).unwrap();
        assert!(own(&folder).1.is_empty());
    }
}
