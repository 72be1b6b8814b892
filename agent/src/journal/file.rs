//! The file: how it is read, appended to, and written anew.

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use redisson::ClientId;
use serde::{Deserialize, Serialize};

use super::past::Past;
use super::record::Record;

/// The journal's name in the state folder.
const FILE: &str = "journal";
/// How it is called while it is being written anew.
const NEW: &str = ".journal.new";
/// The longest line that can be ours: a name of 512 bytes takes up to five characters for each.
const MAX_LINE: u64 = 8192;
/// How much of the file is read at most. It is written anew long before it is that long.
const MAX_FILE: u64 = 256 << 20;
/// A file shorter than this is never written anew for its length.
const SMALL: u64 = 1 << 20;

/// Whose journal it is; its first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    agent: String,
    boot: String,
}

/// An open journal.
#[derive(Debug)]
pub struct File {
    folder: PathBuf,
    head: Head,
    /// Appended to from now on; none until it has been written anew by this run.
    file: Option<fs::File>,
    /// How long it is, as far as it is whole.
    length: u64,
    /// How long it was when it was last written anew.
    fresh: u64,
}

/// Opens the journal of `client` in its state folder and reads what an earlier run has left there. What cannot be read
/// is passed over and logged: a killed agent may have left half a line. The records of another agent's journal are not
/// ours to act on; those of an earlier boot are only good for tidying up.
///
/// # Errors
/// When the file is there and cannot be read, or the kernel does not tell which boot this is.
pub fn open(folder: &Path, client: ClientId) -> io::Result<(File, Past)> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    open_as(folder, Head { agent: client.to_string(), boot: boot.trim().to_owned() })
}

fn open_as(folder: &Path, head: Head) -> io::Result<(File, Past)> {
    let past = match fs::File::open(folder.join(FILE)) {
        Ok(file) => read(BufReader::new(file.take(MAX_FILE)), &head)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Past::default(),
        Err(error) => return Err(error),
    };
    // The first thing written is the whole of it: until then what is there stays as it is.
    Ok((File { folder: folder.to_owned(), head, file: None, length: 0, fresh: 0 }, past))
}

fn read(mut from: impl BufRead, own: &Head) -> io::Result<Past> {
    let mut past = Past::default();
    let mut line = Vec::new();
    let mut damaged = 0_u64;
    let head = match next_line(&mut from, &mut line)? {
        Line::End => return Ok(past),
        Line::Whole => serde_json::from_slice::<Head>(&line).ok(),
        Line::Damaged => None,
    };
    let Some(head) = head.filter(|head| head.agent == own.agent) else {
        tracing::warn!("the journal in the state folder is not this agent's: it is passed over");
        return Ok(past);
    };
    loop {
        match next_line(&mut from, &mut line)? {
            Line::End => break,
            Line::Damaged => damaged += 1,
            Line::Whole => match serde_json::from_slice(&line) {
                Ok(record) => past.add(record),
                Err(_) => damaged += 1,
            },
        }
    }
    if damaged > 0 {
        tracing::warn!(lines = damaged, "damaged lines in the journal are passed over");
    }
    if head.boot != own.boot {
        past.bury();
    }
    Ok(past)
}

enum Line {
    Whole,
    /// Too long, or not ended: the agent was killed while it wrote.
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

/// Records as lines.
pub(super) fn lines(records: impl IntoIterator<Item = Record>) -> Vec<u8> {
    let mut lines = Vec::new();
    for record in records {
        serde_json::to_writer(&mut lines, &record).expect("a vector takes every record");
        lines.push(b'\n');
    }
    lines
}

impl File {
    /// Whether it should be written anew, rather than appended to.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.file.is_none() || self.length > SMALL.max(self.fresh * 4)
    }

    /// Appends these lines. After a failure it is to be written anew.
    ///
    /// # Errors
    /// When they cannot be written; then none of them stands there.
    pub(super) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Err(io::ErrorKind::NotFound.into()) };
        if let Err(error) = file.write_all(lines) {
            // What was written of them would be half a line before others; cutting needs no room on the disk.
            drop(file.set_len(self.length));
            self.file = None;
            return Err(error);
        }
        self.length += lines.len() as u64;
        Ok(())
    }

    /// Replaces all that stands there by these lines: after a crash it is the old ones or the new ones.
    ///
    /// # Errors
    /// When that cannot be done; then the old ones stand there.
    pub(super) fn rewrite(&mut self, lines: &[u8]) -> io::Result<()> {
        let new = self.folder.join(NEW);
        let written = self.write_new(&new, lines);
        if written.is_err() {
            // It may not even be there.
            fs::remove_file(&new).ok();
        }
        written
    }

    fn write_new(&mut self, new: &Path, lines: &[u8]) -> io::Result<()> {
        let mut head = serde_json::to_vec(&self.head)?;
        head.push(b'\n');
        // One that a killed agent has left half written may be there.
        match fs::remove_file(new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(new)?;
        file.write_all(&head)?;
        file.write_all(lines)?;
        fs::rename(new, self.folder.join(FILE))?;
        self.length = (head.len() + lines.len()) as u64;
        (self.fresh, self.file) = (self.length, Some(file));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::super::record::tests::{hold, session};
    use super::*;

    fn head(agent: &str, boot: &str) -> Head {
        Head { agent: agent.to_owned(), boot: boot.to_owned() }
    }

    fn own(folder: &tempfile::TempDir) -> (File, Past) {
        open_as(folder.path(), head("me", "now")).unwrap()
    }

    fn records() -> Vec<Record> {
        vec![Record::Session(session(1)), Record::Hold(hold(1, 3, b"a"))]
    }

    #[test]
    fn it_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let (mut file, past) = own(&folder);
        assert!(past.is_empty() && file.is_due());
        file.rewrite(&lines(records())).unwrap();
        assert!(!file.is_due());
        file.append(&lines([Record::Hold(hold(1, 4, b"\xff\n"))])).unwrap();
        let (_, past) = own(&folder);
        let holds = &past.sessions.values().next().unwrap().holds;
        assert_eq!(holds.keys().copied().collect::<Vec<_>>(), [3, 4]);
        assert_eq!(holds[&4].lock.as_bytes(), b"\xff\n");
        let mode = fs::metadata(folder.path().join(FILE)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600, "it has secrets in it");
    }

    #[test]
    fn it_is_written_anew_before_it_is_long() {
        let folder = tempfile::tempdir().unwrap();
        let (mut file, _) = own(&folder);
        file.rewrite(&lines(records())).unwrap();
        let gone = lines((0..30_000).map(|number| Record::Gone { number }));
        while !file.is_due() {
            file.append(&gone).unwrap();
        }
        assert!((SMALL..4 * SMALL).contains(&file.length), "{}", file.length);
        file.rewrite(&lines(records())).unwrap();
        assert!(!file.is_due());
        assert_eq!(fs::metadata(folder.path().join(FILE)).unwrap().len(), file.length);
        let big = lines((0..30_000).map(|n| Record::Hold(hold(1, n, b"a"))));
        file.rewrite(&big).unwrap();
        assert!(!file.is_due(), "so much is in use");
    }

    #[test]
    fn damage_costs_the_damaged_lines_only() {
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
            let (_, past) = own(&folder);
            past.sessions.into_values().flat_map(|s| s.holds.into_keys()).collect()
        };
        assert_eq!(numbers(), [3, 5, 6]);
        // Wherever it was cut.
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
    fn anothers_journal_is_left_alone_and_an_old_boots_is_for_tidying_up() {
        let folder = tempfile::tempdir().unwrap();
        own(&folder).0.rewrite(&lines(records())).unwrap();
        let (_, past) = open_as(folder.path(), head("you", "now")).unwrap();
        assert!(past.is_empty());
        let (_, past) = open_as(folder.path(), head("me", "later")).unwrap();
        assert!(past.sessions.is_empty());
        assert_eq!(past.traces.keys().copied().collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn on_a_full_disk_what_stood_there_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (mut file, _) = own(&folder);
        file.rewrite(&lines(records())).unwrap();
        // A device that is always full stands in for the file.
        let full = OpenOptions::new().append(true).open("/dev/full").unwrap();
        let kept = file.file.replace(full);
        let error = file.append(&lines(records())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        drop(kept);
        assert!(file.is_due(), "half a line may stand there");
        assert_eq!(own(&folder).1.sessions.len(), 1);
        file.rewrite(&lines([])).unwrap();
        assert!(own(&folder).1.is_empty());
    }
}
