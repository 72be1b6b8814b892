//! Visitors who are rejected, in the log.

use anyhow::{Result, ensure};
use harness::{Dashboard, eventually, http};
use tokio::time::Instant;

#[tokio::test]
async fn rejected_visitors_cannot_flood_the_log() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let settings = folder.path().join("settings.toml");
    let toml = "trusted_proxy = [\"127.0.0.0/8\"]\ntrusted_user_header = \"X-Forwarded-User\"\n\
        trusted_address_header = \"X-Forwarded-For\"\n\
        [[access]]\nuser = \"anna\"\nrights = [\"look\"]\n";
    std::fs::write(&settings, toml)?;
    let flags = ["--config", &settings.to_string_lossy()];
    let mut dashboard = Dashboard::start("redis://127.0.0.1:1", &flags).await?;
    let headers = [("X-Forwarded-User", "bob"), ("X-Forwarded-For", "192.0.2.7")];
    let path = format!("/{}", "x".repeat(10_000));
    let since = Instant::now();
    for _ in 0..200 {
        let answer = http::request(dashboard.port(), "GET", &path, &headers, "").await?;
        ensure!(answer.status == 403, "{}", answer.status);
    }
    let log = eventually("a line in the log", async || {
        let log = dashboard.process().log();
        ensure!(log.contains("visitor rejected"), "{log}");
        Ok(log)
    })
    .await;
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("visitor rejected")).collect();
    // Twenty in each minute that has begun.
    let minutes = since.elapsed().as_secs() / 60 + 2;
    ensure!(lines.len() as u64 <= 20 * minutes, "{} lines", lines.len());
    for line in lines {
        ensure!(line.contains("192.0.2.7") && line.contains("bob") && line.len() < 1_000, "{line}");
    }
    Ok(())
}
