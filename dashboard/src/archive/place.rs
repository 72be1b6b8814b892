//! The folder of the history if none was chosen.

use std::ffi::OsString;
use std::path::PathBuf;

use ring::digest::{SHA256, digest};

/// The longest readable part of a folder's name.
const MAX_NAME: usize = 60;

/// Returns the default folder: the service manager's, or otherwise one in the user's state folder for these Redis
/// deployments. Returns `None` if the environment names neither.
pub(crate) fn default_folder(
    deployments: &[String],
    variable: impl Fn(&str) -> Option<OsString>,
) -> Option<PathBuf> {
    let path = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(folder) = path("STATE_DIRECTORY") {
        return Some(folder);
    }
    let state = path("XDG_STATE_HOME");
    let state = state.or_else(|| Some(path("HOME")?.join(".local/state")))?;
    Some(state.join("lockscope-dashboard").join(name(deployments)))
}

/// Returns a name that differs for other deployments, since their locks of the same name must not share a history.
fn name(deployments: &[String]) -> String {
    let all = deployments.join(" ");
    let words = all.split(|c: char| !(c.is_ascii_alphanumeric() || "._".contains(c)));
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    let readable: String = words.join("-").chars().take(MAX_NAME).collect();
    let digest = digest(&SHA256, all.as_bytes());
    let digest: String = digest.as_ref().iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("{readable}-{digest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(environment: &[(&str, &str)], deployments: &[&str]) -> Option<PathBuf> {
        let deployments: Vec<String> = deployments.iter().map(|&url| url.to_owned()).collect();
        default_folder(&deployments, |name| {
            environment.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
        })
    }

    #[test]
    fn the_service_manager_decides_then_the_user() {
        let all = [("STATE_DIRECTORY", "/s"), ("XDG_STATE_HOME", "/x"), ("HOME", "/h")];
        assert_eq!(folder(&all, &["redis://a:1"]), Some("/s".into()));
        let chosen = folder(&all[1..], &["redis://a:1"]).expect("a folder");
        assert!(chosen.starts_with("/x/lockscope-dashboard"), "{chosen:?}");
        let chosen = folder(&all[2..], &["redis://a:1"]).expect("a folder");
        assert!(chosen.starts_with("/h/.local/state/lockscope-dashboard"), "{chosen:?}");
        assert_eq!(folder(&[("HOME", "relative")], &["redis://a:1"]), None);
        assert_eq!(folder(&[], &["redis://a:1"]), None);
    }

    #[test]
    fn other_deployments_have_another_folder() {
        let of = |deployments: &[&str]| folder(&[("HOME", "/h")], deployments);
        assert_eq!(of(&["redis://a:1"]), of(&["redis://a:1"]));
        assert_ne!(of(&["redis://a:1"]), of(&["redis://a-1"]));
        let long = "x".repeat(500);
        assert_ne!(of(&[&format!("{long}a")]), of(&[&format!("{long}b")]));
        let name = name(&["redis://../../etc:6379/0".to_owned()]);
        assert!(!name.contains('/') && name.starts_with("redis"), "{name}");
    }
}
