//! Command lines of processes, with likely secrets masked.

const MAX_CHARS: usize = 300;
const SECRET_WORDS: [&str; 5] = ["pass", "token", "secret", "key", "auth"];
const MASK: &str = "***";

/// Returns the masked command line of a process; none if it cannot be read.
pub(super) fn of(pid: i32) -> Option<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let args = text.split_terminator('\0');
    let shown = masked(args).chars().take(MAX_CHARS).collect::<String>();
    (!shown.is_empty()).then_some(shown)
}

/// Joins the arguments with spaces and masks secrets.
fn masked<'a>(args: impl Iterator<Item = &'a str>) -> String {
    let mut shown: Vec<String> = Vec::new();
    let mut value_is_secret = false;
    for arg in args {
        let is_flag = arg.starts_with('-');
        let (name, value) = arg.split_once('=').map_or((arg, None), |(n, v)| (n, Some(v)));
        let names_secret = {
            let name = name.to_ascii_lowercase();
            SECRET_WORDS.iter().any(|secret| name.contains(secret))
        };
        let is_value = std::mem::take(&mut value_is_secret) && !is_flag;
        shown.push(match value {
            _ if is_value => MASK.to_owned(),
            Some(_) if names_secret => format!("{name}={MASK}"),
            _ => mask_credentials(arg),
        });
        value_is_secret = is_flag && names_secret && value.is_none();
    }
    shown.join(" ")
}

/// Masks the user and password of a URL.
fn mask_credentials(arg: &str) -> String {
    let Some((scheme, rest)) = arg.split_once("://") else { return arg.to_owned() };
    let (authority, path) = match rest.find(['/', '?', '#']) {
        Some(end) => rest.split_at(end),
        None => (rest, ""),
    };
    match authority.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://{MASK}@{host}{path}"),
        None => arg.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_masked() {
        let line = |args: &[&str]| masked(args.iter().copied());
        assert_eq!(line(&["backup", "--all", "/srv"]), "backup --all /srv");
        assert_eq!(line(&["x", "--password", "pw", "y"]), "x --password *** y");
        assert_eq!(line(&["x", "--api-TOKEN=pw", "-v"]), "x --api-TOKEN=*** -v");
        assert_eq!(line(&["x", "--key", "--quiet", "y"]), "x --key --quiet y");
        assert_eq!(line(&["PGPASSWORD=pw", "psql"]), "PGPASSWORD=*** psql");
        assert_eq!(line(&["x", "redis://me:pw@host:1/0"]), "x redis://***@host:1/0");
        assert_eq!(line(&["x", "--url=redis://me:p@w@host/a@b"]), "x --url=redis://***@host/a@b");
        assert_eq!(line(&["x", "http://host/a@b"]), "x http://host/a@b");
    }

    #[test]
    fn the_command_line_is_read_and_truncated() {
        let ours = of(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(!ours.is_empty() && ours.chars().count() <= MAX_CHARS, "{ours}");
        assert_eq!(of(i32::MAX), None);
    }
}
