//! Another process with this crate in it: this program, started once more.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use leasehold::Client;

use crate::{contender, support::eventually, support::server::RedisServer};

/// What the other process is to do.
const ORDER: &str = "LEASEHOLD_INTEROP_ORDER";

/// A process that is killed when dropped.
pub struct Process {
    child: Child,
    orders: Option<ChildStdin>,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Process {
    /// Takes a lock, renews it and says `held`.
    pub fn hold(server: &RedisServer, kind: &str, name: &str, watchdog_ms: u64) -> Self {
        Self::start(&format!("hold {} {watchdog_ms} {kind} {name}", server.url()))
    }

    /// Says `ready`, waits for a line and contends; then says `done`.
    pub fn contend(server: &RedisServer, work: &str, tasks: u32, ms: u64) -> Self {
        Self::start(&format!("contend {} {work} {tasks} {ms}", server.url()))
    }

    fn start(order: &str) -> Self {
        // On Linux this stays the same program when a build replaces the file meanwhile.
        let own = PathBuf::from("/proc/self/exe");
        let own = if own.exists() { own } else { env::current_exe().expect("it has a path") };
        let mut child = Command::new(own)
            .args(["--exact", "process::what_another_process_does", "--nocapture"])
            .env(ORDER, order)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test's own program starts");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let to = lines.clone();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                to.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        let orders = child.stdin.take();
        Self { child, orders, lines }
    }

    pub fn say(&mut self, line: &str) {
        let orders = self.orders.as_mut().expect("taken only when it is dropped");
        writeln!(orders, "{line}").expect("it listens");
    }

    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub async fn wait_for_line(&self, line: &str) {
        let lines = || self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        eventually(line, async || lines().iter().rev().any(|it| it == line)).await;
    }

    /// What it has said behind this word, at the beginning of a line.
    pub fn word_after(&self, word: &str) -> Option<String> {
        let said = |line: &String| Some(line.strip_prefix(word)?.trim().to_owned());
        self.lines().iter().find_map(said)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it with `SIGKILL` and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill(); // fails if it has ended by itself
        self.child.wait().expect("it is our child");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Nanoseconds on the clock that Java's `System.nanoTime` reads.
pub fn nanos() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// No test: what a [`Process`] runs.
#[tokio::test(flavor = "multi_thread")]
async fn what_another_process_does() {
    let Ok(order) = env::var(ORDER) else { return };
    println!(); // the harness has begun a line
    match order.split(' ').collect::<Vec<_>>()[..] {
        ["hold", url, watchdog_ms, kind, name] => {
            let watchdog = Duration::from_millis(watchdog_ms.parse().expect("a number"));
            let client = Client::builder(url).expect("a URL").watchdog(watchdog);
            let client = client.connect().await.expect("the server is up");
            contender::hold(&client, kind, name).await;
        }
        ["contend", url, work, tasks, ms] => {
            let (tasks, ms) = (tasks.parse().expect("a number"), ms.parse().expect("a number"));
            contender::contend(url, work, tasks, Duration::from_millis(ms)).await;
            println!("done");
        }
        _ => panic!("what is {order}?"),
    }
}
