//! All that scripts and subscriptions go to: the Redis of all kinds but red, and the servers of red locks.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::Either;
use futures_util::stream::{BoxStream, SelectAll};
use redisson::ClientId;
use redisson::script::{Call, Publish};
use service_kit::redis::{Cluster, Endpoint, Target};
use service_kit::shutdown::Shutdown;
use service_kit::trace::TraceParent;

use super::confirmed_calls::Replicas;
use super::redis_cluster::RedisCluster;
use super::redis_node::{FromRedis, NodeOptions, Outcome, RedisNode};
use crate::core::{Lane, Node, OpId};
use crate::metrics::Metrics;

/// The Redis of all kinds but red.
#[derive(Debug, Clone)]
pub enum Backend {
    /// One server, or the one that is the master at the time.
    Server(Endpoint),
    Cluster(Cluster),
}

/// The servers, and the settings of connections to them.
#[derive(Debug)]
pub struct ServersStart {
    /// The client id of this agent's holders in Redis.
    pub client: ClientId,
    pub main: Backend,
    /// The way to publish releases in a cluster that supports it.
    pub cluster_messages: Publish,
    /// The servers of red locks, in the order in which the settings name them.
    pub red: Vec<Target>,
    pub connect_timeout: Duration,
}

/// Events from all servers.
pub(super) type News = SelectAll<BoxStream<'static, (Node, FromRedis)>>;

enum MainSide {
    Server(RedisNode),
    Cluster(RedisCluster),
}

pub(super) struct Servers {
    main: MainSide,
    red: Vec<RedisNode>,
}

impl Servers {
    /// Begins to connect to all of them. An answer is waited for that long, and replicas of the main one as these say.
    pub(super) fn start(
        start: ServersStart,
        response_timeout: Duration,
        replicas: Replicas,
        metrics: &Arc<Metrics>,
        stage: &Shutdown,
    ) -> (Self, News) {
        let options = NodeOptions {
            client: start.client,
            connect_timeout: start.connect_timeout,
            response_timeout,
            red: false,
            in_cluster: false,
            replicas: (replicas.wanted > 0).then_some(replicas),
        };
        let mut news = SelectAll::new();
        let main = match start.main {
            Backend::Server(endpoint) => {
                let (side, events) = RedisNode::start(options, &endpoint, metrics, stage);
                news.push(events.map(|event| (Node::Main, event)).boxed());
                MainSide::Server(side)
            }
            Backend::Cluster(cluster) => {
                let options = NodeOptions { in_cluster: true, ..options };
                let publish = start.cluster_messages;
                let (side, events) = RedisCluster::start(options, cluster, publish, metrics, stage);
                news.push(events.map(|event| (Node::Main, event)).boxed());
                MainSide::Cluster(side)
            }
        };
        let mut red = Vec::with_capacity(start.red.len());
        for (place, target) in start.red.into_iter().enumerate() {
            // Their majority is what keeps them.
            let options = NodeOptions { red: true, replicas: None, ..options };
            let (side, events) = RedisNode::start(options, &target.into(), metrics, stage);
            news.push(events.map(move |event| (Node::Red(place), event)).boxed());
            red.push(side);
        }
        (Self { main, red }, news)
    }

    /// Sends a script; the future brings what became of it.
    pub(super) fn call(
        &self,
        node: Node,
        op: OpId,
        lane: Lane,
        call: Call,
        place: &TraceParent,
    ) -> impl Future<Output = Outcome> + use<> {
        let side = match (node, &self.main) {
            (Node::Red(index), _) => &self.red[index],
            (Node::Main, MainSide::Server(side)) => side,
            // Boxed, since it is much larger than the other.
            (Node::Main, MainSide::Cluster(side)) => {
                return Either::Right(Box::pin(side.call(op, lane, call, place)));
            }
        };
        Either::Left(side.call(op, lane, call, place))
    }

    /// Listens to a channel, now and after each reconnect.
    pub(super) fn subscribe(&self, node: Node, channel: Vec<u8>) {
        match (node, &self.main) {
            (Node::Main, MainSide::Server(side)) => side.subscribe(channel),
            (Node::Main, MainSide::Cluster(side)) => side.subscribe(&channel),
            (Node::Red(index), _) => self.red[index].subscribe(channel),
        }
    }

    /// Listens to it no more.
    pub(super) fn unsubscribe(&self, node: Node, channel: Vec<u8>) {
        match (node, &self.main) {
            (Node::Main, MainSide::Server(side)) => side.unsubscribe(channel),
            (Node::Main, MainSide::Cluster(side)) => side.unsubscribe(&channel),
            (Node::Red(index), _) => self.red[index].unsubscribe(channel),
        }
    }
}
