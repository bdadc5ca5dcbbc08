//! The shape of the API: what can be sent, shared and printed, and what is refused at once.

use crate::support::{
    eventually,
    proxy::{Command, Matcher, Proxy},
    server::{RedisServer, free_port},
    unique,
};
use leasehold::{
    Builder, Client, Error, ErrorKind, Held, Holder, LONGEST_LEASE, LONGEST_NAME, Lease, Lock,
    LockGuard, LostReason, NamesInLogs, Owner, PublishMode, Reentry, Refusal, SHORTEST_LEASE,
};
use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Each type with what it implements.
macro_rules! assert_are {
    ($($type:ty: $bound:tt $(+ $more:tt)*;)+) => {
        $({
            fn is<T: $bound $(+ $more)*>() {}
            is::<$type>();
        })+
    };
}

/// Compiles only if the type does not implement the trait: else the method is ambiguous.
macro_rules! assert_is_not {
    ($type:ty: $trait:path) => {{
        trait Ambiguous<Which> {
            fn here() {}
        }
        impl<T: ?Sized> Ambiguous<()> for T {}
        struct Implemented;
        impl<T: ?Sized + $trait> Ambiguous<Implemented> for T {}
        <$type as Ambiguous<_>>::here();
    }};
}

/// A user of many threads keeps handles, guards and errors wherever it likes.
#[test]
fn types_can_be_shared_cloned_and_printed() {
    assert_are! {
        Client: Send + Sync + Clone + Debug + Unpin + 'static;
        Builder: Send + Sync + Debug + Unpin + 'static;
        Lock: Send + Sync + Clone + Debug + Unpin + 'static;
        LockGuard: Send + Sync + Debug + Unpin + 'static;
        Held: Send + Sync + Clone + Debug + Unpin + 'static;
        Holder: Send + Sync + Clone + Debug + Display + Eq + Hash + 'static;
        Owner: Send + Sync + Clone + Debug + Eq + 'static;
        Lease: Send + Sync + Copy + Debug + Eq + Hash + Default + 'static;
        Error: Send + Sync + Clone + Debug + Display + 'static;
        ErrorKind: Send + Sync + Copy + Debug + Eq + Hash + 'static;
        LostReason: Send + Sync + Copy + Debug + Display + Eq + Hash + 'static;
        Refusal: Send + Sync + Copy + Debug + Eq + Hash + 'static;
        NamesInLogs: Send + Sync + Copy + Debug + Eq + Hash + Default + 'static;
        PublishMode: Send + Sync + Copy + Debug + Eq + Hash + Default + 'static;
        Reentry: Send + Sync + Copy + Debug + Eq + Hash + Default + 'static;
    }
    // Two guards of one hold would release it twice.
    assert_is_not!(LockGuard: Clone);
    fn boxes<E: std::error::Error + Send + Sync + 'static>(error: E) -> Box<dyn std::error::Error> {
        Box::new(error)
    }
    let _ = boxes::<Error>;
}

fn spawnable<F: Future + Send + 'static>(_: F) {}
fn sendable<F: Future + Send>(_: F) {}

/// Compiles, which is all that is asked of it.
fn futures_can_be_sent(client: &Client, lock: &Lock, held: &Held, guards: [LockGuard; 1]) {
    let wait = Duration::ZERO;
    spawnable(Client::connect("redis://127.0.0.1"));
    spawnable(Client::connect_lazy(String::new()));
    sendable(client.shutdown(wait));
    sendable(client.close());
    spawnable(lock.lock());
    spawnable(lock.lock_with(wait));
    spawnable(lock.lock_with(Lease::Renewed));
    spawnable(lock.try_lock(wait, wait));
    spawnable(lock.try_lock(wait, Lease::Renewed));
    spawnable(lock.try_lock_for(wait));
    spawnable(lock.try_lock_now());
    spawnable(lock.unlock());
    spawnable(lock.with(|_| async {}));
    spawnable(lock.try_with(wait, wait, |held| async move { held.is_held() }));
    sendable(lock.force_unlock());
    sendable(lock.force_unlock_if(&held.holder()));
    sendable(lock.is_locked());
    sendable(lock.remaining_lease());
    sendable(lock.holder());
    spawnable(held.lost());
    sendable(held.extend(wait));
    let _ = guards.map(|guard| spawnable(guard.unlock()));
    spawnable(Owner::scope(lock.lock()));
    fn shared<F: Sync>(_: F) {}
    shared(held.lost());
}

#[test]
fn futures_can_be_spawned() {
    let _ = futures_can_be_sent;
}

/// Everything prints what it is, and no secret.
#[tokio::test]
async fn everything_prints_sensibly() {
    let secret = "s3ntinel-pw";
    let server = RedisServer::builder().args(["--requirepass", secret]).start();
    let url = format!("redis://:{secret}@127.0.0.1:{}/", server.port());
    let builder = Client::builder(&url).unwrap();
    let mut printed = vec![("Builder", format!("{builder:?}"))];
    let client = builder.connect().await.unwrap();
    let lock = client.prefixed("pre:").lock(unique("shown"));
    let guard = lock.lock().await.unwrap();
    let held: Held = guard.clone();
    let missing = lock.clone().owned_by(Owner::new()).unlock().await.unwrap_err();
    printed.extend([
        ("Client", format!("{client:?}")),
        ("Lock", format!("{lock:?}")),
        ("LockGuard", format!("{guard:?}")),
        ("Held", format!("{held:?}")),
        ("Holder", format!("{:?}", guard.holder())),
        ("Owner", format!("{:?}", guard.owner())),
        ("Error", format!("{missing:?}")),
    ]);
    for (name, text) in &printed {
        assert!(text.starts_with(name), "{text}");
        assert!(!text.contains(secret), "{text}");
    }
    let shown = |name| &printed.iter().find(|(of, _)| *of == name).unwrap().1;
    assert!(shown("Client").contains(client.id()));
    assert!(shown("Client").contains(&server.port().to_string()));
    for of in ["Lock", "LockGuard", "Held", "Error"] {
        assert!(shown(of).contains(lock.name()), "{}", shown(of));
    }
    for of in ["LockGuard", "Held", "Holder"] {
        assert!(shown(of).contains(guard.holder().as_str()), "{}", shown(of));
    }
    assert!(missing.to_string().contains(lock.name()), "{missing}");
    assert_eq!(guard.holder().to_string(), guard.holder().as_str());
    assert_eq!(guard.holder().client(), client.id());
    guard.unlock().await.unwrap();
}

/// A login that fails, or a URL that cannot be read, does not print its password either.
#[tokio::test]
async fn errors_do_not_print_passwords() {
    let server = RedisServer::builder().args(["--requirepass", "right"]).start();
    let url = format!("redis://:s3ntinel-pw@127.0.0.1:{}/", server.port());
    let refused = Client::connect(&url).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused(Refusal::Denied), "{refused}");
    let away = format!("redis://:s3ntinel-pw@127.0.0.1:{}/", free_port());
    let away = Client::connect(&away).await.unwrap_err();
    assert!(away.is_unavailable(), "{away}");
    let unreadable = "http://:s3ntinel-pw@127.0.0.1:1/";
    let unreadable = Client::connect(unreadable).await.unwrap_err();
    assert_eq!(unreadable.kind(), ErrorKind::InvalidUrl);
    for error in [refused, away, unreadable] {
        let text = format!("{error} {error:?}");
        assert!(!text.contains("s3ntinel-pw"), "{text}");
    }
}

/// Matches the command that comes after `n` others.
fn nth(n: usize) -> impl Matcher {
    let seen = AtomicUsize::new(0);
    move |_: &Command| seen.fetch_add(1, Relaxed) == n
}

/// R-38, I12: at whatever point of connecting its future is dropped.
#[tokio::test]
async fn a_dropped_connect_leaves_nothing_behind() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    for reply in 0..6 {
        let hold = proxy.hold_reply(nth(reply));
        let mut connecting = Box::pin(Client::connect(proxy.url()));
        tokio::select! {
            connected = &mut connecting => drop(connected.unwrap()),
            () = hold.held() => drop(connecting),
        }
        hold.release();
        eventually("the sockets are closed", async || proxy.connections() == 0).await;
    }
}

/// I12: nor does one that the server turned away.
#[tokio::test]
async fn a_refused_connect_leaves_nothing_behind() {
    let server = RedisServer::builder().args(["--requirepass", "right"]).start();
    let proxy = Proxy::start(server.port());
    for _ in 0..3 {
        let error = Client::connect(proxy.url()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused(Refusal::Denied), "{error}");
    }
    eventually("the sockets are closed", async || proxy.connections() == 0).await;
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Each setting that is a time, with times beyond its bounds and times just within.
type Bounds = (&'static str, fn(Builder, Duration) -> Builder, Vec<Duration>, [Duration; 2]);

fn bounds() -> Vec<Bounds> {
    let (day, max) = (86_400_000, Duration::MAX);
    let beyond = |least: u64, most: u64| vec![Duration::ZERO, ms(least - 1), ms(most + 1), max];
    let longest = vec![Duration::ZERO, ms(9), LONGEST_LEASE + ms(1), max];
    vec![
        ("watchdog", Builder::watchdog, longest, [SHORTEST_LEASE, LONGEST_LEASE]),
        ("timeout", Builder::command_timeout, beyond(10, 60_000), [ms(10), ms(60_000)]),
        ("patience", Builder::patience, beyond(10, day), [ms(10), ms(day)]),
        ("fallback", Builder::fallback_cap, beyond(10, day), [ms(10), ms(day)]),
        ("collection", Builder::collect_within, beyond(1, 60_000), [ms(1), ms(60_000)]),
        ("max hold", Builder::max_hold, vec![Duration::ZERO], [ms(1), max]),
    ]
}

///
#[tokio::test]
async fn settings_out_of_bounds_are_refused_before_connecting() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    for (name, set, beyond, within) in bounds() {
        for time in beyond {
            let builder = || set(Client::builder(&url).unwrap(), time);
            let errors = [builder().connect().await.err(), builder().connect_lazy().await.err()];
            for error in errors {
                let error = error.unwrap_or_else(|| panic!("{name} of {time:?} was accepted"));
                assert_eq!(error.kind(), ErrorKind::InvalidDuration);
                assert!(error.to_string().contains(name), "{name}: {error}");
            }
        }
        assert!(listener.accept().is_err(), "{name}: connected before the check");
        for time in within {
            let idle = Client::builder(format!("redis://127.0.0.1:{}", free_port())).unwrap();
            let client = set(idle, time).connect_lazy().await;
            assert!(client.is_ok(), "{name} of {time:?}: {client:?}");
        }
    }
}

/// what a call asks for is looked at before the server is, which here does not even exist.
#[tokio::test]
async fn names_and_leases_out_of_bounds_are_refused_before_sending() {
    let url = format!("redis://127.0.0.1:{}", free_port());
    let client = Client::connect_lazy(&url).await.unwrap();
    let lock = client.lock("ok");
    for lease in [Duration::ZERO, ms(9), LONGEST_LEASE + ms(1), Duration::MAX] {
        let errors = [
            lock.lock_with(lease).await.unwrap_err(),
            lock.try_lock(Duration::MAX, lease).await.unwrap_err(),
            lock.clone().lease(lease).lock().await.unwrap_err(),
            lock.try_with(ms(1), lease, |_| async {}).await.unwrap_err(),
        ];
        assert!(errors.iter().all(|error| error.kind() == ErrorKind::InvalidDuration));
    }
    let held_too_short = lock.clone().max_hold(Duration::ZERO).lock().await.unwrap_err();
    assert_eq!(held_too_short.kind(), ErrorKind::InvalidDuration);
    for name in [String::new(), "n".repeat(LONGEST_NAME + 1)] {
        let bad = client.prefixed("").lock(&name);
        let errors = [
            bad.lock().await.unwrap_err(),
            bad.unlock().await.unwrap_err(),
            bad.force_unlock().await.unwrap_err(),
            bad.is_locked().await.unwrap_err(),
        ];
        assert!(errors.iter().all(|error| error.kind() == ErrorKind::InvalidName));
        assert_eq!((bad.name(), bad.hold_count()), ("", 0));
    }
}

/// Whoever comes from Redisson finds things by the names used there.
#[test]
fn redisson_s_names_lead_here() {
    let sources = ["src/client.rs", "src/sync/lock.rs", "src/sync/held.rs"].map(|path| {
        std::fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
    });
    let sources = sources.concat();
    for name in [
        "getLock",
        "RLock",
        "lockWatchdogTimeout",
        "NameMapper",
        "tryLock",
        "lockAsync",
        "forceUnlock",
        "isLocked",
        "remainTimeToLive",
        "isHeldByCurrentThread",
        "getHoldCount",
    ] {
        assert!(sources.contains(&format!("#[doc(alias = \"{name}\")]")), "{name}");
    }
}

/// every call works on a thread that has no runtime of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_can_be_used_outside_any_runtime() {
    let server = crate::support::server::RedisServer::start();
    let client = leasehold::Client::connect(server.url()).await.expect("it is up");
    let (lock, other) = (client.lock("plain"), client.lock("plain"));
    let held = other.lock().await.expect("free");
    let used = std::thread::spawn(move || {
        futures::executor::block_on(async {
            assert!(lock.is_locked().await.expect("it answers"));
            let wait = std::time::Duration::from_millis(50);
            assert!(lock.try_lock_for(wait).await.expect("it answers").is_none());
            drop(held);
            let guard = lock.lock().await.expect("it comes free");
            guard.extend(std::time::Duration::from_secs(60)).await.expect("it is held");
            let inner = lock.lock().await.expect("nested");
            inner.unlock().await.expect("it is held");
            guard.unlock().await.expect("it is held");
            lock.force_unlock().await.expect("it answers");
        });
    });
    let used = tokio::task::spawn_blocking(move || used.join());
    let used = tokio::time::timeout(std::time::Duration::from_secs(20), used).await;
    used.expect("no hang").expect("no panic").expect("no panic in the thread");
}
