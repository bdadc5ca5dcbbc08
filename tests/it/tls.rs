//! TLS: who is trusted, who is not, and that each failure says what it is, in time.
//!
//! Certificates are made by each test, servers listen on loopback only.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    time::Duration,
};

use leasehold::{Builder, Client, Error, ErrorKind};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd as date,
};

use crate::support::{
    Capture, assert_no_keys, eventually,
    server::{RedisServer, free_port, until},
    subscriptions, unique,
};

/// A guard against hangs, never a measure.
const SOON: Duration = Duration::from_secs(20);
const LEASE: Duration = Duration::from_secs(30);

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, work).await.expect("it hangs")
}

/// An authority that signs what it is given.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate and its key.
struct Signed {
    pem: String,
    key: String,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, unique("an authority"));
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// For a server at this machine's names.
    fn here(&self) -> Signed {
        self.sign(&["localhost", "127.0.0.1"])
    }

    fn sign(&self, names: &[&str]) -> Signed {
        self.sign_for(names, 2020, 2100)
    }

    fn sign_for(&self, names: &[&str], from: i32, to: i32) -> Signed {
        let names: Vec<_> = names.iter().map(ToString::to_string).collect();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(names).unwrap();
        (params.not_before, params.not_after) = (date(from, 1, 1), date(to, 1, 1));
        let pem = params.signed_by(&key, &self.issuer).unwrap().pem();
        Signed { pem, key: key.serialize_pem() }
    }
}

/// A server that listens on a port with TLS beside its plain one.
struct Secure {
    server: RedisServer,
    port: u16,
    dir: PathBuf,
}

impl Secure {
    fn start(authority: &Authority, certificate: &Signed) -> Self {
        Self::with(authority, certificate, &["--tls-auth-clients", "no"])
    }

    fn with(authority: &Authority, certificate: &Signed, args: &[&str]) -> Self {
        let dir = std::env::temp_dir().join(unique("leasehold-tls"));
        fs::create_dir(&dir).unwrap();
        let port = free_port();
        let server = RedisServer::builder()
            .args(["--tls-port", &port.to_string()])
            .args(["--tls-ca-cert-file", &file(&dir, "ca.pem", &authority.pem)])
            .args(["--tls-cert-file", &file(&dir, "server.pem", &certificate.pem)])
            .args(["--tls-key-file", &file(&dir, "server.key", &certificate.key)])
            .args(args.iter().copied())
            .start();
        Self { server, port, dir }
    }

    /// Shows another certificate from now on, and breaks all connections made by TLS.
    fn show(&self, certificate: &Signed) {
        let raw = self.server.raw();
        let pem = file(&self.dir, &unique("pem"), &certificate.pem);
        let key = file(&self.dir, &unique("key"), &certificate.key);
        raw.cmd(&["CONFIG", "SET", "tls-cert-file", &pem, "tls-key-file", &key]).ok();
        raw.cmd(&["CLIENT", "KILL", "LADDR", &format!("127.0.0.1:{}", self.port)]).ok();
    }

    fn url(&self) -> String {
        self.url_of("localhost")
    }

    fn url_of(&self, host: &str) -> String {
        format!("rediss://{host}:{}/", self.port)
    }

    fn builder(&self, authority: &Authority) -> Builder {
        Client::builder(self.url()).unwrap().tls_ca(&authority.pem)
    }
}

fn file(dir: &Path, name: &str, text: &str) -> String {
    fs::write(dir.join(name), text).unwrap();
    dir.join(name).display().to_string()
}

impl Drop for Secure {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Connects, which must fail in time.
async fn refused(builder: Builder) -> Error {
    within(builder.connect()).await.expect_err("it must not connect")
}

/// Connects, which must fail with an error of TLS's own that says this.
#[track_caller]
fn refused_for(builder: Builder, words: &str) -> impl Future<Output = ()> {
    let at = std::panic::Location::caller();
    async move {
        let error = refused(builder).await;
        assert_eq!(error.kind(), ErrorKind::Tls, "{error}, at {at}");
        assert!(error.to_string().contains(words), "{error}, at {at}");
        assert!(!error.is_unavailable(), "trying again is of no use: {at}");
    }
}

/// Commands, messages and renewals, and not one of them in the clear.
#[tokio::test]
async fn a_lock_lives_by_tls_alone() {
    let authority = Authority::new();
    let secure = Secure::start(&authority, &authority.here());
    let raw = secure.server.raw();
    let connect = || secure.builder(&authority).watchdog(Duration::from_secs(3)).connect();
    let (client, other) = (within(connect()).await.unwrap(), within(connect()).await.unwrap());
    let guard = within(client.lock("job").lock()).await.unwrap();
    let waiting = tokio::spawn(other.lock("job").lock_with(LEASE));
    eventually("it listens", async || subscriptions(&raw) == 1).await;
    let later = guard.valid_until() + Duration::from_millis(100);
    eventually("it is renewed", async || guard.valid_until() > later).await;
    let clients = raw.cmd(&["CLIENT", "LIST"]).text();
    let ours: Vec<_> = clients.lines().filter(|line| line.contains("resp=3")).collect();
    let secure_end = format!("laddr=127.0.0.1:{} ", secure.port);
    // Commands of both, the renewals of one, the subscriptions of the other.
    assert_eq!(ours.len(), 4, "{clients}");
    assert!(ours.iter().all(|line| line.contains(&secure_end)), "{clients}");
    within(guard.unlock()).await.unwrap();
    within(within(waiting).await.unwrap().unwrap().detach().unlock()).await.unwrap();
    assert_no_keys(&raw);
}

/// as any broken connection.
#[tokio::test]
async fn a_hold_outlives_a_broken_connection() {
    let authority = Authority::new();
    let secure = Secure::start(&authority, &authority.here());
    let client = within(secure.builder(&authority).connect()).await.unwrap();
    let guard = within(client.lock("job").lock()).await.unwrap();
    secure.show(&authority.here());
    within(within(client.lock("other").lock()).await.unwrap().unlock()).await.unwrap();
    assert!(guard.is_held());
    within(guard.unlock()).await.unwrap();
    assert_no_keys(&secure.server.raw());
}

/// Those of the system are not trusted beside it, nor another one.
#[tokio::test]
async fn only_the_authority_that_is_named_is_trusted() {
    let (authority, other) = (Authority::new(), Authority::new());
    let secure = Secure::start(&authority, &authority.here());
    within(Client::builder(secure.url_of("127.0.0.1")).unwrap().tls_ca(&authority.pem).connect())
        .await
        .unwrap();
    refused_for(secure.builder(&other), "authority").await;
    assert_eq!(
        secure.server.raw().cmd(&["INFO", "commandstats"]).text().matches("hello").count(),
        1
    );
}

/// Whether this machine has any authorities or not.
#[tokio::test]
async fn without_a_name_an_authority_of_ones_own_is_not_trusted() {
    let authority = Authority::new();
    let secure = Secure::start(&authority, &authority.here());
    let error = refused(Client::builder(secure.url()).unwrap()).await;
    assert!(matches!(error.kind(), ErrorKind::Tls | ErrorKind::InvalidUrl), "{error}");
    assert!(error.to_string().contains("Builder::tls_ca"), "{error}");
}

/// While a fleet changes from one to the next, it trusts both.
#[tokio::test]
async fn several_authorities_may_be_named() {
    let (old, new) = (Authority::new(), Authority::new());
    let secure = Secure::start(&old, &old.here());
    let both = || Client::builder(secure.url()).unwrap().tls_ca(format!("{}{}", new.pem, old.pem));
    let each = || secure.builder(&new).tls_ca(&old.pem);
    within(both().connect()).await.unwrap();
    within(each().connect()).await.unwrap();
    secure.show(&new.here());
    within(both().connect()).await.unwrap();
    within(each().connect()).await.unwrap();
    refused_for(secure.builder(&old), "authority").await;
}

#[tokio::test]
async fn a_certificate_for_another_name_or_time_is_refused() {
    let authority = Authority::new();
    let secure = Secure::start(&authority, &authority.sign(&["redis.example.org"]));
    refused_for(secure.builder(&authority), "another name").await;
    secure.show(&authority.sign(&["localhost"]));
    within(secure.builder(&authority).connect()).await.unwrap();
    let by_address = Client::builder(secure.url_of("127.0.0.1")).unwrap().tls_ca(&authority.pem);
    refused_for(by_address, "another name").await;
    secure.show(&authority.sign_for(&["localhost"], 2019, 2020));
    refused_for(secure.builder(&authority), "expired").await;
    secure.show(&authority.sign_for(&["localhost"], 2099, 2100));
    refused_for(secure.builder(&authority), "not valid yet").await;
}

/// each failure hints at the other port.
#[tokio::test]
async fn who_takes_the_wrong_port_is_told() {
    let authority = Authority::new();
    let secure = Secure::start(&authority, &authority.here());
    let plain = secure.server.url().replace("redis://", "rediss://");
    let error = refused(Client::builder(plain).unwrap().tls_ca(&authority.pem)).await;
    // A server that waits for the end of a line says nothing.
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("without TLS"), "{error}");
    let in_the_clear = secure.url().replace("rediss://", "redis://");
    let error = refused(Client::builder(in_the_clear).unwrap()).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("rediss://"), "{error}");
}

/// bounded by the command timeout, or told at once.
#[tokio::test]
async fn a_handshake_that_is_not_answered_or_cut_ends_in_time() {
    let authority = Authority::new();
    let listen = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = |listener: &std::net::TcpListener| {
        let port = listener.local_addr().unwrap().port();
        Client::builder(format!("rediss://127.0.0.1:{port}/")).unwrap().tls_ca(&authority.pem)
    };
    let silent = listen();
    let error = refused(at(&silent)).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("did not answer in time"), "{error}");
    let cutting = listen();
    let builder = at(&cutting);
    let cut = std::thread::spawn(move || {
        let (mut socket, _) = cutting.accept().unwrap();
        socket.read_exact(&mut [0; 5]).unwrap();
    });
    let error = refused(builder).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    cut.join().unwrap();
}

#[tokio::test]
async fn a_client_shows_the_certificate_that_the_server_asks_for() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let secure = Secure::with(&authority, &authority.here(), &["--tls-auth-clients", "yes"]);
    let showing = |own: &Signed| secure.builder(&authority).tls_client_identity(&own.pem, &own.key);
    let client = within(showing(&authority.sign(&["me"])).connect()).await.unwrap();
    let guard = within(client.lock("job").lock()).await.unwrap();
    within(guard.unlock()).await.unwrap();
    let (none, others, old) =
        (None, Some(stranger.sign(&["me"])), Some(authority.sign_for(&["me"], 2019, 2020)));
    for (own, words) in [
        (none, "asks for a client certificate"),
        (others, "does not accept our client certificate"),
        (old, "does not accept our client certificate"),
    ] {
        let builder = own.as_ref().map_or_else(|| secure.builder(&authority), showing);
        if cfg!(feature = "tls-rustls") {
            refused_for(builder, words).await;
        } else {
            // The system's library loses the reason where the server hangs up behind it.
            let error = refused(builder).await;
            assert!(error.to_string().contains("client certificate"), "{error}");
        }
    }
}

/// Before anything is sent, and without a word of what stands in it.
#[tokio::test]
async fn certificates_that_cannot_be_read_are_refused() {
    let authority = Authority::new();
    let (own, other) = (authority.sign(&["me"]), authority.sign(&["you"]));
    let builder = || Client::builder("rediss://127.0.0.1:1/").unwrap();
    let damaged = own.key.replacen('\n', "\n?", 1);
    let block =
        |body: &str| format!("-----BEGIN CERTIFICATE-----\n{body}-----END CERTIFICATE-----\n");
    let cases = [
        ("CA", builder().tls_ca("")),
        ("CA", builder().tls_ca("nonsense")),
        ("CA", builder().tls_ca(&own.key)),
        ("CA", builder().tls_ca(block("AAAA\n"))),
        ("CA", builder().tls_ca(block("????\n"))),
        ("CA", builder().tls_ca(&authority.pem).tls_ca("nonsense")),
        ("client", builder().tls_client_identity("", &own.key)),
        ("client", builder().tls_client_identity(&own.pem, "")),
        ("client", builder().tls_client_identity(&own.pem, &own.pem)),
        ("client", builder().tls_client_identity(&own.pem, &damaged)),
        ("client", builder().tls_client_identity(&own.pem, &other.key)),
    ];
    let secrets: Vec<_> =
        own.key.lines().chain(other.key.lines()).filter(|l| l.len() > 20).collect();
    for (which, (whose, builder)) in cases.into_iter().enumerate() {
        let debug = format!("{builder:?}");
        let error = refused(builder.tls_ca(&authority.pem)).await;
        assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{which}: {error}");
        assert!(
            error.to_string().contains(&format!("the {whose} certificate")),
            "{which}: {error}"
        );
        for secret in secrets.iter().filter(|line| !line.contains("-----")) {
            assert!(!format!("{error:?} {debug}").contains(secret), "{which}: {error}");
        }
    }
}

/// Else they would be thought to protect a connection in the clear.
#[tokio::test]
async fn certificates_for_a_url_without_tls_are_refused() {
    let server = RedisServer::start();
    let authority = Authority::new();
    let own = authority.sign(&["me"]);
    for builder in [
        Client::builder(server.url()).unwrap().tls_ca(&authority.pem),
        Client::builder(server.url()).unwrap().tls_client_identity(&own.pem, &own.key),
    ] {
        let error = refused(builder).await;
        assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{error}");
        assert!(error.to_string().contains("rediss"), "{error}");
    }
}

/// an outage like any other, with its cause in the log and in errors, and it heals.
#[tokio::test]
async fn a_certificate_that_expires_while_we_run_is_an_outage_that_says_why() {
    let capture = Capture::global();
    let authority = Authority::new();
    let secure = Secure::start(&authority, &authority.here());
    let client = within(secure.builder(&authority).connect()).await.unwrap();
    secure.show(&authority.sign_for(&["localhost"], 2019, 2020));
    let port = secure.port;
    let cause = |event: &crate::support::Event| {
        event.message == "cannot connect"
            && event.field("cause").is_some_and(|cause| cause.contains("expired"))
            && event.field("server") == Some(&format!("localhost:{port}"))
    };
    capture.wait_for("the cause is told", cause).await;
    let error = within(client.lock("job").is_locked()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("expired"), "{error}");
    let waiting = tokio::spawn(client.lock("job").lock_with(LEASE));
    secure.show(&authority.here());
    within(within(waiting).await.unwrap().unwrap().detach().unlock()).await.unwrap();
    let told = capture.events().iter().filter(|event| cause(event)).count();
    assert_eq!(told, 1, "not at each attempt");
}

/// what is known only later is told later.
#[tokio::test]
async fn a_lazy_client_that_trusts_nobody_tells_its_first_caller() {
    let (authority, other) = (Authority::new(), Authority::new());
    let secure = Secure::start(&authority, &authority.here());
    let builder = secure.builder(&other).patience(Duration::from_millis(200));
    let client = within(builder.connect_lazy()).await.unwrap();
    let error = within(client.lock("job").lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let error = within(secure.builder(&other).tls_ca("nonsense").connect_lazy()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{error}");
}

/// Its connector trusts the system's authorities; what the builder is told comes after it.
#[cfg(feature = "fred")]
#[tokio::test]
async fn a_fred_configuration_can_be_given_an_authority() {
    use leasehold::fred::types::config::Config;

    let authority = Authority::new();
    let secure = Secure::start(&authority, &authority.here());
    let config = Config::from_url(&secure.url()).unwrap();
    refused_for(Client::from_fred_config(config.clone()), "authority").await;
    let client = Client::from_fred_config(config).tls_ca(&authority.pem).connect();
    let client = within(client).await.unwrap();
    within(within(client.lock("job").lock()).await.unwrap().unlock()).await.unwrap();
}

/// The addresses that a cluster names are those of its ports with TLS.
#[tokio::test]
async fn a_cluster_is_reached_by_tls() {
    let authority = Authority::new();
    let bus = free_port().to_string();
    let cluster = [
        ["--tls-auth-clients", "no"],
        ["--tls-cluster", "yes"],
        ["--cluster-enabled", "yes"],
        ["--cluster-announce-ip", "127.0.0.1"],
        ["--cluster-port", &bus],
    ];
    let secure = Secure::with(&authority, &authority.here(), cluster.as_flattened());
    let raw = secure.server.raw();
    raw.cmd(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).ok();
    until("the cluster stands", || raw.cmd(&["CLUSTER", "INFO"]).text().contains("state:ok"));
    let url = secure.url().replace("rediss://", "rediss-cluster://");
    let client = Client::builder(&url).unwrap().tls_ca(&authority.pem).connect();
    let client = within(client).await.unwrap();
    for name in ["a", "b", "c"] {
        within(within(client.lock(name).lock()).await.unwrap().unlock()).await.unwrap();
    }
    let error = refused(Client::builder(&url).unwrap().tls_ca(Authority::new().pem)).await;
    assert_eq!(error.kind(), ErrorKind::Tls, "{error}");
}
