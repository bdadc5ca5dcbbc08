//! Processes that die or are stopped while they wait: the tests run themselves a second time.
use std::{
    env,
    process::Stdio,
    time::{Duration, Instant},
};

use leasehold::{Client, Owner};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

use super::{LOCK, LONG, Setup, granted, soon};
use crate::support::eventually;

const WAIT: &str = "LEASEHOLD_TEST_WAIT";

/// A process in which some wait, and say so when their turn comes.
struct Waiters {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Waiters {
    /// Runs this test again, with as many that wait.
    fn start(test: &str, setup: &Setup, count: usize) -> Self {
        let mut process = Command::new(env::current_exe().expect("a test has a program"))
            .args(["--exact", "--nocapture", &format!("{}::{test}", path())])
            .env(WAIT, format!("{} {count}", setup.rig.server.url()))
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the test's own program starts");
        let stdout = process.stdout.take().expect("it is piped");
        Self { process, lines: BufReader::new(stdout).lines() }
    }

    fn signal(&self, name: &str) {
        let pid = self.process.id().expect("it runs").to_string();
        let kill = ["-c", r#"kill -s "$1" "$2""#, "signal", name, &pid];
        let sent = std::process::Command::new("sh").args(kill).status();
        assert!(sent.expect("there is a shell").success());
    }

    /// Waits until one of them has had its turn.
    async fn served(&mut self) {
        let served = async {
            while let Ok(Some(line)) = self.lines.next_line().await {
                if line.contains("served") {
                    return;
                }
            }
            panic!("it ended before its turn");
        };
        soon(served).await;
    }
}

/// This module's path as the test harness has it.
fn path() -> &'static str {
    module_path!().split_once("::").expect("it is in a crate").1
}

/// In the second process: waits. Else false.
async fn is_waiter() -> bool {
    let Ok(order) = env::var(WAIT) else { return false };
    let (url, count) = order.split_once(' ').expect("a URL and a number");
    let client = Client::connect(url).await.expect("the server is up");
    let count: usize = count.parse().expect("a number");
    let all = (0..count).map(|_| {
        let lock = client.fair_lock(LOCK).owned_by(Owner::new());
        async move {
            let guard = lock.lock().await.expect("its turn comes");
            println!("\nserved");
            guard.unlock().await.expect("it is held");
        }
    });
    // If nobody ends it: not for ever.
    let _ = tokio::time::timeout(LONG, futures::future::join_all(all)).await;
    true
}

/// I6: the records of the dead are all that is left of them, for a minute at most: until then they
/// may turn out to have been stopped.
async fn forget_the_dead(setup: &Setup) {
    let records = format!("leasehold_fair:{{{LOCK}}}");
    let left = async || setup.rig.raw.cmd(&["DBSIZE"]).int() == 1;
    eventually("only their records are left", left).await;
    let ttl = setup.rig.raw.cmd(&["PTTL", &records]).int();
    assert!((0..=60_000).contains(&ttl), "{ttl}");
    setup.rig.raw.cmd(&["DEL", &records]).ok();
}

/// R-37, I13: five dead in a row cost one such time, not five.
#[tokio::test(flavor = "multi_thread")]
async fn five_dead_in_a_row_are_passed_over_together() {
    if is_waiter().await {
        return;
    }
    let setup = Setup::start().await;
    let held = soon(setup.theirs().lock()).await.expect("it is free");
    let test = "five_dead_in_a_row_are_passed_over_together";
    let mut dead = Waiters::start(test, &setup, 5);
    setup.until_in_line(5).await;
    let behind = setup.queue(&setup.lock()).await;
    dead.process.kill().await.expect("it runs until it is killed");
    let since = Instant::now();
    held.unlock().await.expect("it is held");
    let guard = granted(behind).await;
    let passed = since.elapsed();
    assert!(passed < Duration::from_secs(12), "it took {passed:?}");
    guard.unlock().await.expect("it is held");
    forget_the_dead(&setup).await;
    setup.assert_nothing_left().await;
}

/// R-37: wherever they stand.
#[tokio::test(flavor = "multi_thread")]
async fn the_dead_leave_the_line_while_somebody_else_waits() {
    if is_waiter().await {
        return;
    }
    let setup = Setup::start().await;
    let held = soon(setup.theirs().lock()).await.expect("it is free");
    let test = "the_dead_leave_the_line_while_somebody_else_waits";
    let mut first = Waiters::start(test, &setup, 2);
    setup.until_in_line(2).await;
    let living = setup.queue(&setup.lock()).await;
    let mut last = Waiters::start(test, &setup, 2);
    setup.until_in_line(5).await;
    first.process.kill().await.expect("it runs until it is killed");
    last.process.kill().await.expect("it runs until it is killed");
    setup.until_in_line(1).await;
    held.unlock().await.expect("it is held");
    granted(living).await.unlock().await.expect("it is held");
    forget_the_dead(&setup).await;
    setup.assert_nothing_left().await;
}

/// R-02, I13: stopped for more than 4 s, it is out of the line; going on, it is back in its place.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_process_is_passed_over_and_comes_back() {
    if is_waiter().await {
        return;
    }
    let setup = Setup::start().await;
    let held = soon(setup.theirs().lock()).await.expect("it is free");
    let test = "a_stopped_process_is_passed_over_and_comes_back";
    let mut stopped = Waiters::start(test, &setup, 1);
    setup.until_in_line(1).await;
    let its = setup.line();
    let living = setup.queue(&setup.lock()).await;
    stopped.signal("STOP");
    setup.until_in_line(1).await;
    assert_ne!(setup.line(), its);
    stopped.signal("CONT");
    eventually("it is back", async || setup.line().len() == 2).await;
    assert_eq!(setup.line()[..1], its, "its place is ahead of later ones");
    held.unlock().await.expect("it is held");
    stopped.served().await;
    granted(living).await.unlock().await.expect("it is held");
    setup.assert_nothing_left().await;
}

/// R-02: its turn comes while it is stopped. The next gets it, and it does when it goes on.
#[tokio::test(flavor = "multi_thread")]
async fn the_turn_of_a_stopped_process_goes_to_the_next() {
    if is_waiter().await {
        return;
    }
    let setup = Setup::start().await;
    let held = soon(setup.theirs().lock()).await.expect("it is free");
    let test = "the_turn_of_a_stopped_process_goes_to_the_next";
    let mut stopped = Waiters::start(test, &setup, 1);
    setup.until_in_line(1).await;
    let living = setup.queue(&setup.lock()).await;
    stopped.signal("STOP");
    held.unlock().await.expect("it is held");
    let guard = granted(living).await;
    stopped.signal("CONT");
    setup.until_in_line(1).await;
    guard.unlock().await.expect("it is held");
    stopped.served().await;
    setup.assert_nothing_left().await;
}
