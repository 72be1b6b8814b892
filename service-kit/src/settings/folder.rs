//! Folders that a program uses, or creates in others.

use std::path::Path;

use rustix::fs::{Access, access};

/// Returns the reason for which the folder can neither be there nor be created: a part of its path is something else.
pub(super) fn obstacle(folder: &Path) -> Option<String> {
    let existing = folder.ancestors().find(|path| path.symlink_metadata().is_ok())?;
    (!existing.is_dir()).then(|| format!("{} is not a folder", existing.display()))
}

/// Returns the reason for which this process cannot write to the folder, or cannot create it.
pub(super) fn write_obstacle(folder: &Path) -> Option<String> {
    let existing = folder.ancestors().find(|path| path.exists())?;
    let error = access(existing, Access::WRITE_OK | Access::EXEC_OK).err()?;
    Some(format!("cannot write to {} as this user: {error}", existing.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_in_the_path_of_a_folder_is_an_obstacle() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("file");
        std::fs::write(&file, "").unwrap();
        let expected = Some(format!("{} is not a folder", file.display()));
        assert_eq!(obstacle(&file), expected);
        assert_eq!(obstacle(&file.join("a/b")), expected);
        assert_eq!(obstacle(&scratch.path().join("a/b")), None, "it can be created");
        assert_eq!(obstacle(scratch.path()), None);
        assert_eq!(obstacle(Path::new("relative/to/this")), None);
    }
}
