//! Who holds a lock: scopes, branches of one task, explicit owners, requests of one connection.

use crate::support::{
    assert_no_keys, eventually,
    history::History,
    server::{Raw, RedisServer},
    unique,
};
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn};
use axum::routing::get;
use futures::future::{join_all, try_join_all};
use futures::stream::{self, StreamExt};
use leasehold::{Client, Error, ErrorKind, Lock, LockGuard, Owner, Reentry};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

/// Far longer than anything here takes.
const SOON: Duration = Duration::from_secs(20);

/// A server, and a lock of one client of it.
struct Setup {
    _server: RedisServer,
    raw: Raw,
    client: Client,
    lock: Lock,
}

impl Setup {
    async fn new() -> Self {
        Self::with_reentry(Reentry::Task).await
    }

    async fn with_reentry(reentry: Reentry) -> Self {
        let server = RedisServer::start();
        let client = Client::builder(server.url()).unwrap().reentry(reentry);
        let client = client.connect().await.unwrap();
        let lock = client.lock(unique("owned"));
        Self { raw: server.raw(), _server: server, client, lock }
    }

    fn count(&self) -> i64 {
        let held = self.raw.cmd(&["HVALS", self.lock.name()]).ok();
        assert!(held.items().len() <= 1, "more than one holder: {held:?}");
        held.items().first().map_or(0, |count| count.int())
    }
}

async fn within_bounds<T>(work: impl Future<Output = T>) -> T {
    timeout(SOON, work).await.expect("this hangs")
}

/// Enters the lock a few times and says so to the history, coming back to the executor meanwhile.
async fn visits(lock: Lock, history: History, owner: usize) {
    for _ in 0..4 {
        let guard = lock.lock().await.unwrap();
        let held = history.held(lock.name(), &owner.to_string());
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        held.end();
        guard.unlock().await.unwrap();
    }
}

/// The same in a scope of its own.
fn scoped_visits(lock: &Lock, history: &History, owner: usize) -> impl Future<Output = ()> + use<> {
    Owner::scope(visits(lock.clone(), history.clone(), owner))
}

/// `file:line` of a call in this file.
fn place(line: u32) -> String {
    format!("{}:{line}", file!())
}

/// Asserts that an error says what is wrong, where, and what to do.
#[track_caller]
fn assert_advises(error: &Error, lines: [u32; 2]) {
    assert_eq!(error.kind(), ErrorKind::ConcurrentOwner, "{error}");
    let text = error.to_string();
    assert!(text.contains("Owner::scope"), "{text}");
    for line in lines {
        assert!(text.contains(&place(line)), "line {line} is not in: {text}");
    }
}

// ---- scopes ----------------------------------------------------------------------------------

/// I2: the rule of nested transactions.
#[tokio::test]
async fn a_scope_enters_what_the_scopes_around_it_hold() {
    let setup = Setup::new().await;
    let lock = &setup.lock;
    let guard = lock.lock().await.unwrap();
    within_bounds(Owner::scope(async {
        let second = lock.lock().await.unwrap();
        Owner::scope(async {
            let third = lock.lock().await.unwrap();
            assert_eq!((setup.count(), third.hold_count()), (3, 3));
            third.unlock().await.unwrap();
        })
        .await;
        second.unlock().await.unwrap();
    }))
    .await;
    assert_eq!(setup.count(), 1);
    guard.unlock().await.unwrap();
}

/// I2.
#[tokio::test]
async fn a_parent_never_enters_on_its_childs_entry() {
    let setup = Setup::new().await;
    let guard = Owner::scope(setup.lock.lock()).await.unwrap();
    assert!(setup.lock.try_lock_now().await.unwrap().is_none());
    // Nor does a sibling, or a grandparent.
    let sibling = Owner::scope(setup.lock.try_lock_now()).await.unwrap();
    assert!(sibling.is_none());
    guard.unlock().await.unwrap();
    let deep = Owner::scope(async { Owner::scope(setup.lock.lock()).await.unwrap() }).await;
    assert!(setup.lock.try_lock_now().await.unwrap().is_none());
    deep.unlock().await.unwrap();
    setup.lock.lock().await.unwrap().unlock().await.unwrap();
}

/// I2, I5: also where the owner around them is in already, its own entry does not let it in again.
#[tokio::test]
async fn a_parent_that_holds_the_lock_waits_while_its_child_is_inside() {
    let setup = Setup::new().await;
    let guard = setup.lock.lock().await.unwrap();
    let child = Owner::scope(setup.lock.lock()).await.unwrap();
    assert!(setup.lock.try_lock_now().await.unwrap().is_none());
    assert_eq!(setup.count(), 2);
    child.unlock().await.unwrap();
    let again = setup.lock.try_lock_now().await.unwrap().unwrap();
    assert_eq!(setup.count(), 2);
    again.unlock().await.unwrap();
    guard.unlock().await.unwrap();
}

/// I2.
#[tokio::test]
async fn siblings_exclude_each_other() {
    let (setup, history) = (Setup::new().await, History::new());
    within_bounds(join_all((0..8).map(|n| scoped_visits(&setup.lock, &history, n)))).await;
    history.assert_exclusive(32);
    assert_eq!(history.peak(setup.lock.name()), 1);
    assert_no_keys(&setup.raw);
}

/// I2, I5: they wait in memory, one after the other inside the hold of the owner around them.
#[tokio::test]
async fn siblings_exclude_each_other_inside_a_holder() {
    let (setup, history) = (Setup::new().await, History::new());
    let guard = setup.lock.lock().await.unwrap();
    within_bounds(join_all((0..8).map(|n| scoped_visits(&setup.lock, &history, n)))).await;
    history.assert_exclusive(32);
    assert_eq!(setup.count(), 1);
    guard.unlock().await.unwrap();
    assert_no_keys(&setup.raw);
}

/// I2, I5: a sibling waits for the whole subtree.
#[tokio::test]
async fn a_sibling_waits_while_a_child_of_the_other_is_inside() {
    let setup = Setup::new().await;
    let guard = setup.lock.lock().await.unwrap();
    Owner::scope(async {
        let mine = setup.lock.lock().await.unwrap();
        let childs = Owner::scope(setup.lock.lock()).await.unwrap();
        mine.unlock().await.unwrap();
        assert_eq!(setup.count(), 2);
        let parent = Owner::current();
        assert!(setup.lock.clone().owned_by(parent).try_lock_now().await.unwrap().is_none());
        childs
    })
    .await
    .unlock()
    .await
    .unwrap();
    guard.unlock().await.unwrap();
    assert_no_keys(&setup.raw);
}

/// I2.
#[tokio::test]
async fn scopes_in_join_exclude_each_other() {
    let (setup, history) = (Setup::new().await, History::new());
    let visits = |owner| scoped_visits(&setup.lock, &history, owner);
    within_bounds(async { tokio::join!(visits(0), visits(1), visits(2)) }).await;
    history.assert_exclusive(12);
}

/// I2.
#[tokio::test]
async fn scopes_in_for_each_concurrent_exclude_each_other() {
    let (setup, history) = (Setup::new().await, History::new());
    let visits = |owner| scoped_visits(&setup.lock, &history, owner);
    within_bounds(stream::iter(0..12).for_each_concurrent(5, visits)).await;
    history.assert_exclusive(48);
}

/// I2.
#[tokio::test]
async fn scopes_in_buffer_unordered_exclude_each_other() {
    let (setup, history) = (Setup::new().await, History::new());
    let visits = |owner| scoped_visits(&setup.lock, &history, owner);
    let all = stream::iter(0..12).map(visits).buffer_unordered(5).collect::<Vec<()>>();
    assert_eq!(within_bounds(all).await.len(), 12);
    history.assert_exclusive(48);
}

/// I2: more than thirty are polled by wakers of their own.
#[tokio::test]
async fn scopes_in_a_large_join_all_exclude_each_other() {
    let (setup, history) = (Setup::new().await, History::new());
    within_bounds(join_all((0..40).map(|n| scoped_visits(&setup.lock, &history, n)))).await;
    history.assert_exclusive(160);
    assert_no_keys(&setup.raw);
}

/// I2: what is spawned from inside a scope starts anew.
#[tokio::test]
async fn a_task_spawned_in_a_scope_is_no_part_of_it() {
    let setup = Setup::new().await;
    Owner::scope(async {
        let guard = setup.lock.lock().await.unwrap();
        let child = tokio::spawn(setup.lock.try_lock_now()).await.unwrap().unwrap();
        assert!(child.is_none());
        guard.unlock().await.unwrap();
    })
    .await;
}

// ---- branches without a scope ----------------------------------------------------------------

/// I2, I10.
#[tokio::test]
async fn two_acquisitions_of_one_task_at_once_are_refused() {
    let setup = Setup::new().await;
    let lock = &setup.lock;
    let (first, first_line) = (lock.lock(), line!());
    let (second, second_line) = (lock.lock(), line!());
    let (first, second) = within_bounds(async { tokio::join!(first, second) }).await;
    assert_advises(&second.unwrap_err(), [first_line, second_line]);
    let first = first.unwrap();
    assert_eq!(setup.count(), 1);
    first.unlock().await.unwrap();
    assert_no_keys(&setup.raw);
}

/// I2, I10: also while both would wait for somebody else.
#[tokio::test]
async fn two_waiting_acquisitions_of_one_task_are_refused() {
    let setup = Setup::new().await;
    let lock = &setup.lock;
    let other = lock.clone().owned_by(Owner::new()).lock().await.unwrap();
    let (first, first_line) = (lock.lock(), line!());
    let mut first = std::pin::pin!(first);
    assert!(timeout(Duration::from_millis(50), &mut first).await.is_err());
    let (second, second_line) = (lock.lock(), line!());
    assert_advises(&within_bounds(second).await.unwrap_err(), [first_line, second_line]);
    other.unlock().await.unwrap();
    within_bounds(first).await.unwrap().unlock().await.unwrap();
}

/// Branches of which the first takes the lock, and the others try it while it is held.
struct Branches {
    lock: Lock,
    late: usize,
    held: watch::Sender<bool>,
    answered: watch::Sender<usize>,
}

impl Branches {
    fn new(lock: &Lock, all: usize) -> Self {
        let (held, answered) = (watch::Sender::new(false), watch::Sender::new(0));
        Self { lock: lock.clone(), late: all - 1, held, answered }
    }

    /// The hold count that a branch saw; 0 if somebody else holds the lock.
    async fn branch(&self, n: usize) -> Result<u32, Error> {
        if n > 0 {
            self.held.subscribe().wait_for(|held| *held).await.unwrap();
            let (late, line) = (self.lock.try_lock_now(), line!());
            LATE_LINE.store(line, Relaxed);
            let result = late.await;
            let count = result.map(|guard| guard.map_or(0, |guard| guard.hold_count()));
            self.answered.send_modify(|n| *n += 1);
            return count;
        }
        let (holding, line) = (self.lock.lock(), line!());
        HOLDING_LINE.store(line, Relaxed);
        let guard = holding.await?;
        self.held.send_replace(true);
        self.answered.subscribe().wait_for(|answered| *answered == self.late).await.unwrap();
        let count = guard.hold_count();
        guard.unlock().await?;
        Ok(count)
    }
}

/// Where [`Branches`] ask; the same in all tests.
static LATE_LINE: AtomicU32 = AtomicU32::new(0);
static HOLDING_LINE: AtomicU32 = AtomicU32::new(0);

#[track_caller]
fn assert_late_ones_are_refused(results: Vec<Result<u32, Error>>) {
    let (held, refused): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    assert_eq!(held.len(), 1);
    assert!(!refused.is_empty());
    for error in refused {
        let lines = [HOLDING_LINE.load(Relaxed), LATE_LINE.load(Relaxed)];
        assert_advises(&error.unwrap_err(), lines);
    }
}

/// I2.
#[tokio::test]
async fn late_branches_of_a_large_join_all_are_refused() {
    let setup = Setup::new().await;
    let branches = Branches::new(&setup.lock, 40);
    let all = join_all((0..40).map(|n| branches.branch(n)));
    assert_late_ones_are_refused(within_bounds(all).await);
    assert_no_keys(&setup.raw);
}

/// I2.
#[tokio::test]
async fn late_branches_of_buffer_unordered_are_refused() {
    let setup = Setup::new().await;
    let branches = Branches::new(&setup.lock, 8);
    let all = stream::iter(0..8).map(|n| branches.branch(n)).buffer_unordered(8);
    assert_late_ones_are_refused(within_bounds(all.collect()).await);
    assert_no_keys(&setup.raw);
}

/// I2.
#[tokio::test]
async fn late_branches_of_for_each_concurrent_are_refused() {
    let setup = Setup::new().await;
    let (branches, results) = (Branches::new(&setup.lock, 8), Mutex::new(Vec::new()));
    let all = stream::iter(0..8).for_each_concurrent(None, |n| {
        let branch = branches.branch(n);
        async {
            let result = branch.await;
            results.lock().unwrap().push(result);
        }
    });
    within_bounds(all).await;
    assert_late_ones_are_refused(results.into_inner().unwrap());
}

/// I2: the limit that the docs name. Few branches share one waker: a late one looks like a nested
/// call. In scopes of their own they are refused.
#[tokio::test]
async fn late_branches_of_a_small_join_reenter_unless_scoped() {
    let setup = Setup::new().await;
    let branches = Branches::new(&setup.lock, 2);
    let all = try_join_all((0..2).map(|n| branches.branch(n)));
    let counts = within_bounds(all).await.unwrap();
    assert_eq!(counts[1], 2, "told apart: then the docs can promise more");
    let branches = Branches::new(&setup.lock, 2);
    let all = try_join_all((0..2).map(|n| Owner::scope(branches.branch(n))));
    let counts = within_bounds(all).await.unwrap();
    assert_eq!(counts, [1, 0]);
    assert_no_keys(&setup.raw);
}

/// the clean-up of a dropped future is not a second acquisition.
#[tokio::test]
async fn a_timeout_around_lock_in_a_loop_is_correct_code() {
    let setup = Setup::new().await;
    let other = Client::connect(setup._server.url()).await.unwrap();
    let other = other.lock(setup.lock.name());
    let guard = other.lock().await.unwrap();
    for wait in [0, 1, 2, 5, 10, 20, 50, 50, 50] {
        match timeout(Duration::from_millis(wait), setup.lock.lock()).await {
            Err(_) => {}
            Ok(Ok(_)) => panic!("granted while somebody else holds it"),
            Ok(Err(error)) => panic!("{error}"),
        }
    }
    guard.unlock().await.unwrap();
    let got = async {
        loop {
            if let Ok(got) = timeout(Duration::from_millis(50), setup.lock.lock()).await {
                break got;
            }
        }
    };
    within_bounds(got).await.unwrap().unlock().await.unwrap();
    eventually("nothing is left", async || setup.count() == 0).await;
}

/// I2: it cannot be told from a branch, so it is refused; a scope inside tells it apart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn block_on_inside_a_holder_is_refused_with_advice() {
    let setup = Setup::new().await;
    let task = tokio::spawn(async move {
        let lock = &setup.lock;
        let (outer, outer_line) = (lock.lock(), line!());
        let guard = outer.await.unwrap();
        let (nested, nested_line) = (lock.lock(), line!());
        let nested = tokio::task::block_in_place(|| Handle::current().block_on(nested));
        assert_advises(&nested.unwrap_err(), [outer_line, nested_line]);
        let scoped = Owner::scope(lock.lock());
        let scoped = tokio::task::block_in_place(|| Handle::current().block_on(scoped)).unwrap();
        assert_eq!(setup.count(), 2);
        scoped.unlock().await.unwrap();
        guard.unlock().await.unwrap();
        assert_no_keys(&setup.raw);
    });
    within_bounds(task).await.unwrap();
}

// ---- explicit owners -------------------------------------------------------------------------

/// I4, I5: as Redisson's `lockAsync(threadId)` and `unlockAsync(threadId)`.
#[tokio::test]
async fn an_owner_locks_in_one_task_and_unlocks_in_another() {
    let setup = Setup::new().await;
    let owner = Owner::new();
    let lock = setup.lock.clone().owned_by(owner.clone());
    let taking = lock.clone();
    tokio::spawn(async move { taking.lock().await.unwrap().forget() }).await.unwrap();
    assert_eq!((setup.count(), lock.hold_count()), (1, 1));
    assert!(lock.is_held_by_me() && !setup.lock.is_held_by_me());
    let again = lock.clone();
    tokio::spawn(async move { again.lock().await.unwrap().forget() }).await.unwrap();
    assert_eq!(setup.count(), 2);
    for left in [1, 0] {
        let lock = lock.clone();
        tokio::spawn(async move { lock.unlock().await }).await.unwrap().unwrap();
        assert_eq!(setup.count(), left);
    }
    assert_eq!(lock.unlock().await.unwrap_err().kind(), ErrorKind::NotHeld);
}

/// I4: who is not the owner cannot release, nor enter.
#[tokio::test]
async fn what_an_owner_holds_is_nobody_elses() {
    let setup = Setup::new().await;
    let guard = setup.lock.clone().owned_by(Owner::new()).lock().await.unwrap();
    assert_eq!(setup.lock.unlock().await.unwrap_err().kind(), ErrorKind::NotHeld);
    let other = setup.lock.clone().owned_by(Owner::new());
    assert_eq!(other.unlock().await.unwrap_err().kind(), ErrorKind::NotHeld);
    assert!(other.try_lock_now().await.unwrap().is_none());
    assert!(setup.lock.try_lock_now().await.unwrap().is_none());
    assert_eq!(setup.count(), 1);
    guard.unlock().await.unwrap();
}

/// I5: the owner of a guard goes where it is needed.
#[tokio::test]
async fn the_owner_of_a_guard_can_enter_from_another_task() {
    let setup = Setup::new().await;
    let guard = Owner::scope(setup.lock.lock()).await.unwrap();
    let owner = guard.owner();
    assert_ne!(owner, Owner::current());
    let helper = setup.lock.clone().owned_by(owner.clone());
    let count = tokio::spawn(async move {
        let nested = helper.lock().await.unwrap();
        assert_eq!(nested.owner(), owner);
        let count = nested.hold_count();
        nested.unlock().await.unwrap();
        count
    });
    assert_eq!(within_bounds(count).await.unwrap(), 2);
    guard.unlock().await.unwrap();
    let guard = setup.lock.lock().await.unwrap();
    assert_eq!(guard.owner(), Owner::current());
    guard.unlock().await.unwrap();
}

/// I2: the owner is that of the task in which the future runs, not that in which it was made.
#[tokio::test]
async fn a_spawned_acquisition_belongs_to_its_task() {
    let setup = Setup::new().await;
    let guard = tokio::spawn(setup.lock.lock()).await.unwrap().unwrap();
    assert_ne!(guard.owner(), Owner::current());
    assert!(!setup.lock.is_held_by_me());
    assert!(setup.lock.try_lock_now().await.unwrap().is_none());
    guard.unlock().await.unwrap();
    assert_no_keys(&setup.raw);
}

/// I2: outside a scope each acquisition is its own owner; inside one they nest.
#[tokio::test]
async fn scoped_reentry_nests_in_scopes_only() {
    let setup = Setup::with_reentry(Reentry::Scoped).await;
    let lock = &setup.lock;
    let guard = lock.lock().await.unwrap();
    assert_ne!(guard.owner(), Owner::current());
    assert!(lock.try_lock_now().await.unwrap().is_none());
    assert_eq!(lock.clone().owned_by(guard.owner()).hold_count(), 1);
    guard.unlock().await.unwrap();
    Owner::scope(async {
        let guard = lock.lock().await.unwrap();
        let nested = lock.lock().await.unwrap();
        assert_eq!((nested.owner(), nested.hold_count()), (Owner::current(), 2));
        assert!(lock.is_held_by_me());
        nested.unlock().await.unwrap();
        guard.unlock().await.unwrap();
    })
    .await;
    let nested = lock.with(|_| async { lock.lock().await.unwrap().hold_count() });
    assert_eq!(within_bounds(nested).await.unwrap(), 2);
}

/// I2: without scopes even two branches of one `join!` exclude each other.
#[tokio::test]
async fn scoped_reentry_keeps_branches_apart() {
    let (setup, history) = (Setup::with_reentry(Reentry::Scoped).await, History::new());
    let visits = |owner| visits(setup.lock.clone(), history.clone(), owner);
    within_bounds(async { tokio::join!(visits(0), visits(1), visits(2)) }).await;
    history.assert_exclusive(12);
}

// ---- requests of one connection --------------------------------------------------------------

/// How a handler gives its guard to the task that works on after the answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Recipe {
    /// As it is: what the docs warn of.
    Plain,
    /// Each request in a scope.
    Scope,
    /// The guard is detached first.
    Detach,
}

/// A service whose handlers lock, and go on holding the lock in a task behind the answer.
struct Service {
    lock: Lock,
    recipe: Recipe,
    /// Lets the task behind the answer end.
    finish: Notify,
    finished: Notify,
}

impl Service {
    /// Serves until the test ends; returns the port.
    async fn start(lock: &Lock, recipe: Recipe) -> (Arc<Self>, u16) {
        let (finish, finished) = (Notify::new(), Notify::new());
        let service = Arc::new(Self { lock: lock.clone(), recipe, finish, finished });
        let router = axum::Router::new().route("/hold", get(hold)).route("/try", get(try_it));
        let router = router.with_state(service.clone());
        let in_scope = async |request: Request, next: Next| Owner::scope(next.run(request)).await;
        let router = if recipe == Recipe::Scope { router.layer(from_fn(in_scope)) } else { router };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move { axum::serve(listener, router).await });
        (service, port)
    }
}

async fn hold(State(service): State<Arc<Service>>) -> &'static str {
    let mut guard = service.lock.lock().await.unwrap();
    if service.recipe == Recipe::Detach {
        guard = guard.detach();
    }
    tokio::spawn(async move {
        service.finish.notified().await;
        guard.unlock().await.unwrap();
        service.finished.notify_one();
    });
    "held"
}

async fn try_it(State(service): State<Arc<Service>>) -> &'static str {
    match service.lock.try_lock_now().await.unwrap() {
        Some(guard) => {
            guard.unlock().await.unwrap();
            "entered"
        }
        None => "refused",
    }
}

/// Sends requests on one connection, all at once, and reads their answers.
async fn pipelined(connection: &mut TcpStream, paths: &[&str]) -> Vec<String> {
    let requests: String =
        paths.iter().map(|path| format!("GET {path} HTTP/1.1\r\nHost: here\r\n\r\n")).collect();
    connection.write_all(requests.as_bytes()).await.unwrap();
    let (mut unread, mut bodies) = (String::new(), Vec::new());
    while bodies.len() < paths.len() {
        let mut chunk = [0; 1024];
        let read = within_bounds(connection.read(&mut chunk)).await.unwrap();
        assert!(read > 0, "the connection was closed after {bodies:?}");
        unread.push_str(std::str::from_utf8(&chunk[..read]).unwrap());
        while let Some((head, rest)) = unread.split_once("\r\n\r\n") {
            let (_, length) = head.split_once("content-length: ").expect("a body of known length");
            let length: usize = length.lines().next().unwrap().parse().unwrap();
            let Some(body) = rest.get(..length) else { break };
            bodies.push(body.to_owned());
            unread = rest[length..].to_owned();
        }
    }
    bodies
}

/// What the second of two requests of one connection gets while the first one's guard lives on.
async fn second_request(reentry: Reentry, recipe: Recipe) -> String {
    let setup = Setup::with_reentry(reentry).await;
    let (service, port) = Service::start(&setup.lock, recipe).await;
    let mut connection = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let answers = pipelined(&mut connection, &["/hold", "/try"]).await;
    assert_eq!(answers[0], "held");
    assert_eq!(setup.count(), 1);
    // A request of another connection is another task.
    let mut other = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    assert_eq!(pipelined(&mut other, &["/try"]).await, ["refused"]);
    let again = pipelined(&mut connection, &["/try"]).await;
    assert_eq!(again[0], answers[1], "pipelined or one after the other is the same");
    service.finish.notify_one();
    within_bounds(service.finished.notified()).await;
    assert_eq!(pipelined(&mut connection, &["/try"]).await, ["entered"]);
    assert_no_keys(&setup.raw);
    answers[1].clone()
}

/// I2: the limit that the docs name first.
#[tokio::test]
async fn requests_of_one_connection_reenter_if_a_guard_outlives_its_request() {
    assert_eq!(second_request(Reentry::Task, Recipe::Plain).await, "entered");
}

/// I2.
#[tokio::test]
async fn requests_of_one_connection_in_scopes_exclude_each_other() {
    assert_eq!(second_request(Reentry::Task, Recipe::Scope).await, "refused");
}

/// I2.
#[tokio::test]
async fn a_detached_guard_excludes_later_requests_of_its_connection() {
    assert_eq!(second_request(Reentry::Task, Recipe::Detach).await, "refused");
}

/// I2.
#[tokio::test]
async fn scoped_reentry_keeps_requests_of_one_connection_apart() {
    assert_eq!(second_request(Reentry::Scoped, Recipe::Plain).await, "refused");
}

/// I2: a guard that left its task with a private owner no longer lets that task in.
#[tokio::test]
async fn a_detached_guard_belongs_to_nobody_else() {
    let setup = Setup::new().await;
    let guard: LockGuard = setup.lock.lock().await.unwrap().detach();
    assert_ne!(guard.owner(), Owner::current());
    assert_eq!((setup.lock.hold_count(), guard.hold_count()), (0, 1));
    assert!(setup.lock.try_lock_now().await.unwrap().is_none());
    assert_eq!(setup.lock.unlock().await.unwrap_err().kind(), ErrorKind::NotHeld);
    let other = setup.client.lock(setup.lock.name()).owned_by(guard.owner());
    other.lock().await.unwrap().unlock().await.unwrap();
    guard.unlock().await.unwrap();
    assert_no_keys(&setup.raw);
}
