//! A private Redis Cluster.

use anyhow::{Context as _, Result, bail, ensure};
use redisson::slot;
use redisson::slot::SLOTS;

use crate::redis::{random_port, until_synchronized};
use crate::{Client, RedisServer, Reply, eventually};

/// Settings of nodes that never fail over by themselves during a test: on a busy machine a short timeout would make
/// them fail over unasked. A test requests a failover with [`RedisCluster::take_over`].
const NODE: [(&str, &str); 3] = [
    ("cluster-enabled", "yes"),
    ("cluster-config-file", "nodes.conf"),
    ("cluster-node-timeout", "600000"),
];

/// Running nodes of a cluster: first the masters, with the slots divided among them in order, then the replicas, in the
/// order of their masters.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
    masters: u16,
    /// The nodes' ports for TLS; empty without TLS.
    tls: Vec<u16>,
}

impl RedisCluster {
    /// Starts that many masters and replicas, and waits until they serve.
    ///
    /// # Errors
    /// Returns an error if there is no redis-server, or one does not start.
    pub async fn start(masters: u16, replicas: usize) -> Result<Self> {
        let mut nodes = Vec::new();
        for _ in 0..usize::from(masters) + replicas {
            nodes.push(RedisServer::with(&NODE).await?);
        }
        Self::of(nodes, masters, Vec::new()).await
    }

    /// Starts that many masters with TLS ports, which programs and the nodes themselves use; tests use plain ones.
    ///
    /// # Errors
    /// Returns an error if there is no redis-server with TLS, or one does not start.
    pub async fn with_tls(masters: u16, cert: &str, key: &str) -> Result<Self> {
        let (mut nodes, mut tls) = (Vec::new(), Vec::new());
        // The second port may be taken, too.
        for _ in 0..10 * masters {
            let port = random_port();
            let number = port.to_string();
            let more = [
                ("tls-port", number.as_str()),
                ("tls-cert-file", cert),
                ("tls-key-file", key),
                ("tls-ca-cert-file", cert),
                ("tls-auth-clients", "no"),
                ("tls-cluster", "yes"),
            ];
            if let Ok(node) = RedisServer::with(&[NODE.as_slice(), &more].concat()).await {
                nodes.push(node);
                tls.push(port);
            }
            if nodes.len() == usize::from(masters) {
                return Self::of(nodes, masters, tls).await;
            }
        }
        bail!("redis-server with TLS does not start")
    }

    /// Starts a cluster of one old node: Redis 6.2.
    ///
    /// # Errors
    /// Returns an error if it is not installed, or does not start.
    pub async fn old() -> Result<Self> {
        Self::of(vec![RedisServer::old(&NODE).await?], 1, Vec::new()).await
    }

    async fn of(nodes: Vec<RedisServer>, masters: u16, tls: Vec<u16>) -> Result<Self> {
        let cluster = Self { nodes, masters, tls };
        for (place, node) in cluster.nodes.iter().enumerate() {
            let mut client = node.client().await?;
            client.call(&format!("CLUSTER SET-CONFIG-EPOCH {}", place + 1)).await?.ok()?;
            if let Some((first, last)) = cluster.range(place) {
                let slots = (first..=last).map(|slot| slot.to_string());
                let words: Vec<String> = ["CLUSTER".to_owned(), "ADDSLOTS".to_owned()]
                    .into_iter()
                    .chain(slots)
                    .collect();
                client.call_args(&words).await?.ok()?;
            }
        }
        // Every pair meets directly: nodes would take seconds to discover each other through a third one.
        for (place, node) in cluster.nodes.iter().enumerate() {
            let mut client = node.client().await?;
            for port in cluster.ports().skip(place + 1) {
                client.call(&format!("CLUSTER MEET 127.0.0.1 {port}")).await?.ok()?;
            }
        }
        let known = format!("cluster_known_nodes:{}\r\n", cluster.nodes.len());
        cluster.until_each_says(&known).await;
        for place in usize::from(masters)..cluster.nodes.len() {
            cluster.follow(place, place - usize::from(masters)).await?;
        }
        cluster.until_each_says("cluster_state:ok\r\n").await;
        Ok(cluster)
    }

    /// Starts another node, a master without slots, and waits until all know it. Returns its place.
    ///
    /// # Errors
    /// Returns an error if it does not start.
    pub async fn join(&mut self) -> Result<usize> {
        let node = RedisServer::with(&NODE).await?;
        let mut client = node.client().await?;
        let place = self.nodes.len();
        client.call(&format!("CLUSTER SET-CONFIG-EPOCH {}", place + 1)).await?.ok()?;
        for port in self.ports().collect::<Vec<_>>() {
            client.call(&format!("CLUSTER MEET 127.0.0.1 {port}")).await?.ok()?;
        }
        self.nodes.push(node);
        for of in 0..self.nodes.len() {
            let id = self.id(of).await?;
            for node in &self.nodes {
                eventually("all to know the new node, and it all others", async || {
                    let nodes = node.client().await?.call("CLUSTER NODES").await?.text();
                    let row = nodes.lines().find(|line| line.starts_with(&id));
                    ensure!(row.is_some_and(|row| !row.contains("handshake")), "{nodes}");
                    Ok(())
                })
                .await;
            }
        }
        self.until_each_says("cluster_state:ok\r\n").await;
        Ok(place)
    }

    /// Returns the first and last slot of a master; `None` for a replica.
    fn range(&self, place: usize) -> Option<(u16, u16)> {
        let place = u16::try_from(place).ok().filter(|place| *place < self.masters)?;
        let share = SLOTS / self.masters;
        let end = if place + 1 == self.masters { SLOTS } else { (place + 1) * share };
        Some((place * share, end - 1))
    }

    async fn until_each_says(&self, wanted: &str) {
        for node in &self.nodes {
            eventually("the nodes to have found one another", async || {
                let info = node.client().await?.call("CLUSTER INFO").await?.text();
                ensure!(info.contains(wanted), "{info}");
                Ok(())
            })
            .await;
        }
    }

    async fn follow(&self, place: usize, master: usize) -> Result<()> {
        let mut client = self.nodes[place].client().await?;
        let id = self.id(master).await?;
        eventually("the replica to know its master", async || {
            client.call(&format!("CLUSTER REPLICATE {id}")).await?.ok()
        })
        .await;
        until_synchronized(&mut client).await;
        // Agents that ask a master must learn about it too.
        let port = self.nodes[place].port().to_string();
        for node in &self.nodes {
            eventually("all to know the replica", async || {
                let slots = node.client().await?.call("CLUSTER SLOTS").await?.text();
                ensure!(slots.contains(&port), "{slots}");
                Ok(())
            })
            .await;
        }
        Ok(())
    }

    /// Returns the ports through which programs, and the nodes, reach the nodes.
    fn ports(&self) -> impl Iterator<Item = u16> {
        let plain = self.nodes.iter().map(RedisServer::port);
        self.tls.iter().copied().chain(plain.skip(self.tls.len()))
    }

    /// Returns the cluster's URL for programs, with all the nodes.
    #[must_use]
    pub fn url(&self) -> String {
        let nodes: Vec<String> = self.ports().map(|port| format!("127.0.0.1:{port}")).collect();
        let scheme = if self.tls.is_empty() { "redis" } else { "rediss" };
        format!("{scheme}+cluster://{}", nodes.join(","))
    }

    /// Returns a node, by its place.
    pub fn node(&mut self, place: usize) -> &mut RedisServer {
        &mut self.nodes[place]
    }

    /// Returns the place of the master that had a key's slot at the start.
    #[must_use]
    pub fn home(&self, key: &str) -> usize {
        let slot = slot(key.as_bytes());
        let has = |place: &usize| self.range(*place).is_some_and(|(a, b)| (a..=b).contains(&slot));
        (0..usize::from(self.masters)).find(has).unwrap_or(0)
    }

    /// Returns a name for each master, with this prefix and a slot of that master.
    #[must_use]
    pub fn names(&self, prefix: &str) -> Vec<String> {
        let name_at = |place: usize| {
            let names = (0..).map(|n| format!("{prefix}{n}"));
            names.into_iter().find(|name| self.home(name) == place)
        };
        (0..usize::from(self.masters)).filter_map(name_at).collect()
    }

    /// Opens a new connection to a node.
    ///
    /// # Errors
    /// Returns an error if it cannot be reached.
    pub async fn client(&self, place: usize) -> Result<Client> {
        self.nodes[place].client().await
    }

    async fn id(&self, place: usize) -> Result<String> {
        Ok(self.client(place).await?.call("CLUSTER MYID").await?.ok()?.text())
    }

    /// Begins to move a slot: from now on its keys are on either node.
    ///
    /// # Errors
    /// Returns an error if a node refuses.
    pub async fn begin_move(&self, slot: u16, from: usize, to: usize) -> Result<()> {
        let (source, target) = (self.id(from).await?, self.id(to).await?);
        let importing = format!("CLUSTER SETSLOT {slot} IMPORTING {source}");
        self.client(to).await?.call(&importing).await?.ok()?;
        let migrating = format!("CLUSTER SETSLOT {slot} MIGRATING {target}");
        self.client(from).await?.call(&migrating).await?.ok()?;
        Ok(())
    }

    /// Moves the keys of a slot that is being moved.
    ///
    /// # Errors
    /// Returns an error if a node refuses.
    pub async fn move_keys(&self, slot: u16, from: usize, to: usize) -> Result<()> {
        let mut source = self.client(from).await?;
        let keys = source.call(&format!("CLUSTER GETKEYSINSLOT {slot} 1000")).await?.ok()?;
        for key in keys.items()? {
            self.move_key(&key.text(), from, to).await?;
        }
        Ok(())
    }

    /// Moves one key of a slot that is being moved.
    ///
    /// # Errors
    /// Returns an error if a node refuses.
    pub async fn move_key(&self, key: &str, from: usize, to: usize) -> Result<()> {
        let port = self.nodes[to].port().to_string();
        let words = ["MIGRATE", "127.0.0.1", &port, key, "0", "60000"];
        let moved =
            self.client(from).await?.call_args(&words).await?.ok().context(key.to_owned())?;
        ensure!(moved.text() == "OK", "{key}: {moved:?}");
        Ok(())
    }

    /// Ends the move of a slot.
    ///
    /// # Errors
    /// Returns an error if a node refuses.
    pub async fn end_move(&self, slot: u16, from: usize, to: usize) -> Result<()> {
        let id = self.id(to).await?;
        for place in [to, from] {
            let command = format!("CLUSTER SETSLOT {slot} NODE {id}");
            match self.client(place).await?.call(&command).await? {
                // A master that has lost its last slot by this may have become a replica by itself.
                Reply::Error(text) if place == from && text.contains("only with masters") => {}
                reply => drop(reply.ok()?),
            }
        }
        Ok(())
    }

    /// Makes a replica the master in place of its own, in whatever state that is, and waits until the other masters
    /// know.
    ///
    /// # Errors
    /// Returns an error if it refuses.
    pub async fn take_over(&self, place: usize) -> Result<()> {
        let mut client = self.client(place).await?;
        client.call("CLUSTER FAILOVER TAKEOVER").await?.ok()?;
        let id = self.id(place).await?;
        for (other, node) in self.nodes.iter().enumerate() {
            let Ok(mut client) = node.client().await else { continue };
            eventually("all to know the new master", async || {
                let nodes = client.call("CLUSTER NODES").await?.text();
                let row = nodes.lines().find(|line| line.starts_with(&id));
                let Some(row) = row else { bail!("node {other} does not know it: {nodes}") };
                ensure!(row.contains("master"), "{row}");
                Ok(())
            })
            .await;
        }
        Ok(())
    }
}
