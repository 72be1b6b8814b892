//! The verdict as a table or as JSON.

use anyhow::Result;

use crate::judge::Verdict;
use crate::servers::Kind;

/// Names the kind of Redis that a verdict is about.
#[expect(clippy::print_stdout, reason = "the verdict is the program's output")]
pub(crate) fn headline(kind: Kind, json: bool) {
    if !json {
        println!("\n{kind:?}\n");
    }
}

#[expect(clippy::print_stdout, reason = "the verdict is the program's output")]
pub(crate) fn print(verdict: &Verdict, json: bool) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string(verdict)?);
        return Ok(());
    }
    println!(
        "| fault | times | grants | overlaps that break a rule | worst report of a loss | worst time to serve |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    for (name, row) in &verdict.faults {
        let seconds = |ms: u64| format!("{}.{:03} s", ms / 1_000, ms % 1_000);
        println!(
            "| {name} | {} | {} | {} | {} | {} |",
            row.times,
            row.grants,
            row.overlaps,
            seconds(row.worst_loss_ms),
            seconds(row.worst_serve_ms)
        );
    }
    let (found, lost) = (verdict.findings.len(), verdict.after_data_loss.len());
    let (grants, resumed) = (verdict.grants, verdict.resumed);
    println!(
        "\n{grants} grants, {resumed} holds resumed, {found} findings, {lost} overlaps after data loss"
    );
    println!("\n| rule | times applied |\n| --- | --- |");
    for (rule, times) in &verdict.applied {
        let said = if *times == 0 { "never".to_owned() } else { times.to_string() };
        println!("| {rule} | {said} |");
    }
    for finding in &verdict.findings {
        println!("{} at {}: {}", finding.rule, finding.at, finding.text);
    }
    for finding in &verdict.after_data_loss {
        println!("after data loss: {} at {}: {}", finding.rule, finding.at, finding.text);
    }
    Ok(())
}
