//! All servers for scripts and subscriptions: the Redis of all kinds but red, and the servers of red locks.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::Either;
use futures_util::stream::{BoxStream, SelectAll};
use futures_util::{FutureExt, StreamExt};
use redisson::ClientId;
use redisson::script::{self, Call, Publish};
use service_kit::redis::{Cluster, Endpoint, Target};
use service_kit::shutdown::Shutdown;
use service_kit::trace::TraceParent;

use super::batches::{self, Answers, Script, ScriptBatch};
use super::confirmed_calls::Replicas;
use super::outcome::Outcome;
use super::redis_cluster::RedisCluster;
use super::redis_node::{FromRedis, NodeOptions, RedisNode};
use crate::core::{Lane, Node, OpId};
use crate::metrics::Metrics;

/// The Redis of all kinds but red.
#[derive(Debug, Clone)]
pub enum Backend {
    /// One server, or the current master.
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
    /// The servers of red locks, in the order of the settings.
    pub red: Vec<Target>,
    pub connect_timeout: Duration,
}

/// Events from all servers.
pub(super) type EventStream = SelectAll<BoxStream<'static, (Node, FromRedis)>>;

enum MainServer {
    Server(RedisNode),
    Cluster(RedisCluster),
}

pub(super) struct Servers {
    main: MainServer,
    red: Vec<RedisNode>,
}

impl Servers {
    /// Starts connecting to all servers. `replicas`: how grants wait for the replicas of the main one.
    pub(super) fn start(
        start: ServersStart,
        response_timeout: Duration,
        replicas: Replicas,
        metrics: &Arc<Metrics>,
        shutdown: &Shutdown,
    ) -> (Self, EventStream) {
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
                let (server, events) = RedisNode::start(options, &endpoint, metrics, shutdown);
                news.push(events.map(|event| (Node::Main, event)).boxed());
                MainServer::Server(server)
            }
            Backend::Cluster(cluster) => {
                let options = NodeOptions { in_cluster: true, ..options };
                let publish = start.cluster_messages;
                let (cluster, events) =
                    RedisCluster::start(options, cluster, publish, metrics, shutdown);
                news.push(events.map(|event| (Node::Main, event)).boxed());
                MainServer::Cluster(cluster)
            }
        };
        let mut red = Vec::with_capacity(start.red.len());
        for (node, target) in start.red.into_iter().enumerate() {
            // Their majority protects them.
            let options = NodeOptions { red: true, replicas: None, ..options };
            let (server, events) = RedisNode::start(options, &target.into(), metrics, shutdown);
            news.push(events.map(move |event| (Node::Red(node), event)).boxed());
            red.push(server);
        }
        (Self { main, red }, news)
    }

    /// Returns whether a script may share a call with others.
    pub(super) fn may_share(&self, node: Node, call: &Call) -> bool {
        node == Node::Main && matches!(self.main, MainServer::Server(_)) && script::may_share(call)
    }

    /// Sends scripts of commands. The future returns their outcomes.
    pub(super) fn send(&self, batch: ScriptBatch) -> impl Future<Output = Answers> + use<> {
        match batch {
            ScriptBatch::Alone(node, lane, Script { user, op, call }, trace_parent) => {
                let sent = self.call(node, op, lane, call, &trace_parent);
                Either::Left(sent.map(move |outcome| Answers::Alone(user, outcome)))
            }
            ScriptBatch::Shared(scripts) => {
                let (call, trace_parent) = (batches::join(&scripts), TraceParent::default());
                let sent =
                    self.call(Node::Main, scripts[0].op, Lane::Commands, call, &trace_parent);
                let answers = sent.map(move |(_, outcome)| batches::split(scripts, outcome));
                // Boxed, since one future is kept for each script that is sent alone.
                Either::Right(Box::pin(answers))
            }
        }
    }

    /// Sends a script. The future returns its outcome.
    pub(super) fn call(
        &self,
        node: Node,
        op: OpId,
        lane: Lane,
        call: Call,
        trace_parent: &TraceParent,
    ) -> impl Future<Output = Outcome> + use<> {
        let server = match (node, &self.main) {
            (Node::Red(index), _) => &self.red[index],
            (Node::Main, MainServer::Server(server)) => server,
            // Boxed, since it is much larger than the other.
            (Node::Main, MainServer::Cluster(server)) => {
                return Either::Right(Box::pin(server.call(op, lane, call, trace_parent)));
            }
        };
        Either::Left(server.call(op, lane, call, trace_parent))
    }

    /// Returns the labels of this server of red locks and of another one, if a single server answers at both addresses.
    pub(super) fn same_server(&self, node: usize) -> Option<(&str, &str)> {
        let run_id = |server: &RedisNode| server.info().and_then(|info| info.run_id.clone());
        let this = &self.red[node];
        let id = run_id(this)?;
        let others = self.red.iter().enumerate().filter(|(other, _)| *other != node);
        let same = others.map(|(_, other)| other).find(|other| run_id(other).as_ref() == Some(&id));
        same.map(|other| (this.node(), other.node()))
    }

    /// Subscribes to a channel, now and after each reconnect.
    pub(super) fn subscribe(&self, node: Node, channel: Vec<u8>) {
        match (node, &self.main) {
            (Node::Main, MainServer::Server(server)) => server.subscribe(channel),
            (Node::Main, MainServer::Cluster(server)) => server.subscribe(&channel),
            (Node::Red(index), _) => self.red[index].subscribe(channel),
        }
    }

    /// Unsubscribes from a channel.
    pub(super) fn unsubscribe(&self, node: Node, channel: Vec<u8>) {
        match (node, &self.main) {
            (Node::Main, MainServer::Server(server)) => server.unsubscribe(channel),
            (Node::Main, MainServer::Cluster(server)) => server.unsubscribe(&channel),
            (Node::Red(index), _) => self.red[index].unsubscribe(channel),
        }
    }
}
