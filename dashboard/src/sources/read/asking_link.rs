//! Reads on a node that is about to take over a slot. Until it owns the slot, it serves the slot's keys only after ASKING.

use redis::{Arg, Cmd, Pipeline, Value};
use service_kit::redis::{CallError, Link, ServerError};

use super::call::Caller;
use super::server_facts::ServerFacts;

/// An unpaced connection to such a node.
#[derive(Debug)]
pub struct AskingLink<'a>(pub &'a Link, pub &'a ServerFacts);

impl Caller for AskingLink<'_> {
    async fn send(
        &mut self,
        commands: Vec<Cmd>,
    ) -> Result<Vec<Result<Value, ServerError>>, CallError> {
        let (pipeline, wanted) = with_asking(commands);
        let replies = self.0.pipeline(pipeline).await?;
        let wanted = replies.into_iter().zip(wanted).filter(|(_, wanted)| *wanted);
        Ok(wanted.map(|(reply, _)| reply).collect())
    }

    fn facts(&self) -> &ServerFacts {
        self.1
    }
}

/// Returns the commands with ASKING before each of them, or once before a transaction. Also returns whether each reply
/// belongs to one of the commands.
fn with_asking(commands: Vec<Cmd>) -> (Pipeline, Vec<bool>) {
    let mut pipeline = Pipeline::with_capacity(commands.len() * 2);
    let mut wanted = Vec::with_capacity(commands.len() * 2);
    let mut within = false;
    for command in commands {
        if !within {
            pipeline.cmd("ASKING");
            wanted.push(false);
        }
        match command.args_iter().next() {
            Some(Arg::Simple(b"MULTI")) => within = true,
            Some(Arg::Simple(b"EXEC")) => within = false,
            _ => {}
        }
        pipeline.add_command(command);
        wanted.push(true);
    }
    (pipeline, wanted)
}

#[cfg(test)]
mod tests {
    use redis::cmd;

    use super::*;

    #[test]
    fn a_transaction_needs_asking_once_and_other_commands_each() {
        let verbs = ["HLEN", "MULTI", "HLEN", "PTTL", "EXEC", "TYPE"];
        let (pipeline, wanted) = with_asking(verbs.map(cmd).into());
        let verb = |command: &Cmd| match command.args_iter().next() {
            Some(Arg::Simple(verb)) => String::from_utf8_lossy(verb).into_owned(),
            _ => String::new(),
        };
        let all: Vec<String> = pipeline.cmd_iter().map(verb).collect();
        assert_eq!(all.join(" "), "ASKING HLEN ASKING MULTI HLEN PTTL EXEC ASKING TYPE");
        let ours = all.iter().zip(&wanted).filter(|(_, wanted)| **wanted).map(|(verb, _)| verb);
        assert_eq!(ours.collect::<Vec<_>>(), verbs.iter().collect::<Vec<_>>());
    }
}
