//! Locks on open pages, and requested readings.

use tokio_util::sync::CancellationToken;

use super::*;
use crate::clock::now;

struct NoListener;

impl actor::Listener for NoListener {
    fn effect(&mut self, _: &Arc<str>, _: Effect) {}
    fn lag(&mut self, _: ScopeId, _: Duration) {}
}

#[tokio::test]
async fn a_lock_on_an_open_page_is_read_even_if_the_model_was_busy_when_the_page_was_opened() {
    let scopes = [(Arc::from("main"), 0)];
    let model = Model::new(settings(), Grouping::new(Vec::new(), 10), &scopes, now());
    let (actor, handle, _hub, mut batches) = actor::new(model, &scopes);
    let (run_id, cluster) = (None, false);
    let (since, steady) = (now(), SteadyMillis::now());
    let up = Observation::ServerUp { since, at: steady, run_id, cluster };
    while handle.try_observe(MAIN, up.clone()) {}
    let id = LockId { deployment: "main".into(), db: 0, name: name("a") };
    let opening = handle.clone();
    let opened = tokio::spawn(async move { opening.set_viewed(vec![id]).await });
    tokio::task::yield_now().await;
    let stop = CancellationToken::new();
    let task = tokio::spawn(actor.run(NoListener, stop.clone()));
    let batch = tokio::time::timeout(Duration::from_secs(20), batches[0].recv()).await;
    assert_eq!(batch.unwrap().unwrap()[0].name, name("a"));
    opened.await.unwrap();
    stop.cancel();
    task.await.unwrap();
}

#[tokio::test]
async fn a_lock_on_an_open_page_is_read_at_the_node_to_which_its_slot_has_moved() {
    let scopes = [(Arc::from("main"), 0)];
    let model = Model::new(settings(), Grouping::new(Vec::new(), 10), &scopes, now());
    let (actor, handle, _hub, _batches) = actor::new(model, &scopes);
    let stop = CancellationToken::new();
    let task = tokio::spawn(actor.run(NoListener, stop.clone()));
    let mut nodes = Vec::new();
    for _ in 0..2 {
        let (node, batches) = handle.join(MAIN).await.unwrap();
        let (since, at, run_id) = (now(), SteadyMillis::now(), None);
        handle.observe(node, Observation::ServerUp { since, at, run_id, cluster: true }).await;
        nodes.push((node, batches));
    }
    let id = LockId { deployment: "main".into(), db: 0, name: name("a") };
    handle.set_viewed(vec![id]).await;
    for (node, batches) in &mut nodes {
        let slots = vec![(0..=16_383, *node)];
        let served = SlotAssignment { slots, drained: Vec::new(), at: Time::now() };
        handle.observe(MAIN, Observation::SlotsAssigned(served)).await;
        let batch = tokio::time::timeout(Duration::from_secs(20), batches.recv()).await;
        assert_eq!(batch.unwrap().unwrap()[0].name, name("a"));
    }
    stop.cancel();
    task.await.unwrap();
}

#[tokio::test]
async fn a_reading_that_was_sent_before_a_request_does_not_answer_it() {
    let scopes = [(Arc::from("main"), 0)];
    let model = Model::new(settings(), Grouping::new(Vec::new(), 10), &scopes, now());
    let (actor, handle, _hub, _batches) = actor::new(model, &scopes);
    let stop = CancellationToken::new();
    let task = tokio::spawn(actor.run(NoListener, stop.clone()));
    let (since, at, run_id) = (now(), SteadyMillis::now(), None);
    handle.observe(MAIN, Observation::ServerUp { since, at, run_id, cluster: false }).await;
    let earlier = now() - Duration::from_millis(1);
    let read = async |sent, reading| {
        let stamp = Stamp { sent, received: Time::now() };
        let (name, source) = (name("a"), Source::Poll);
        handle.observe(MAIN, Observation::Read { name, stamp, source, reading }).await;
    };
    let id = LockId { deployment: "main".into(), db: 0, name: name("a") };
    // The request is in the model's queue before the readings are.
    let (answer, ()) = tokio::join!(
        biased;
        handle.request_reading(&id, Duration::from_secs(20)),
        async {
            read(earlier, held(1, 1, Some(30_000))).await;
            read(now(), held(2, 1, Some(30_000))).await;
        }
    );
    assert_eq!(answer.unwrap().reading, held(2, 1, Some(30_000)));
    stop.cancel();
    task.await.unwrap();
}
