//! Files with an entry in each line.

use std::fs;
use std::path::Path;
use std::time::Duration;

use service_kit::settings::changeable_by_all;

/// The interval between two checks of a file.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Reads and parses a file.
///
/// # Errors
/// A sentence for each mistake, with the path. It is also one if every user of the host may change the file.
pub(super) fn read<T>(
    path: &Path,
    parse: impl FnOnce(&str) -> Result<T, Vec<String>>,
) -> Result<T, Vec<String>> {
    if let Some(mistake) = changeable_by_all(path) {
        return Err(vec![mistake]);
    }
    let file = path.display();
    let text = fs::read_to_string(path).map_err(|error| vec![format!("{file}: {error}")])?;
    parse(&text)
        .map_err(|mistakes| mistakes.iter().map(|mistake| format!("{file}, {mistake}")).collect())
}

/// Returns the lines with their numbers, without empty ones and those that begin with `#`.
pub(super) fn entries(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = (1..).zip(text.lines().map(str::trim));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_all_users_may_change_is_not_read_again() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = |text: &str| Ok(text.to_owned());
        assert_eq!(read(file.path(), text), Ok(String::new()));
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o602);
        fs::set_permissions(file.path(), all).unwrap();
        let mistakes = read(file.path(), text).unwrap_err().join("; ");
        assert!(mistakes.contains("can be changed by every user (mode 0602)"), "{mistakes}");
    }
}
