//! Tests of each rule, with a history that breaks it and one that does not.

use super::*;

/// Returns an event of a hand-written history; instants are in seconds.
fn at(seconds: u64, worker: u32, what: What) -> Event {
    Event { at: seconds * SECOND, worker, what }
}

/// Returns a grant of a request sent just before, valid for ten seconds.
fn grant(seconds: u64, worker: u32, kind: &str, holder: &str, token: Option<i64>) -> Event {
    asked(seconds, seconds, worker, kind, holder, token)
}

fn asked(
    asked: u64,
    seconds: u64,
    worker: u32,
    kind: &str,
    holder: &str,
    token: Option<i64>,
) -> Event {
    let (kind, holder) = (kind.to_owned(), holder.to_owned());
    let until = (seconds + 10) * SECOND;
    let asked = asked * SECOND;
    at(seconds, worker, What::Grant { lock: "a".to_owned(), kind, holder, token, until, asked })
}

fn releasing(seconds: u64, worker: u32) -> Event {
    at(seconds, worker, What::Releasing { lock: "a".to_owned() })
}

fn lost(seconds: u64, worker: u32) -> Event {
    at(seconds, worker, What::Lost { lock: "a".to_owned(), reason: "missing".to_owned() })
}

fn fault(from: u64, to: u64, data_lost: bool) -> Event {
    let name = "fault".to_owned();
    at(to, 0, What::Fault { name, from: from * SECOND, data_lost, lock: None })
}

fn rules(events: &[Event]) -> Vec<&'static str> {
    judge(events).findings.iter().map(|finding| finding.rule).collect()
}

#[test]
fn two_holders_at_once_are_found() {
    let second = grant(5, 2, "lock", "2", None);
    assert_eq!(rules(&[grant(1, 1, "lock", "1", None), second.clone()]), ["exclusion"]);
    assert!(rules(&[grant(1, 1, "lock", "1", None), releasing(4, 1), second.clone()]).is_empty());
    let killed = at(4, 0, What::Killed { victim: 1 });
    assert!(rules(&[grant(1, 1, "lock", "1", None), killed, second.clone()]).is_empty());
    let disconnected = at(4, 1, What::Disconnected);
    assert!(rules(&[grant(1, 1, "lock", "1", None), disconnected, second]).is_empty());
}

#[test]
fn a_hold_lasts_until_the_validity_that_was_reported_last() {
    let first = grant(1, 1, "lock", "1", None);
    let second = grant(12, 2, "lock", "2", None);
    assert!(rules(&[first.clone(), second.clone()]).is_empty());
    let valid = at(9, 1, What::Valid { lock: "a".to_owned(), until: 19 * SECOND });
    assert_eq!(rules(&[first, valid, second]), ["exclusion"]);
}

#[test]
fn readers_exclude_writers_and_not_each_other() {
    let read = grant(1, 1, "read", "1", None);
    assert!(rules(&[read.clone(), grant(2, 2, "read", "2", None)]).is_empty());
    assert_eq!(rules(&[read, grant(2, 2, "write", "2", None)]), ["exclusion"]);
}

#[test]
fn a_loss_reported_after_the_next_grant_is_found() {
    let (first, second) = (grant(1, 1, "lock", "1", None), grant(5, 2, "lock", "2", None));
    assert_eq!(rules(&[first.clone(), second.clone(), lost(6, 1)]), ["loss reported late"]);
    assert!(rules(&[first, lost(4, 1), second]).is_empty());
}

#[test]
fn overlaps_after_a_loss_of_data_are_counted_apart() {
    let events =
        [grant(1, 1, "lock", "1", None), grant(5, 2, "lock", "2", None), fault(3, 4, true)];
    let verdict = judge(&events);
    assert!(verdict.findings.is_empty());
    assert_eq!(verdict.after_data_loss.len(), 1);
    let harmless = [events[0].clone(), events[1].clone(), fault(3, 4, false)];
    assert_eq!(rules(&harmless), ["exclusion"]);
    let before =
        [grant(8, 1, "lock", "1", None), grant(9, 2, "lock", "2", None), fault(3, 4, true)];
    assert_eq!(rules(&before), ["exclusion"]);
    let forced = |of: &str| {
        let mut history = events.clone();
        if let What::Fault { lock, .. } = &mut history[2].what {
            *lock = Some(of.to_owned());
        }
        rules(&history)
    };
    assert!(forced("a").is_empty());
    assert_eq!(forced("b"), ["exclusion"], "another lock's release is no excuse");
}

#[test]
fn a_token_that_does_not_grow_is_found() {
    let first = [grant(1, 1, "fenced", "1", Some(7)), releasing(2, 1)];
    let then = |asked_at, token| {
        let mut events = first.to_vec();
        events.push(asked(asked_at, 3, 2, "fenced", "2", Some(token)));
        rules(&events)
    };
    assert_eq!(then(2, 6), ["token order"]);
    assert_eq!(then(2, 7), ["token order"]);
    assert!(then(2, 8).is_empty());
    // A request that was sent before the first grant was read may have been served first.
    assert!(then(0, 6).is_empty());
}

#[test]
fn a_holder_number_used_twice_is_found() {
    let first = [grant(1, 1, "lock", "1", None), releasing(2, 1)];
    let with = |holder| [first.to_vec(), vec![grant(3, 2, "lock", holder, None)]].concat();
    assert_eq!(rules(&with("1")), ["number used twice"]);
    assert!(rules(&with("2")).is_empty());
}

#[test]
fn a_fair_waiter_that_was_overtaken_in_calm_is_found() {
    let overtaken = |asked_at| {
        vec![
            asked(asked_at, 30, 2, "fair", "2", None),
            releasing(31, 2),
            asked(25, 32, 1, "fair", "1", None),
        ]
    };
    assert_eq!(rules(&overtaken(28)), ["fair order"]);
    assert!(rules(&overtaken(26)).is_empty());
    assert!(rules(&[overtaken(28), vec![fault(20, 29, false)]].concat()).is_empty());
}

#[test]
fn a_lock_that_is_not_granted_after_the_faults_is_found() {
    let healed = at(5, 0, What::Healed { locks: vec!["a".to_owned()] });
    assert_eq!(rules(&[grant(1, 1, "lock", "1", None), healed.clone()]), ["liveness"]);
    assert!(rules(&[healed, grant(6, 1, "lock", "1", None)]).is_empty());
}

#[test]
fn a_key_that_is_left_over_is_found() {
    let left = at(9, 0, What::LeftOver { key: "a".to_owned() });
    assert_eq!(rules(&[grant(1, 1, "lock", "1", None), left]), ["left over"]);
}

#[test]
fn a_worker_that_ends_by_itself_is_found_with_its_log() {
    let ended = at(4, 0, What::Ended { victim: 1, log: "no memory".to_owned() });
    let history = [grant(1, 1, "lock", "1", None), ended, grant(5, 2, "lock", "2", None)];
    let verdict = judge(&history);
    let [found] = verdict.findings.as_slice() else { panic!("{:?}", verdict.findings) };
    assert_eq!(found.rule, "worker ended");
    assert!(found.text.ends_with("no memory"));
    let killed = at(4, 0, What::Killed { victim: 1 });
    assert!(rules(&[history[0].clone(), killed, history[2].clone()]).is_empty());
}

#[test]
fn a_loss_read_after_the_validity_ended_is_found() {
    let with = |lost_at| [grant(1, 1, "lock", "1", None), lost(lost_at, 1)];
    assert_eq!(rules(&with(15)), ["loss reported after the end"]);
    assert!(rules(&with(14)).is_empty());
    let name = "agent stopped".to_owned();
    let stopped = at(12, 0, What::Fault { name, from: 5 * SECOND, data_lost: false, lock: None });
    let [granted, lost] = with(15);
    assert!(rules(&[granted, stopped, lost]).is_empty());
}

#[test]
fn tokens_and_numbers_go_on_after_a_loss_of_data() {
    let flushed = fault(2, 2, true);
    let then = |token, holder| {
        let first = grant(1, 1, "fenced", "1", Some(7));
        let events =
            [first, releasing(1, 1), flushed.clone(), grant(3, 2, "fenced", holder, token)];
        rules(&events)
    };
    assert_eq!(then(Some(6), "2"), ["token order"]);
    assert_eq!(then(Some(8), "1"), ["number used twice"]);
    assert!(then(Some(8), "2").is_empty());
}

#[test]
fn rules_count_what_they_were_applied_to() {
    let waiters = [asked(28, 32, 2, "fair", "2", None), asked(25, 30, 1, "fair", "1", None)];
    let count = |events: &[Event], rule| judge(events).applied.get(rule).copied();
    assert_eq!(count(&waiters[1..], "fair order"), Some(0));
    let both = [waiters[1].clone(), releasing(31, 1), waiters[0].clone()];
    assert_eq!(count(&both, "fair order"), Some(1));
    assert_eq!(count(&both, "exclusion"), Some(1));
    let tokens = [grant(1, 1, "fenced", "1", Some(1)), releasing(2, 1)];
    assert_eq!(count(&tokens, "token order"), Some(0));
}

#[test]
fn a_resumed_hold_goes_on_until_its_validity_ends() {
    let first = grant(1, 1, "lock", "1", None);
    let resumed = at(8, 1, What::Resumed { holds: 1 });
    let valid = at(8, 1, What::Valid { lock: "a".to_owned(), until: 18 * SECOND });
    let second = grant(12, 2, "lock", "2", None);
    let verdict = judge(&[first.clone(), resumed.clone(), valid, second.clone()]);
    assert_eq!((verdict.resumed, verdict.findings.len()), (1, 1));
    // The worker no longer relies on holds that it could not resume.
    assert!(rules(&[first, resumed, releasing(8, 1), second]).is_empty());
}
