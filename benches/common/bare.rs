//! What the library is measured against: the same two scripts as one-entry lists, sent by fred or
//! by redis-benchmark with no lock library around them.
#![allow(clippy::disallowed_methods, reason = "bare means bare")]

use super::server::RedisServer;
use fred::prelude::*;
use std::process::Command;
use std::sync::Arc;

pub struct Bare {
    pub client: Client,
    pub acquire: String,
    pub release: String,
    owner: String,
}

impl Bare {
    pub async fn connect(url: &str) -> Arc<Self> {
        let config = Config::from_url(url).expect("a plain URL");
        let mut builder = Builder::from_config(config);
        builder.with_connection_config(|connection| connection.tcp.nodelay = Some(true));
        builder.with_config(|config| config.version = fred::types::RespVersion::RESP3);
        let client = builder.build().expect("a plain configuration");
        client.init().await.expect("the server was just started");
        let load = |text: &'static str| client.script_load(text);
        let acquire = load(include_str!("../../lua/lock/acquire.lua")).await;
        let release = load(include_str!("../../lua/lock/release.lua")).await;
        let (acquire, release) = (acquire.expect("it compiles"), release.expect("it compiles"));
        let owner = format!("0b7e7d5e-7c1b-4c59-a7e0-0123456789ab:{}", std::process::id());
        Arc::new(Self { client, acquire, release, owner })
    }

    /// Whether it was free.
    pub async fn acquire(&self, name: &str) -> bool {
        let arguments = vec!["30000", &self.owner, "1"];
        let reply = self.client.evalsha(&self.acquire, vec![name], arguments).await;
        let reply: Vec<Value> = reply.expect("a script");
        reply[0].as_i64() == Some(0)
    }

    pub async fn release(&self, name: &str) {
        let (channel, arguments) = (channel(name), vec![self.owner.as_str(), "0", "PUBLISH"]);
        let reply = self.client.evalsha(&self.release, vec![name, &channel], arguments).await;
        let reply: Vec<i64> = reply.expect("a script");
        assert!(reply[0] >= 0, "it was held");
    }

    pub async fn ping(&self) {
        let _: String = self.client.ping(None).await.expect("the server answers");
    }
}

pub fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

/// What `redis-benchmark -c 50 -P 16` makes of the two scripts, one name a command, a second.
pub struct Ceiling {
    pub acquire: f64,
    pub release: f64,
    /// If one follows the other.
    pub pairs: f64,
    /// Which part of the releases found their lock.
    pub found: f64,
}

/// One turn of redis-benchmark, on an empty server; `None` if there is none.
///
/// It acquires names that are free and releases names that are held. It draws both at random, so
/// about one release in ten finds nothing, which costs less. In small parts, so that the keys stay
/// few: many would slow the server down.
pub fn ceiling(server: &RedisServer, bare: &Bare) -> Option<Ceiling> {
    const REQUESTS: u32 = 20_000;
    const HELD: u32 = 100_000;
    const FILL: &str = "for n = tonumber(ARGV[2]), ARGV[2] + 9999 do
        local lock = string.format('bench:%012d', n)
        redis.call('HSET', lock, ARGV[1], 1) redis.call('PEXPIRE', lock, 600000) end";
    let (port, owner) = (server.port().to_string(), bare.owner.as_str());
    let rate = |names: u32, words: &[&str]| {
        let mut command = Command::new("redis-benchmark");
        command.args(["-p", &port, "-c", "50", "-P", "16", "--csv"]);
        command.args(["-n", &REQUESTS.to_string(), "-r", &names.to_string()]).args(words);
        let output = command.output().ok()?;
        let output = String::from_utf8_lossy(&output.stdout);
        // "what was sent","requests a second",...
        output.lines().last()?.split("\",\"").nth(1)?.parse::<f64>().ok()
    };
    let (raw, name, channel) = (server.raw(), "bench:__rand_int__", channel("bench"));
    raw.cmd(&["FLUSHALL"]).ok();
    let acquire = ["EVALSHA", &bare.acquire, "1", name, "30000", owner, "1"];
    let acquire = rate(100_000_000, &acquire)?;
    raw.cmd(&["FLUSHALL"]).ok();
    for first in (0..HELD).step_by(10_000) {
        raw.cmd(&["EVAL", FILL, "0", owner, &first.to_string()]);
    }
    let release = ["EVALSHA", &bare.release, "2", name, &channel, owner, "0", "PUBLISH"];
    let release = rate(HELD, &release)?;
    let found = f64::from(HELD) - raw.cmd(&["DBSIZE"]).int() as f64;
    raw.cmd(&["FLUSHALL"]).ok();
    let pairs = 1.0 / (1.0 / acquire + 1.0 / release);
    Some(Ceiling { acquire, release, pairs, found: found / f64::from(REQUESTS) })
}
