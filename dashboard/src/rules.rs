//! `lockscope-dashboard rules`: the recording rules and alerts for Prometheus, with the links of one installation.

use std::ffi::OsString;
use std::process::ExitCode;

use axum::http::Uri;
use clap::{Parser, ValueEnum};
use service_kit::settings::{EXIT_USAGE, print_result};

const AGENT: &str = include_str!("../../grafana/prometheus/lockscope-agent.rules.yml");
const DASHBOARD: &str = include_str!("../../grafana/prometheus/lockscope-dashboard.rules.yml");

/// The keys of the annotations with links, and the placeholders for the addresses of an installation.
const RUNBOOKS: (&str, &str) = ("runbook_url: ", "https://runbooks.example/lockscope");
const PAGES: (&str, &str) = ("dashboard_url: ", "https://lockscope.example");

/// Prints the recording rules and alerts for Prometheus, with links to your dashboard and your runbooks
#[derive(Debug, Parser)]
#[command(name = "lockscope-dashboard rules", bin_name = "lockscope-dashboard rules", version)]
struct Options {
    /// The programs whose rules are printed; by default those of both
    #[arg(value_name = "PROGRAM")]
    programs: Vec<RulesOf>,
    /// The address of your dashboard; without it the alerts have no link to a page
    #[arg(long, value_name = "URL", value_parser = base)]
    dashboard_url: Option<String>,
    /// The address of docs/runbooks in your published copy of docs; without it the alerts have no link to a runbook
    #[arg(long, value_name = "URL", value_parser = base)]
    runbook_url: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RulesOf {
    Agent,
    Dashboard,
}

/// Parses an address, without the slash at its end.
fn base(text: &str) -> Result<String, String> {
    let uri: Uri = text.parse().map_err(|error| format!("{error}"))?;
    let web = matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some();
    if !web || uri.query().is_some() || text.contains('\'') {
        return Err("an address such as https://locks.example.com is needed".to_owned());
    }
    Ok(text.trim_end_matches('/').to_owned())
}

/// Runs the command with these arguments, with the program's name first and without `rules`.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let options = match Options::try_parse_from(args) {
        Ok(options) => options,
        Err(error) => {
            let printed = error.print();
            let failed = error.use_stderr() || printed.is_err();
            return if failed { ExitCode::from(EXIT_USAGE) } else { ExitCode::SUCCESS };
        }
    };
    print_result(&rendered(&options))
}

/// Returns one file of rules.
fn rendered(options: &Options) -> String {
    let chosen = |rules| options.programs.is_empty() || options.programs.contains(&rules);
    let mut file = String::from(
        "# Made by `lockscope-dashboard rules`. The scrape jobs must be named lockscope-agent and lockscope-dashboard.\n\
         groups:\n",
    );
    for (rules, text) in [(RulesOf::Agent, AGENT), (RulesOf::Dashboard, DASHBOARD)] {
        let groups = text.split_once("\ngroups:\n").map_or(text, |(_, groups)| groups);
        if !chosen(rules) {
            continue;
        }
        for line in groups.lines() {
            if let Some(line) = linked(line, options) {
                file.push_str(&line);
                file.push('\n');
            }
        }
    }
    file
}

/// Returns a line with the links of this installation, or `None` if the line consists of a link that is not configured.
fn linked(line: &str, options: &Options) -> Option<String> {
    for ((key, placeholder), url) in
        [(RUNBOOKS, &options.runbook_url), (PAGES, &options.dashboard_url)]
    {
        if line.trim_start().starts_with(key) {
            return Some(line.replace(placeholder, url.as_deref()?));
        }
    }
    Some(line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{Options, base, rendered};
    use clap::Parser as _;

    fn printed(arguments: &str) -> String {
        rendered(&Options::try_parse_from(arguments.split(' ')).expect("valid arguments"))
    }

    #[test]
    fn links_lead_to_the_addresses_given() {
        let both = printed("rules --dashboard-url https://a.example/ --runbook-url http://b:81/c");
        assert!(both.contains("runbook_url: http://b:81/c/lock-lost.md\n"));
        assert!(both.contains("dashboard_url: 'https://a.example/sources'\n"));
        assert!(!both.contains("lockscope.example") && !both.contains("runbooks.example"));
        assert_eq!(both.matches("runbook_url: ").count(), both.matches("- alert: ").count());
    }

    #[test]
    fn links_without_an_address_are_left_out() {
        let none = printed("rules");
        assert!(!none.contains("runbook_url") && !none.contains("dashboard_url"));
    }

    #[test]
    fn rules_of_one_program_are_alone() {
        let agent = printed("rules agent");
        assert!(agent.contains("LockscopeAgentDown") && !agent.contains("LockscopeLeaked"));
        let dashboard = printed("rules dashboard");
        assert!(dashboard.contains("LockscopeLeaked") && !dashboard.contains("LockscopeAgentDown"));
        assert_eq!(printed("rules agent dashboard"), printed("rules"));
    }

    #[test]
    fn addresses_are_those_of_web_pages() {
        for wrong in ["", "locks", "redis://a", "https://", "https://a/?b", "https://a/'"] {
            assert!(base(wrong).is_err(), "{wrong}");
        }
        assert_eq!(base("https://a/b/").as_deref(), Ok("https://a/b"));
    }
}
