//! A real Prometheus that scrapes our programs, and a real Alertmanager that it notifies.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tempfile::TempDir;

use crate::process::{self, Process};
use crate::redis::random_port;
use crate::{eventually, http};

/// A running Prometheus with its own folder and port. Killed when dropped.
#[derive(Debug)]
pub struct Prometheus {
    process: Process,
    port: u16,
    _folder: TempDir,
}

impl Prometheus {
    /// Starts a Prometheus that scrapes these ports of this host every second, with these job names and rules.
    ///
    /// # Errors
    /// Returns an error if there is no Prometheus, it does not start, or it rejects the rules.
    pub async fn start(jobs: &[(&str, Vec<u16>)], rules: &str) -> Result<Self> {
        Self::every(Duration::from_secs(1), jobs, rules).await
    }

    /// Starts a Prometheus that scrapes and evaluates its rules at this interval.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn every(interval: Duration, jobs: &[(&str, Vec<u16>)], rules: &str) -> Result<Self> {
        Self::launch(interval, jobs, rules, "").await
    }

    /// Starts a Prometheus as [`start`](Self::start) does, which sends its alerts to this Alertmanager.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn notifying(
        alertmanager: &Alertmanager,
        jobs: &[(&str, Vec<u16>)],
        rules: &str,
    ) -> Result<Self> {
        let alerting = format!(
            "alerting: {{alertmanagers: [{{static_configs: [{{targets: ['127.0.0.1:{}']}}]}}]}}\n",
            alertmanager.port
        );
        Self::launch(Duration::from_secs(1), jobs, rules, &alerting).await
    }

    async fn launch(
        interval: Duration,
        jobs: &[(&str, Vec<u16>)],
        rules: &str,
        alerting: &str,
    ) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("lockscope-prometheus-").tempdir()?;
        let every = format!("{}ms", interval.as_millis());
        let mut config = format!(
            "global: {{scrape_interval: {every}, scrape_timeout: {every}, \
             evaluation_interval: {every}}}\nrule_files: [rules.yml]\n{alerting}scrape_configs:\n"
        );
        for (job, ports) in jobs {
            let targets: Vec<_> = ports.iter().map(|port| format!("'127.0.0.1:{port}'")).collect();
            let targets = targets.join(", ");
            config.push_str(&format!(
                "- job_name: {job}\n  static_configs: [{{targets: [{targets}]}}]\n"
            ));
        }
        std::fs::write(folder.path().join("prometheus.yml"), config)?;
        std::fs::write(folder.path().join("rules.yml"), rules)?;
        let (process, port) = serving(&["prometheus"], folder.path(), |command, port| {
            command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
            command.args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"]);
            command.arg("--log.level=warn");
        })
        .await?;
        Ok(Self { process, port, _folder: folder })
    }

    /// Runs a query and returns its rows, possibly none.
    ///
    /// # Errors
    /// Returns an error if Prometheus does not answer, or rejects the query.
    pub async fn query(&self, query: &str) -> Result<Vec<Value>> {
        let query = utf8_percent_encode(query, NON_ALPHANUMERIC);
        let answer = self.ask(&format!("/api/v1/query?query={query}")).await?;
        Ok(answer["result"].as_array().cloned().unwrap_or_default())
    }

    /// Returns every rule with its name and its last error, if any.
    ///
    /// # Errors
    /// Returns an error if Prometheus does not answer.
    pub async fn rules(&self) -> Result<Vec<Value>> {
        let answer = self.ask("/api/v1/rules").await?;
        let groups = answer["groups"].as_array().cloned().unwrap_or_default();
        let rules = groups.iter().filter_map(|group| group["rules"].as_array().cloned());
        Ok(rules.flatten().collect())
    }

    /// Returns the alerts that fire now, by their labels.
    ///
    /// # Errors
    /// Returns an error if Prometheus does not answer.
    pub async fn firing(&self) -> Result<Vec<Value>> {
        let answer = self.ask("/api/v1/alerts").await?;
        let alerts = answer["alerts"].as_array().cloned().unwrap_or_default();
        let firing = alerts.into_iter().filter(|alert| alert["state"] == "firing");
        Ok(firing.map(|alert| alert["labels"].clone()).collect())
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    async fn ask(&self, path: &str) -> Result<Value> {
        let answer = http::get_whole(self.port, path).await?;
        let json = answer.json()?;
        ensure!(json["status"] == "success", "{path}: {}", json["error"]);
        Ok(json["data"].clone())
    }
}

/// A running Alertmanager with its own folder and port. Killed when dropped.
#[derive(Debug)]
pub struct Alertmanager {
    _process: Process,
    port: u16,
    _folder: TempDir,
}

impl Alertmanager {
    /// Starts an Alertmanager with this configuration.
    ///
    /// # Errors
    /// Returns an error if there is no Alertmanager, it does not start, or it rejects the configuration.
    pub async fn start(config: &str) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("lockscope-alertmanager-").tempdir()?;
        std::fs::write(folder.path().join("alertmanager.yml"), config)?;
        // Debian renames the program.
        let names = ["alertmanager", "prometheus-alertmanager"];
        let (process, port) = serving(&names, folder.path(), |command, port| {
            command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
            command.args(["--cluster.listen-address=", "--config.file=alertmanager.yml"]);
            command.args(["--storage.path=data", "--log.level=warn"]);
        })
        .await?;
        Ok(Self { _process: process, port, _folder: folder })
    }

    /// Returns the alerts that it has, each with its labels, status and receivers.
    ///
    /// # Errors
    /// Returns an error if it does not answer.
    pub async fn alerts(&self) -> Result<Vec<Value>> {
        let answer = http::get_whole(self.port, "/api/v2/alerts").await?.json()?;
        answer.as_array().cloned().with_context(|| answer.to_string())
    }
}

/// Starts a program under the first of these names in its folder, on a free port, and waits until it is ready.
async fn serving(
    names: &[&str],
    folder: &Path,
    arguments: impl Fn(&mut Command, u16),
) -> Result<(Process, u16)> {
    let program = names.iter().find_map(|name| process::on_path(name));
    let program =
        program.with_context(|| format!("there is no {}: `make deps` installs it", names[0]))?;
    for port in std::iter::repeat_with(random_port).take(20) {
        if TcpListener::bind(("127.0.0.1", port)).is_err() {
            continue;
        }
        let mut command = process::command(&program);
        command.current_dir(folder);
        arguments(&mut command, port);
        let mut process = Process::spawn(names[0], command, &folder.join("log"), None)?;
        let up = eventually(&format!("{} to be ready", names[0]), async || {
            if process.ended()?.is_some() {
                return Ok(false);
            }
            let ready = http::get_whole(port, "/-/ready").await?;
            ensure!(ready.status == 200, "{}", ready.body);
            Ok(true)
        })
        .await;
        if up {
            return Ok((process, port));
        }
        let said = process.log();
        ensure!(said.contains("address already in use"), "{} ended at once:\n{said}", names[0]);
    }
    bail!("no port is free for {}", names[0])
}
