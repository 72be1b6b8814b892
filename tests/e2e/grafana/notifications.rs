//! The example of routing in a real Alertmanager: a fault is notified once, as its cause.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Result, ensure};
use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use harness::{Agent, Alertmanager, Dashboard, Prometheus, RedisServer, eventually};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::alerts::{LOST, SCRAPES, fired, hurried, lock};
use super::{FOLDER, rules, text};

/// The alerts that have been notified, each with its receiver.
type Notified = Arc<Mutex<BTreeSet<(String, String)>>>;

/// Redis, two agents, a dashboard, and the hurried rules in a Prometheus, with the example in an Alertmanager that notifies
/// this test.
struct OnCall {
    redis: RedisServer,
    agents: [Agent; 2],
    _dashboard: Dashboard,
    prometheus: Prometheus,
    alertmanager: Alertmanager,
    notified: Notified,
    server: JoinHandle<()>,
}

impl Drop for OnCall {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl OnCall {
    async fn start() -> Result<Self> {
        let notified = Notified::default();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/", listener.local_addr()?);
        let router = Router::new().route("/", post(take)).with_state(Arc::clone(&notified));
        let server = tokio::spawn(async move {
            axum::serve(listener, router).await.ok();
        });
        let mut example = text(&format!("{FOLDER}/alertmanager.yml"))?;
        for receiver in ["pager", "tickets", "log"] {
            let name = format!("  - name: {receiver}\n");
            ensure!(example.contains(&name), "no receiver {receiver}");
            let posts = format!("{name}    webhook_configs: [{{url: '{url}'}}]\n");
            example = example.replace(&name, &posts);
        }
        for wait in ["group_wait: 5m", "group_wait: 2m", "group_wait: 30s"] {
            ensure!(example.contains(wait), "no {wait}");
            example = example.replace(wait, "group_wait: 5s");
        }
        let redis = RedisServer::start().await?;
        let flags = ["--lease", "15s"];
        let agents = [Agent::with(&redis, &flags).await?, Agent::with(&redis, &flags).await?];
        let flags = ["--stuck-after", "3s", "--starving-after", "3s", "--scan-every", "1s"];
        let dashboard = Dashboard::start(&redis.url(), &flags).await?;
        let alertmanager = Alertmanager::start(&example).await?;
        let jobs = [
            ("lockscope-agent", agents.iter().map(Agent::http).collect()),
            ("lockscope-dashboard", vec![dashboard.port()]),
        ];
        let prometheus = Prometheus::notifying(&alertmanager, &jobs, &hurried(&rules()?)).await?;
        let _dashboard = dashboard;
        Ok(Self { redis, agents, _dashboard, prometheus, alertmanager, notified, server })
    }

    /// Waits until this receiver is notified of this alert.
    async fn until_notified(&self, receiver: &str, alert: &str) {
        let wanted = (receiver.to_owned(), alert.to_owned());
        eventually(alert, async || {
            let notified = self.notified();
            ensure!(notified.contains(&wanted), "{notified:?}");
            Ok(())
        })
        .await;
    }

    /// Waits until these alerts fire, and are suppressed.
    async fn until_suppressed(&self, names: &[&str]) {
        eventually("alerts to be suppressed", async || {
            let alerts = self.alertmanager.alerts().await?;
            for name in names {
                let ours = alerts.iter().filter(|alert| alert["labels"]["alertname"] == *name);
                let states: Vec<_> = ours.map(|alert| &alert["status"]["state"]).collect();
                let all = !states.is_empty() && states.iter().all(|state| *state == "suppressed");
                ensure!(all, "{name}: {alerts:?}");
            }
            Ok(())
        })
        .await;
    }

    /// Returns the notified alerts, without those on scrapes: a busy machine misses some now and then.
    fn notified(&self) -> BTreeSet<(String, String)> {
        let mut notified = self.notified.lock().clone();
        notified.retain(|(_, alert)| !SCRAPES.contains(&alert.as_str()));
        notified
    }
}

async fn take(State(notified): State<Notified>, Json(notification): Json<Value>) {
    let mut notified = notified.lock();
    let receiver = notification["receiver"].as_str().unwrap_or_default();
    for alert in notification["alerts"].as_array().into_iter().flatten() {
        let name = alert["labels"]["alertname"].as_str().unwrap_or_default();
        notified.insert((receiver.to_owned(), name.to_owned()));
    }
}

#[tokio::test]
async fn a_redis_that_hangs_pages_as_that_and_not_as_what_follows() -> Result<()> {
    let mut on_call = OnCall::start().await?;
    let mut workers = Vec::new();
    for agent in &on_call.agents {
        let mut worker = agent.client().await?;
        lock(&mut worker, &format!("report:{}", agent.http())).await?;
        workers.push(worker);
    }
    eventually("the group to be scraped at both agents", async || {
        let seen =
            on_call.prometheus.query(&format!("count({LOST}{{reason=\"missing\"}})")).await?;
        ensure!(seen.iter().any(|row| row["value"][1] == "2"), "{seen:?}");
        Ok(())
    })
    .await;
    on_call.redis.process().freeze().await?;
    on_call.until_notified("pager", "LockscopeAgentRedisDown").await;
    on_call.until_suppressed(&["LockscopeLockLost", "LockscopeRenewalErrors"]).await;
    on_call.until_notified("tickets", "LockscopeBlind").await;
    let pages = on_call.notified().into_iter().filter(|(receiver, _)| receiver == "pager");
    let pages: Vec<String> = pages.map(|(_, alert)| alert).collect();
    assert_eq!(pages, ["LockscopeAgentRedisDown"], "{:?}", fired(&on_call.prometheus).await?);
    Ok(())
}

#[tokio::test]
async fn a_stuck_lock_is_a_ticket_and_its_waiters_are_none() -> Result<()> {
    let on_call = OnCall::start().await?;
    let mut holder = on_call.agents[0].client().await?;
    lock(&mut holder, "report:1").await?;
    on_call.until_notified("tickets", "LockscopeStuck").await;
    let mut waiter = on_call.agents[1].client().await?;
    waiter.send("LOCK report:1").await?;
    on_call.until_suppressed(&["LockscopeOldestWait", "LockscopeStarving"]).await;
    // A busy machine may have alerts of its own, such as one on late renewals.
    let ours = [
        "LockscopeStuck",
        "LockscopeStarving",
        "LockscopeOldestWait",
        "LockscopeWaitsLong",
        "LockscopeWaitersCrowd",
        "LockscopeAcquireTimeouts",
    ];
    let mut notified = on_call.notified();
    notified.retain(|(_, alert)| ours.contains(&alert.as_str()));
    assert_eq!(notified, BTreeSet::from([("tickets".into(), "LockscopeStuck".into())]));
    Ok(())
}
