//! A server, a proxy in front of it and a client behind both; and what a command on the wire asks
//! of a lock.
use std::{collections::BTreeMap, time::Duration};

use leasehold::{Builder, Client};

use crate::support::{
    assert_no_keys, eventually,
    proxy::{Command, Matcher, Proxy},
    server::{Raw, RedisServer},
};

const ACQUIRE: &str = include_str!("../../lua/lock/acquire.lua");
const RELEASE: &str = include_str!("../../lua/lock/release.lua");
const RENEW: &str = include_str!("../../lua/lock/renew.lua");

/// A hang guard: no test relies on being quicker.
pub const SOON: Duration = Duration::from_secs(20);

/// Waits for something that must not hang.
///
/// # Panics
///
/// If it does.
#[track_caller]
pub fn soon<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let at = std::panic::Location::caller();
    async move {
        let done = tokio::time::timeout(SOON, future).await;
        done.unwrap_or_else(|_| panic!("waited {SOON:?} in vain at {at}"))
    }
}

/// A server, a proxy to it, and a client that only knows the proxy.
pub struct Rig {
    pub client: Client,
    pub proxy: Proxy,
    pub raw: Raw,
    pub server: RedisServer,
}

impl Rig {
    /// With a command timeout of 400 ms, which loses little time and rides out most stalls.
    pub async fn start() -> Self {
        Self::with(|builder| builder.command_timeout(Duration::from_millis(400))).await
    }

    /// With settings of one's own.
    pub async fn with(settings: impl FnOnce(Builder) -> Builder) -> Self {
        Self::before(RedisServer::start(), settings).await
    }

    /// In front of a server of one's own.
    pub async fn before(server: RedisServer, settings: impl FnOnce(Builder) -> Builder) -> Self {
        Self::at(server, "redis://", settings).await
    }

    /// The client logs in as a user with these rights, as `ACL SETUSER` takes them. A server that is
    /// restarted forgets that user.
    pub async fn with_rights(
        server: RedisServer,
        rights: &str,
        settings: impl FnOnce(Builder) -> Builder,
    ) -> Self {
        let user = ["ACL", "SETUSER", "worker", "on", ">pw", "~*", "&*", "+@all"];
        let user: Vec<_> = user.into_iter().chain(rights.split(' ')).collect();
        server.raw().cmd(&user).ok();
        Self::at(server, "redis://worker:pw@", settings).await
    }

    async fn at(
        server: RedisServer,
        login: &str,
        settings: impl FnOnce(Builder) -> Builder,
    ) -> Self {
        let (proxy, raw) = (Proxy::start(server.port()), server.raw());
        let url = proxy.url().replace("redis://", login);
        let builder = Client::builder(url).expect("a URL");
        let client = soon(settings(builder).connect()).await.expect("the server is up");
        // Else the first reply of each would be NOSCRIPT, and no fault would hit a call that ran.
        for script in [ACQUIRE, RELEASE, RENEW] {
            raw.cmd(&["SCRIPT", "LOAD", script]).ok();
        }
        Self { client, proxy, raw, server }
    }

    /// A client that goes to the server directly, whatever happens at the proxy.
    pub async fn bystander(&self) -> Client {
        soon(Client::connect(self.server.url())).await.expect("the server is up")
    }

    /// Who holds a lock and how often, as the server has it.
    pub fn holds(&self, name: &str) -> BTreeMap<String, String> {
        self.raw.cmd(&["HGETALL", name]).ok().map()
    }

    /// Matches calls of a script that [`Call`] does not know; loads it, too.
    pub fn running(&self, script: &str) -> impl Matcher + Clone + use<> {
        let sha = self.raw.cmd(&["SCRIPT", "LOAD", script]).ok().text();
        move |command: &Command| command.is("EVALSHA") && command.mentions(&sha)
    }

    /// Waits until everything is given back. Then closes the client, waits until nothing it has
    /// sent can still run, and looks whether that is still so.
    pub async fn assert_nothing_left(&self) {
        let empty = async || self.raw.cmd(&["DBSIZE"]).int() == 0;
        eventually("everything is given back", empty).await;
        soon(self.client.close()).await;
        let gone = async || self.proxy.upstream_connections() == 0;
        eventually("no connection of the closed client stands", gone).await;
        assert_no_keys(&self.raw);
    }
}

/// A map with one holder, as [`Rig::holds`] gives it.
pub fn held_by(holder: &leasehold::Holder, count: u32) -> BTreeMap<String, String> {
    BTreeMap::from([(holder.as_str().to_owned(), count.to_string())])
}

/// One entry of a script call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Takes or enters the lock, to this count.
    Acquire(u32),
    /// Gives back, down to this count.
    Release(u32),
    Renew,
}

/// Matches calls that take a lock afresh.
pub fn acquiring(name: &str) -> impl Matcher + Clone + use<> {
    asking(name, |call| call == Call::Acquire(1))
}

/// Matches calls that enter a lock once more.
pub fn entering(name: &str) -> impl Matcher + Clone + use<> {
    asking(name, |call| matches!(call, Call::Acquire(2..)))
}

/// Matches calls that give back an entry, but not the last.
pub fn lowering(name: &str) -> impl Matcher + Clone + use<> {
    asking(name, |call| matches!(call, Call::Release(1..)))
}

/// Matches calls that give a lock back for good.
pub fn releasing(name: &str) -> impl Matcher + Clone + use<> {
    asking(name, |call| call == Call::Release(0))
}

/// Matches calls that renew or extend a lease.
pub fn renewing(name: &str) -> impl Matcher + Clone + use<> {
    asking(name, |call| call == Call::Renew)
}

fn asking(name: &str, wanted: fn(Call) -> bool) -> impl Matcher + Clone + use<> {
    let name = name.to_owned();
    move |command: &Command| calls(command).any(|(lock, call)| lock == name && wanted(call))
}

/// How many entries for a lock have been sent that match, counting each in a list.
pub fn entries(proxy: &Proxy, name: &str, wanted: fn(Call) -> bool) -> usize {
    let commands = proxy.commands().into_iter().map(|args| Command { connection: 0, args });
    let entries = commands.flat_map(|command| calls(&command).collect::<Vec<_>>());
    entries.filter(|(lock, call)| lock == name && wanted(*call)).count()
}

/// What a command asks of which lock. The scripts are told apart by their numbers of keys and
/// arguments, whether they come by hash or in full.
fn calls(command: &Command) -> impl Iterator<Item = (String, Call)> + use<> {
    let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
    let number = |text: &String| text.parse().unwrap_or(u32::MAX);
    let mut found = Vec::new();
    if (command.is("EVAL") || command.is("EVALSHA")) && command.args.len() > 2 {
        let keys: usize = text(&command.args[2]).parse().unwrap_or(0);
        let rest: Vec<String> = command.args[3..].iter().map(text).collect();
        let (keys, args) = rest.split_at(keys.min(rest.len()));
        match (keys.len(), args.len()) {
            (0, _) | (_, 0) => {}
            (k, a) if a == 3 * k => {
                let counts = args.chunks(3).map(|entry| Call::Acquire(number(&entry[2])));
                found.extend(keys.iter().cloned().zip(counts));
            }
            (k, a) if a == 2 * k => {
                found.extend(keys.iter().map(|key| (key.clone(), Call::Renew)));
            }
            (k, a) if 2 * a == 3 * k => {
                let counts = args.chunks(3).map(|entry| Call::Release(number(&entry[1])));
                found.extend(keys.iter().step_by(2).cloned().zip(counts));
            }
            _ => {}
        }
    }
    found.into_iter()
}
