//! A primary with replicas that can lag.
//!
//! Include it beside `server`, whose processes it is made of.
#![allow(dead_code, reason = "each program that includes this file uses its own part of it")]

use super::server::{RedisServer, until};

/// Replicas that follow one primary; each stands still while it is [paused](RedisServer::pause),
/// and then the primary goes on taking it for one that lags.
#[derive(Debug)]
pub struct Replicas(pub Vec<RedisServer>);

impl Replicas {
    /// Starts so many, and waits until all of them answer the primary.
    pub fn of(primary: &RedisServer, count: usize) -> Self {
        let port = primary.port().to_string();
        let follow = ["--replicaof", "127.0.0.1", &port];
        let replicas = (0..count).map(|_| RedisServer::builder().args(follow).start()).collect();
        let link = primary.raw();
        until("all replicas answer", || {
            // Of a connection that writes something all must have it.
            link.cmd(&["SET", "replicas", "1", "PX", "1"]).ok();
            link.cmd(&["WAIT", &count.to_string(), "1000"]).int() == count as i64
        });
        until("what was written for that is gone", || link.cmd(&["DBSIZE"]).int() == 0);
        Self(replicas)
    }

    /// How many of those that stand still in no way have this key.
    pub fn that_have(&self, key: &str) -> usize {
        self.0.iter().filter(|replica| replica.raw().cmd(&["EXISTS", key]).int() == 1).count()
    }
}
