//! The client: opens the connections, hands out synchronizers by name.

use crate::config::{NameMapper, NamesInLogs, PublishMode, Reentry, Replicas, Settings, WaitMode};
use crate::engine::Engine;
use crate::engine::recipe::{Kind, Mode};
use crate::error::Error;
use crate::server::address::Address;
use crate::sync::{LOCK, Lock};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A connection to one Redis or Valkey (server, sentinels or cluster) and the locks in it.
///
/// Clones and [`prefixed`](Client::prefixed) views share everything: the connections, the uuid
/// that names this client in Redis, the queue of each lock, and the one timer that renews them
/// all. Make one per process and Redis.
///
/// # Connections
///
/// One for commands, opened by [`connect`](Client::connect); one for subscriptions, opened when
/// something first has to wait; one for renewals, on a thread of its own, opened when a lock is
/// first renewed, between a sixth and a third of its lease after it was taken. Taking and renewing
/// locks that [require replicas](Builder::require_replicas) have one more each, opened by the first
/// such lock. In a cluster each of them is two sockets a node. Where
/// sentinels name the primary, one more is to a sentinel, and the others go where it says. All
/// reconnect by themselves.
///
/// # Runtime
///
/// The commands and subscriptions live on the tokio runtime that `connect` is called on, which must
/// have its time and io drivers enabled. When that runtime ends, held locks are no longer given
/// back, only their leases end.
///
/// # Dropping
///
/// When the last clone, lock handle and guard is dropped, tasks, thread and sockets end. What was
/// dropped just before is still released, if the runtime goes on running; at the end of `main`, call
/// [`close`](Client::close) and await it.
///
/// # Examples
///
/// ```no_run
/// # async fn f() -> Result<(), leasehold::Error> {
/// let client = leasehold::Client::connect("redis://127.0.0.1:6379").await?;
/// let guard = client.lock("invoice:42").lock().await?;
/// guard.unlock().await?;
/// client.close().await;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    prefix: Option<Arc<str>>,
}

/// Ends the engine when the last user is gone.
pub(crate) struct Shared(Arc<Engine>);

impl Shared {
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.0
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Releases queued by guards that were just dropped still go out.
        self.0.shutdown_behind();
    }
}

impl Client {
    /// Connects with the settings' defaults.
    ///
    /// URLs: `redis://user:password@host:port/db`, `rediss://` for TLS, `redis+unix://path`,
    /// `redis-cluster://host:port?node=host:port`,
    /// `redis-sentinel://host:port/db?sentinelServiceName=name`, and all of them with `valkey` for
    /// `redis`.
    ///
    /// # Errors
    ///
    /// [`InvalidUrl`](crate::ErrorKind::InvalidUrl) if the URL cannot be used or needs a cargo
    /// feature that is off (the message names it);
    /// [`Unavailable`](crate::ErrorKind::Unavailable) if no connection can be made;
    /// [`Tls`](crate::ErrorKind::Tls) if one can, but not with TLS as it was asked for;
    /// [`Refused`](crate::ErrorKind::Refused) if the server does not let us in.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn connect(url: impl AsRef<str>) -> Result<Self, Error> {
        Self::builder(url)?.connect().await
    }

    /// Starts to connect behind the scenes and returns at once.
    ///
    /// Calls made before the server answers wait for it as through any other outage.
    ///
    /// # Errors
    ///
    /// As for [`connect`](Client::connect), but nothing is known of the server yet.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn connect_lazy(url: impl AsRef<str>) -> Result<Self, Error> {
        Self::builder(url)?.connect_lazy().await
    }

    /// A builder for a client with settings of its own.
    ///
    /// # Errors
    ///
    /// [`InvalidUrl`](crate::ErrorKind::InvalidUrl) as for [`connect`](Client::connect).
    pub fn builder(url: impl AsRef<str>) -> Result<Builder, Error> {
        Address::from_url(url.as_ref()).map(Builder::new)
    }

    /// A builder that takes server, login and TLS from a fred configuration.
    ///
    /// The sockets are our own; of the configuration only where and how to connect is used. What is
    /// then said about TLS on the builder takes the place of its connector.
    #[cfg(feature = "fred")]
    pub fn from_fred_config(config: fred::types::config::Config) -> Builder {
        Builder::new(Address::from_config(config))
    }

    /// A builder that takes server, login and TLS from a fred client.
    ///
    /// The sockets are our own: locks need settings that a client made for other things lacks.
    #[cfg(feature = "fred")]
    pub fn from_fred(client: &fred::clients::Client) -> Builder {
        use fred::interfaces::ClientLike;
        Self::from_fred_config(client.client_config())
    }

    /// The reentrant lock of this name.
    ///
    /// Sends nothing and cannot fail; a name that cannot be a lock's is refused by the first use.
    /// Handles of one name are the same lock.
    #[doc(alias = "getLock")]
    #[doc(alias = "RLock")]
    #[doc(alias = "mutex")]
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        self.handle(&LOCK, Mode::Exclusive, name.as_ref())
    }

    /// A handle on a lock of this kind.
    pub(crate) fn handle(&self, kind: &'static Kind, mode: Mode, name: &str) -> Lock {
        Lock::new(self.shared.clone(), kind, mode, &self.full_name(name))
    }

    /// The same client with a prefix before every name.
    ///
    /// A view: connections, uuid, queues and renewal are shared. The
    /// [`name_mapper`](Builder::name_mapper), if there is one, sees the name with its prefix.
    pub fn prefixed(&self, prefix: impl AsRef<str>) -> Self {
        let prefix = format!("{}{}", self.prefix.as_deref().unwrap_or(""), prefix.as_ref());
        Self { shared: self.shared.clone(), prefix: Some(prefix.into()) }
    }

    fn full_name(&self, name: &str) -> String {
        // An empty name stays empty, to be refused, whatever stands in front of it.
        if name.is_empty() {
            return String::new();
        }
        let name = format!("{}{name}", self.prefix.as_deref().unwrap_or(""));
        match &self.shared.engine().settings().name_mapper {
            Some(mapper) => mapper(&name),
            None => name,
        }
    }

    /// The uuid by which holds of this client are known in Redis (`<uuid>:<id>`).
    pub fn id(&self) -> &str {
        &self.shared.engine().uuid
    }

    /// Closes the client in good order.
    ///
    /// New outermost acquisitions are refused from now on, and waiting ones end with
    /// [`Closed`](crate::ErrorKind::Closed). Held locks go on being renewed until their guards are
    /// gone or `grace` ends; then what is still held is told
    /// [`lost(ClientClosed)`](crate::LostReason::ClientClosed): no lock is ever released under a
    /// living guard, its lease just runs out. Releases that are queued still go out, for at most
    /// one command timeout.
    ///
    /// # Cancel safety
    ///
    /// Once polled, new acquisitions are refused; the rest is done by the call that finishes.
    pub async fn shutdown(&self, grace: Duration) {
        self.shared.engine().shutdown(grace).await;
    }

    /// Closes the client without waiting for guards: [`shutdown`](Client::shutdown) with no grace.
    ///
    /// Await it before `main` ends: guards dropped just before are released by it.
    ///
    /// # Cancel safety
    ///
    /// As for [`shutdown`](Client::shutdown).
    pub async fn close(&self) {
        self.shutdown(Duration::ZERO).await;
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("id", &self.id())
            .field("server", &self.shared.engine().wiring.address)
            .field("prefix", &self.prefix)
            .finish()
    }
}

/// Settings for a [`Client`].
///
/// # Examples
///
/// ```no_run
/// # async fn f() -> Result<(), leasehold::Error> {
/// use std::time::Duration;
/// let client = leasehold::Client::builder("redis://127.0.0.1:6379")?
///     .watchdog(Duration::from_secs(20))
///     .max_hold(Duration::from_secs(3600))
///     .label("billing-7")
///     .connect()
///     .await?;
/// # Ok(()) }
/// ```
#[must_use = "a builder does nothing until it connects"]
pub struct Builder {
    address: Address,
    settings: Settings,
}

impl Builder {
    fn new(address: Address) -> Self {
        Self { address, settings: Settings::default() }
    }

    /// The TTL of renewed locks (Redisson's `lockWatchdogTimeout`); default 30 s, renewed at a third
    /// of it. A process that dies frees its locks within this time.
    #[doc(alias = "lockWatchdogTimeout")]
    pub fn watchdog(mut self, lease: Duration) -> Self {
        self.settings.watchdog = lease;
        self
    }

    /// How long a single command may take; default 2 s, from 10 ms to 60 s. A connection that is
    /// silent for as long is made anew.
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.settings.command_timeout = timeout;
        self
    }

    /// How long waiting calls without a limit of their own ride out a server that does not answer;
    /// default 10 s, from 10 ms to a day.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.settings.patience = patience;
        self
    }

    /// The longest a waiter sleeps without looking at the lock again; default 30 s, from 10 ms to a
    /// day. It bounds what a lost message can cost while the holder goes on renewing.
    pub fn fallback_cap(mut self, cap: Duration) -> Self {
        self.settings.fallback_cap = cap;
        self
    }

    /// How long a granted lock is kept for a future that is not polled; default 100 ms, from 1 ms to
    /// 60 s. After it the next waiter, or the next process, has its turn.
    pub fn collect_within(mut self, time: Duration) -> Self {
        self.settings.uncollected = time;
        self
    }

    /// For how long a lock is handed from waiter to waiter of this process in memory before it goes
    /// back to Redis; default 10 ms, at most 10 s, zero turns it off.
    ///
    /// Within the window a hand-over costs no command, so a hot lock is served a thousand times
    /// faster. Other processes wait for it at most that much longer. If the lock is removed by
    /// force meanwhile, a waiter may be let in, and a release may succeed, for up to one window.
    pub fn hand_over_window(mut self, window: Duration) -> Self {
        self.settings.hand_over_window = window;
        self
    }

    /// How waiters are told; default as Redisson does it.
    pub fn publish(mut self, mode: PublishMode) -> Self {
        self.settings.publish = mode;
        self
    }

    /// How waiters learn that they should try again; default by messages.
    pub fn wait_mode(mut self, mode: WaitMode) -> Self {
        self.settings.waiting = mode;
        self
    }

    /// The longest any lock is kept by renewal; default: as long as its guard lives. A hold that
    /// reaches it is [lost](crate::LostReason::MaxHold).
    pub fn max_hold(mut self, max: Duration) -> Self {
        self.settings.max_hold = Some(max);
        self
    }

    /// So many replicas must have what takes a lock and what keeps it, before it counts; default
    /// none. `within` is how long is waited for them, from 1 ms to the
    /// [`command_timeout`](Builder::command_timeout). [`Lock::require_replicas`] sets it for one
    /// handle.
    ///
    /// A failover then loses no lock, if the new primary is one of those replicas (one that was
    /// required to have it may still be passed over: Redis does not promise which takes over). What
    /// it means:
    ///
    /// * **Taking**, also once more (nested), is a write and a `WAIT`. If fewer replicas say in time
    ///   that they have it, the acquisition is undone and fails at once with
    ///   [`NotReplicated`](crate::ErrorKind::NotReplicated), which says how many did. Where `WAIT`
    ///   is not to be had, it fails with the server's refusal before anything is written.
    /// * **Keeping** it: a renewal counts only when as many replicas have it. One that does not
    ///   leaves the local deadline where it was, and is tried again after a tenth of the lease; if
    ///   none counts until then, the hold is [lost](crate::LostReason::Expired) and given back.
    ///   [`Held::extend`](crate::Held::extend) likewise.
    /// * **Giving back** waits for nobody.
    /// * A lock is handed on in memory only to one who requires as many. A hold that is entered by
    ///   somebody who requires more is kept by more from then on; who requires fewer inside it is
    ///   served as the hold is.
    ///
    /// It is so for locks of all kinds and for permits of both semaphores. Waiting for a latch takes
    /// nothing, and what counts it down, or sets the number of permits, is not waited for.
    ///
    /// It has two connections of its own, for taking and for renewing, opened by the first use: a
    /// `WAIT` holds up what is behind it. So a replica that lags holds up those who require replicas
    /// (each for up to `within`, and those behind them once more) and nobody else.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn f() -> Result<(), leasehold::Error> {
    /// use std::time::Duration;
    /// let client = leasehold::Client::builder("redis://127.0.0.1:6379")?
    ///     .require_replicas(1, Duration::from_millis(500))
    ///     .connect()
    ///     .await?;
    /// # Ok(()) }
    /// ```
    #[doc(alias = "WAIT")]
    pub fn require_replicas(mut self, replicas: u8, within: Duration) -> Self {
        self.settings.replicas = Replicas::new(replicas, within);
        self
    }

    /// Who an acquisition outside any scope belongs to; default the current task.
    pub fn reentry(mut self, mode: Reentry) -> Self {
        self.settings.reentry = mode;
        self
    }

    /// A name for this process in warnings about long waits and lost locks.
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.settings.label = Some(label.into());
        self
    }

    /// How lock names appear in log events; default in full.
    pub fn names_in_logs(mut self, mode: NamesInLogs) -> Self {
        self.settings.names_in_logs = mode;
        self
    }

    /// Maps a name to its key in Redis, as Redisson's `NameMapper` does.
    #[doc(alias = "NameMapper")]
    pub fn name_mapper(mut self, mapper: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        let mapper: NameMapper = Arc::new(mapper);
        self.settings.name_mapper = Some(mapper);
        self
    }

    /// Trusts servers whose certificates this authority has signed, and no others.
    ///
    /// PEM, of one or several certificates; called again, it adds to them. Without it the
    /// authorities of the operating system are trusted. It is looked at by
    /// [`connect`](Builder::connect), and refused there if the URL does not ask for TLS.
    ///
    /// There is no way to turn the check off: for a self-signed certificate, name that.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = leasehold::Client::builder("rediss://redis.internal:6380")?
    ///     .tls_ca(std::fs::read("ca.pem")?)
    ///     .tls_client_identity(std::fs::read("client.pem")?, std::fs::read("client.key")?)
    ///     .connect()
    ///     .await?;
    /// # Ok(()) }
    /// ```
    #[cfg(any(feature = "tls-rustls", feature = "tls-native"))]
    pub fn tls_ca(mut self, pem: impl AsRef<[u8]>) -> Self {
        self.address.tls().trust(pem.as_ref());
        self
    }

    /// Shows servers that ask for it (`tls-auth-clients`) this certificate.
    ///
    /// Both in PEM: the certificate, followed by those between it and the authority if there are
    /// any; and its private key (with `tls-native` in PKCS #8: `BEGIN PRIVATE KEY`). They are
    /// looked at by [`connect`](Builder::connect), and refused there if the URL does not ask for
    /// TLS.
    #[cfg(any(feature = "tls-rustls", feature = "tls-native"))]
    pub fn tls_client_identity(
        mut self,
        certificate: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
    ) -> Self {
        self.address.tls().identify(certificate.as_ref(), key.as_ref());
        self
    }

    /// Connects.
    ///
    /// # Errors
    ///
    /// [`InvalidDuration`](crate::ErrorKind::InvalidDuration) for a setting out of its bounds, else
    /// as for [`Client::connect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Panics
    ///
    /// If called outside a tokio runtime.
    pub async fn connect(self) -> Result<Client, Error> {
        self.open(false).await
    }

    /// Connects behind the scenes, see [`Client::connect_lazy`].
    ///
    /// # Errors
    ///
    /// [`InvalidDuration`](crate::ErrorKind::InvalidDuration) for a setting out of its bounds.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Panics
    ///
    /// If called outside a tokio runtime.
    pub async fn connect_lazy(self) -> Result<Client, Error> {
        self.open(true).await
    }

    async fn open(mut self, lazy: bool) -> Result<Client, Error> {
        self.settings.check()?;
        self.address.secure()?;
        let engine = Engine::start(self.address, self.settings, lazy).await?;
        // From here on the engine ends with the client, also if this future is dropped.
        let client = Client { shared: Arc::new(Shared(engine)), prefix: None };
        client.shared.engine().learn(lazy).await;
        Ok(client)
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("server", &self.address).finish_non_exhaustive()
    }
}
