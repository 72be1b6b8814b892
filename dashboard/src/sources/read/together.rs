//! One transaction for several locks that probably have no companions, like most locks.
//!
//! It costs the server two thirds of what a transaction for each of them costs: one EXISTS looks for all their companions,
//! and MULTI and EXEC are sent once.

use redis::{Cmd, Value, cmd};
use service_kit::redis::ServerError;

use super::call::{Caller, ReadError, send};
use super::findings::{Findings, Found};
use super::server_facts::ServerFacts;
use super::transaction::{Job, Outcome, evaluate};

/// Reads locks together until one of them has companions. Returns the jobs for the locks that have to be read one by one.
pub(super) async fn read_together(
    caller: &mut impl Caller,
    jobs: Vec<Job>,
    findings: &mut Findings,
) -> Result<Vec<Job>, ReadError> {
    let is_plain = |job: &Job| job.keys_of_unknown_companions().is_some();
    let (mut plain, mut left): (Vec<_>, Vec<_>) = jobs.into_iter().partition(is_plain);
    while plain.len() > 1 && caller.facts().may_check_at_once() {
        let size = caller.call_size().locks_together();
        let rest = plain.split_off(plain.len().min(size));
        let part = std::mem::replace(&mut plain, rest);
        let (commands, sizes) = commands(&part);
        let (stamp, replies) = send(caller, commands).await?;
        let Some(mut results) = results_without_companions(caller.facts(), replies) else {
            left.extend(part);
            break;
        };
        for (job, size) in part.into_iter().zip(sizes) {
            let rest = results.split_off(size.min(results.len()));
            let own = std::mem::replace(&mut results, rest);
            match evaluate(&job, own, false)? {
                Outcome::Read(reading) => {
                    findings.found.push(Found { name: job.name, stamp, reading });
                }
                _ => left.push(job),
            }
        }
    }
    left.extend(plain);
    Ok(left)
}

/// Returns the commands of the transaction, and the number of results of each lock.
fn commands(jobs: &[Job]) -> (Vec<Cmd>, Vec<usize>) {
    let mut commands = vec![cmd("MULTI")];
    let mut sizes = Vec::with_capacity(jobs.len());
    for job in jobs {
        let own = job.own_commands();
        sizes.push(own.len());
        commands.extend(own);
    }
    let companions: Vec<_> = jobs.iter().filter_map(Job::keys_of_unknown_companions).collect();
    commands.push(cmd("EXISTS").arg(companions.concat()).clone());
    commands.push(cmd("EXEC"));
    (commands, sizes)
}

/// Returns the results that concern the locks, or `None` if some lock has companions or the server refuses the transaction.
fn results_without_companions(
    facts: &ServerFacts,
    mut replies: Vec<Result<Value, ServerError>>,
) -> Option<Vec<Value>> {
    let exec = replies.pop();
    let is_final = |reply: &Result<_, ServerError>| {
        reply.as_ref().is_err_and(|error| !error.is_transient() && !error.is_oom())
    };
    // In a cluster, the keys are on different nodes.
    if replies.iter().any(is_final) {
        facts.deny_checks_at_once();
    }
    let Some(Ok(Value::Array(mut results))) = exec else { return None };
    (results.pop() == Some(Value::Int(0))).then_some(results)
}

#[cfg(test)]
mod tests {
    use redisson::LockName;
    use service_kit::redis::CallError;

    use super::*;
    use crate::model::types::{KnownParts, Reading, Token};

    const HOLDER: &str = "1f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:47";

    /// A server that replies to one transaction with this.
    struct Server {
        facts: ServerFacts,
        queued: Result<Value, ServerError>,
        exec: Result<Value, ServerError>,
        sent: Vec<String>,
    }

    impl Server {
        fn new(results: Vec<Value>) -> Self {
            Self {
                facts: ServerFacts::default(),
                queued: Ok(Value::SimpleString("QUEUED".into())),
                exec: Ok(Value::Array(results)),
                sent: Vec::new(),
            }
        }

        /// Reads two locks. Returns the found names with their tokens, and the names of the locks that are left.
        async fn read(&mut self) -> (Vec<(String, Token)>, Vec<String>) {
            let fields = vec![HOLDER.as_bytes().to_vec()];
            let known = KnownParts { fields, settled: true, token: true, ..KnownParts::default() };
            let facts = self.facts.clone();
            let jobs = ["a", "b"]
                .map(|name| Job::new(LockName::new(name.as_bytes()).unwrap(), &known, &facts));
            let mut findings = Findings::default();
            let left = read_together(self, jobs.into(), &mut findings).await.unwrap();
            let found = findings.found.into_iter().map(|found| {
                let Reading::Lock { companions, .. } = found.reading else { panic!("no lock") };
                (found.name.to_string(), companions.token)
            });
            (found.collect(), left.iter().map(|job| job.name.to_string()).collect())
        }
    }

    impl Caller for Server {
        async fn send(
            &mut self,
            commands: Vec<Cmd>,
        ) -> Result<Vec<Result<Value, ServerError>>, CallError> {
            let text = |command: &Cmd| {
                String::from_utf8(command.get_packed_command()).unwrap().replace("\r\n", " ")
            };
            self.sent = commands.iter().map(text).collect();
            let queued = vec![self.queued.clone(); commands.len() - 1];
            Ok(queued.into_iter().chain([self.exec.clone()]).collect())
        }

        fn facts(&self) -> &ServerFacts {
            &self.facts
        }
    }

    /// The results for a lock with one holder and that number of fields.
    fn lock(fields: i64) -> [Value; 3] {
        let count = Value::BulkString(b"1".to_vec());
        [Value::Int(fields), Value::Int(30_000), Value::Array(vec![count])]
    }

    fn error(code: &str) -> ServerError {
        ServerError { code: code.into(), message: String::new() }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[tokio::test]
    async fn locks_without_companions_take_one_transaction() {
        let results = [lock(1), lock(1)].into_iter().flatten().chain([Value::Int(0)]);
        let mut server = Server::new(results.collect());
        let absent = |name: &str| (name.to_owned(), Token::Absent);
        assert_eq!(server.read().await, (vec![absent("a"), absent("b")], names(&[])));
        assert_eq!(server.sent.len(), 1 + 2 * 3 + 2, "{:?}", server.sent);
        let exists = &server.sent[7];
        for key in ["queue:{a}", "token:{a}", "queue:{b}", "token:{b}"] {
            assert!(exists.contains("EXISTS") && exists.contains(key), "{exists}");
        }
    }

    #[tokio::test]
    async fn locks_with_companions_are_left() {
        let results = [lock(1), lock(1)].into_iter().flatten().chain([Value::Int(1)]);
        let mut server = Server::new(results.collect());
        assert_eq!(server.read().await, (vec![], names(&["a", "b"])));
        assert!(server.facts.may_check_at_once());
    }

    #[tokio::test]
    async fn a_lock_that_has_changed_is_left() {
        let results = [lock(2), lock(1)].into_iter().flatten().chain([Value::Int(0)]);
        let mut server = Server::new(results.collect());
        assert_eq!(server.read().await, (vec![("b".to_owned(), Token::Absent)], names(&["a"])));
    }

    #[tokio::test]
    async fn a_refusal_leaves_all_and_is_remembered_if_it_is_final() {
        for (code, is_final) in [("CROSSSLOT", true), ("LOADING", false), ("OOM", false)] {
            let mut server = Server::new(Vec::new());
            (server.queued, server.exec) = (Err(error(code)), Err(error("EXECABORT")));
            assert_eq!(server.read().await, (vec![], names(&["a", "b"])));
            assert_eq!(server.facts.may_check_at_once(), !is_final, "{code}");
            server.sent.clear();
            server.read().await;
            assert_eq!(server.sent.is_empty(), is_final, "{code}");
        }
    }
}
