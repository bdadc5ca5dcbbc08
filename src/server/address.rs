//! Where the server is: URLs and fred configurations, and what our own sockets make of them.

use crate::config::Settings;
use crate::error::Error;
#[cfg(any(feature = "tls-rustls", feature = "tls-native"))]
use crate::server::tls::Tls;
use fred::prelude::*;
use fred::types::RespVersion;
use fred::types::config::{
    ClusterDiscoveryPolicy, ConnectionConfig, PerformanceConfig, ReconnectError, ReconnectPolicy,
    Server, UnresponsiveConfig,
};
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

/// A server, cluster or set of sentinels, and how to log in to it.
#[derive(Clone)]
pub(crate) struct Address {
    config: Config,
    secure: bool,
    /// What was said about TLS, if that is more than whether it is used.
    #[cfg(any(feature = "tls-rustls", feature = "tls-native"))]
    tls: Option<Tls>,
}

/// Says where, never with which password.
impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> =
            self.config.server.hosts().iter().map(ToString::to_string).collect();
        write!(f, "{}", hosts.join(","))
    }
}

impl Address {
    pub(crate) fn from_url(url: &str) -> Result<Self, Error> {
        // Never put the URL itself into an error: it may hold a password.
        let mut parsed = url::Url::parse(url)
            .map_err(|error| Error::invalid_url(format!("the URL cannot be read: {error}")))?;
        let scheme = parsed.scheme().to_owned();
        let needs = |feature: &str| {
            let why = format!("the URL's scheme {scheme:?} needs the cargo feature {feature}");
            Err(Error::invalid_url(why))
        };
        match scheme.as_str() {
            "redis" | "valkey" | "redis-cluster" | "valkey-cluster" | "redis-sentinel"
            | "valkey-sentinel" => {}
            "rediss" | "valkeys" | "rediss-cluster" | "valkeys-cluster" | "rediss-sentinel"
            | "valkeys-sentinel" => {
                if cfg!(not(any(feature = "tls-rustls", feature = "tls-native"))) {
                    return needs("\"tls-rustls\" or \"tls-native\"");
                }
            }
            "redis+unix" | "valkey+unix" => {
                if cfg!(not(feature = "unix")) {
                    return needs("\"unix\"");
                }
            }
            _ => {
                // Not repeated: in front of a colon that is out of place there may be a password.
                return Err(Error::invalid_url(
                    "the URL's scheme is not one of redis, rediss, redis-cluster, \
                     rediss-cluster, redis-sentinel, rediss-sentinel, redis+unix, or the same \
                     with valkey",
                ));
            }
        }
        let sentinel_login =
            |(key, _): (_, _)| key == "sentinelUsername" || key == "sentinelPassword";
        if cfg!(not(feature = "sentinel"))
            && parsed.query_pairs().map(|(k, v)| (k.into_owned(), v)).any(sentinel_login)
        {
            return Err(Error::invalid_url(
                "a login for sentinels in the URL needs the cargo feature \"sentinel\"",
            ));
        }
        // TLS is ours to add, in `secure`: fred would trust the system's authorities whatever we
        // are told, and panic where two of rustls' crypto providers are compiled in.
        let plain = scheme.replacen("rediss", "redis", 1).replacen("valkeys", "valkey", 1);
        let secure = plain != scheme;
        let without_tls = parsed.set_scheme(&plain);
        debug_assert!(without_tls.is_ok(), "both are schemes of nobody's");
        if plain.ends_with("-cluster") && !matches!(parsed.path(), "" | "/" | "/0") {
            // fred would pass over it in silence.
            return Err(Error::invalid_url("a cluster has no database but 0"));
        }
        let config = Config::from_url(parsed.as_str()).map_err(|error| {
            Error::invalid_url(format!(
                "the URL cannot be used: {}",
                scrub(error.details(), &parsed)
            ))
        })?;
        Ok(Self { secure, ..Self::from_config(config) })
    }

    pub(crate) fn from_config(mut config: Config) -> Self {
        // Our scripts' answers and the subscriptions are read as RESP3 pushes and replies.
        config.version = RespVersion::RESP3;
        Self {
            secure: config.uses_tls(),
            #[cfg(any(feature = "tls-rustls", feature = "tls-native"))]
            tls: None,
            config,
        }
    }

    /// Where the data is, in one form: two that differ in it may still be the same server by
    /// another name.
    pub(crate) fn place(&self) -> String {
        let mut hosts: Vec<_> =
            self.config.server.hosts().iter().map(ToString::to_string).collect();
        hosts.sort();
        if let ServerConfig::Sentinel { service_name, .. } = &self.config.server {
            // One set of sentinels may watch over several servers.
            hosts.push(service_name.clone());
        }
        hosts.join(",")
    }

    /// The number of its database.
    pub(crate) fn database(&self) -> u8 {
        self.config.database.unwrap_or(0)
    }

    /// What to say about TLS beyond that it is used.
    #[cfg(any(feature = "tls-rustls", feature = "tls-native"))]
    pub(crate) fn tls(&mut self) -> &mut Tls {
        self.tls.get_or_insert_default()
    }

    /// Makes ready to connect by TLS, if it is used; reads certificates.
    #[cfg(any(feature = "tls-rustls", feature = "tls-native"))]
    pub(crate) fn secure(&mut self) -> Result<(), Error> {
        if self.tls.is_some() && !self.secure {
            return Err(Error::invalid_url(
                "certificates are given, but the URL does not ask for TLS: its scheme must be \
                 rediss, rediss-cluster, rediss-sentinel, or the same with valkeys",
            ));
        }
        match (&self.tls, &mut self.config.tls) {
            // As the fred configuration has it.
            (None, Some(_)) => {}
            (Some(tls), Some(config)) => config.connector = tls.connector()?,
            (tls, config @ None) if self.secure => {
                *config = Some(tls.clone().unwrap_or_default().connector()?.into());
            }
            (_, None) => {}
        }
        Ok(())
    }

    #[cfg(not(any(feature = "tls-rustls", feature = "tls-native")))]
    pub(crate) fn secure(&mut self) -> Result<(), Error> {
        Ok(())
    }

    pub(crate) fn uses_tls(&self) -> bool {
        self.secure
    }

    /// The sentinels to ask, and for which name.
    pub(crate) fn sentinels(&self) -> Option<(&[Server], &str)> {
        match &self.config.server {
            ServerConfig::Sentinel { hosts, service_name, .. } => Some((hosts, service_name)),
            _ => None,
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.config.server.is_clustered()
    }

    /// One node of a cluster, with the same login.
    pub(crate) fn at(&self, server: &Server) -> Self {
        let mut node = self.clone();
        node.config.server = ServerConfig::Centralized { server: server.clone() };
        node
    }

    /// A cluster that is known to have these nodes, too.
    pub(crate) fn also_at(&self, servers: BTreeSet<Server>) -> Self {
        let mut whole = self.clone();
        if let ServerConfig::Clustered { hosts, .. } = &mut whole.config.server {
            hosts.extend(servers);
        }
        whole
    }

    /// A fred client for one socket of ours (one a node, in a cluster), not yet connected.
    ///
    /// fred's own defaults would hang or lie to us: no reconnects, no time-outs, Nagle on, event
    /// channels of 32, 10 s for each connect. Every setting here is one of those traps avoided.
    pub(crate) fn client(
        &self,
        settings: &Settings,
        fail_fast_on_connect: bool,
    ) -> Result<fred::clients::Client, Error> {
        let mut config = self.config.clone();
        if self.secure && !config.uses_tls() {
            // A slip of ours must not send a password in the clear.
            return Err(Error::invalid_url("TLS was asked for and is not set up"));
        }
        config.fail_fast = fail_fast_on_connect;
        if let ServerConfig::Clustered { policy, .. } = &mut config.server {
            // The node that the URL names may be the one that died.
            *policy = ClusterDiscoveryPolicy::UseCache;
        }
        self.build(config, settings, Some(self.reconnects()))
    }

    /// A fred client for one sentinel, not yet connected; it ends when its connection does.
    pub(crate) fn sentinel(
        &self,
        settings: &Settings,
        sentinel: &Server,
    ) -> Result<fred::clients::Client, Error> {
        let mut config = self.config.clone();
        if self.secure && !config.uses_tls() {
            return Err(Error::invalid_url("TLS was asked for and is not set up"));
        }
        #[cfg(feature = "sentinel")]
        if let ServerConfig::Sentinel { username, password, .. } = &self.config.server {
            (config.username, config.password) = (username.clone(), password.clone());
        }
        config.server = ServerConfig::Centralized { server: sentinel.clone() };
        config.database = None;
        config.fail_fast = true;
        self.build(config, settings, None)
    }

    /// How long to wait before each new attempt to connect: soon at first, then longer and longer.
    ///
    /// No two connections have the same: else all that broke together would come back together.
    fn reconnects(&self) -> ReconnectPolicy {
        // Who asks sentinels cannot know when they have agreed, and must not come late.
        let longest = if self.sentinels().is_some() { 300.0 } else { 1000.0 };
        let longest = (longest * (0.7 + 0.3 * fastrand::f64())) as u32;
        let mut policy = ReconnectPolicy::new_exponential(0, fastrand::u32(15..30), longest, 2);
        policy.set_jitter(30);
        policy
    }

    fn build(
        &self,
        config: Config,
        settings: &Settings,
        policy: Option<ReconnectPolicy>,
    ) -> Result<fred::clients::Client, Error> {
        let timeout = settings.command_timeout;
        let mut connection = ConnectionConfig {
            connection_timeout: timeout.max(Duration::from_secs(1)),
            internal_command_timeout: timeout.max(Duration::from_secs(1)),
            reconnect_on_auth_error: false,
            // A MOVED of an SSUBSCRIBE spends an attempt; resending after a broken connection is prevented
            // by each command's own fail-fast, not by this.
            max_command_attempts: 3,
            // Elsewhere we see to that ourselves: fred does so again and again, without a pause.
            reconnect_errors: if self.is_cluster() {
                vec![
                    ReconnectError::ReadOnly,
                    ReconnectError::Loading,
                    ReconnectError::MasterDown,
                    ReconnectError::ClusterDown,
                ]
            } else {
                Vec::new()
            },
            unresponsive: UnresponsiveConfig {
                max_timeout: Some(timeout),
                interval: (timeout / 4).max(Duration::from_millis(10)),
            },
            ..ConnectionConfig::default()
        };
        connection.tcp.nodelay = Some(true);
        let performance = PerformanceConfig {
            default_command_timeout: timeout,
            // One receiver of ours reads each of these; a flood beyond it only costs a re-check.
            broadcast_channel_capacity: 4096,
            ..PerformanceConfig::default()
        };
        let mut builder = Builder::from_config(config);
        builder.set_connection_config(connection);
        builder.set_performance_config(performance);
        if let Some(policy) = policy {
            builder.set_policy(policy);
        }
        builder.build().map_err(|error| {
            Error::invalid_url(format!("the configuration cannot be used: {error}"))
        })
    }
}

/// Takes login data out of a library's error text.
fn scrub(text: &str, url: &url::Url) -> String {
    let mut text = text.to_owned();
    for secret in [url.password().unwrap_or(""), url.username(), url.as_str()] {
        if !secret.is_empty() {
            text = text.replace(secret, "***");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_every_deployment_are_read() {
        for url in [
            "redis://127.0.0.1:6379/2",
            "valkey://user:pw@localhost",
            "redis-cluster://a:1?node=b:2&node=c:3",
            "redis-sentinel://a:1/0?sentinelServiceName=mymaster",
        ] {
            Address::from_url(url).unwrap_or_else(|error| panic!("{url}: {error}"));
        }
    }

    #[test]
    fn bad_urls_are_refused_without_their_passwords() {
        for url in [
            "http://user:s3cret@host",
            "s3cret",
            "redis://user:s3cret@host:99999999/",
            "redis-sentinel://user:s3cret@host:1",
            "redis://user:s3cret@host/notanumber",
            "",
        ] {
            match Address::from_url(url) {
                Ok(address) => assert!(!format!("{address:?}").contains("s3cret")),
                Err(error) => {
                    assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
                }
            }
        }
    }

    /// The delays before the first attempts of one connection, in milliseconds.
    fn delays(url: &str) -> Vec<u64> {
        let mut policy = Address::from_url(url).unwrap().reconnects();
        std::iter::from_fn(|| policy.next_delay()).take(12).collect()
    }

    #[test]
    fn no_two_connections_come_back_in_step_and_none_knocks_without_end() {
        for (url, longest) in
            [("redis://a:1", 1000), ("redis-sentinel://a:1/0?sentinelServiceName=mymaster", 300)]
        {
            let all: Vec<_> = (0..50).map(|_| delays(url)).collect();
            assert!(all.iter().flatten().all(|delay| *delay <= longest));
            // Ten of them are at least two thirds of the longest, but for the first few.
            assert!(all.iter().all(|delays| delays[7..].iter().all(|d| *d >= longest * 2 / 3)));
            let mut sums: Vec<u64> = all.iter().map(|delays| delays.iter().sum()).collect();
            sums.sort_unstable();
            assert!(sums[49] - sums[0] > longest / 2, "{sums:?}");
        }
    }

    #[cfg(not(any(feature = "tls-rustls", feature = "tls-native", feature = "unix")))]
    #[test]
    fn a_url_that_needs_a_missing_feature_says_which() {
        let text = |url| Address::from_url(url).unwrap_err().to_string();
        assert!(text("rediss://host").contains("tls-rustls"));
        assert!(text("redis+unix:///tmp/x.sock").contains("unix"));
    }
}
