//! A private redis-server.

use std::ops::{Deref, DerefMut};

use harness::RedisServer;
use redis::{FromRedisValue, cmd};

/// A redis-server of the harness, with blocking connections.
pub(crate) struct Server(RedisServer);

impl Server {
    /// Starts an empty server with further settings.
    pub(crate) async fn start(settings: &[(&str, &str)]) -> Self {
        Self(RedisServer::with(settings).await.unwrap())
    }

    /// Starts an empty server that also knows this user, with these rules.
    pub(crate) async fn with_user(name: &str, rules: &str) -> Self {
        let server = Self::start(&[]).await;
        let mut words = vec!["ACL", "SETUSER", name, "on"];
        words.extend(rules.split(' '));
        server.ask::<()>(&words);
        server
    }

    /// Sends a command on a separate connection. The socket is open to the default user.
    pub(crate) fn ask<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let url = format!("unix://{}", self.socket().display());
        let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
        cmd(words[0]).arg(&words[1..]).query(&mut connection).unwrap()
    }

    /// Returns the names of the connected clients.
    pub(crate) fn clients(&self) -> Vec<String> {
        let list: String = self.ask(&["CLIENT", "LIST"]);
        let names = list.split_whitespace().filter_map(|field| field.strip_prefix("name="));
        names.map(str::to_owned).collect()
    }
}

impl Deref for Server {
    type Target = RedisServer;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}
