//! A JVM with Redisson, told by lines what to do.

use std::{
    collections::HashMap,
    env,
    fmt::Write as _,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use tokio::sync::oneshot;

use crate::pair::soon;

/// The unit of times.
pub const MS: &str = "MILLISECONDS";

/// What Redisson answered: the value as text, or what it threw.
pub type Answer = Result<String, Thrown>;

/// An exception.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thrown {
    /// The simple name of its class.
    pub class: String,
    pub message: String,
}

/// A process with as many clients of Redisson as one likes; killed when dropped.
#[derive(Debug)]
pub struct Jvm {
    process: Mutex<Child>,
    orders: Mutex<ChildStdin>,
    inbox: Arc<Mutex<Inbox>>,
    next: AtomicU64,
}

#[derive(Debug, Default)]
struct Inbox {
    waiting: HashMap<u64, oneshot::Sender<Answer>>,
    /// Lines that begin with a star or a plus.
    told: Vec<String>,
    ended: bool,
}

/// The version to run with: named by the environment, or the one that `pom.xml` names.
pub fn version() -> String {
    env::var("LEASEHOLD_REDISSON").unwrap_or_else(|_| {
        let pom = include_str!("pom.xml");
        let rest = pom.split("<redisson.version>").nth(1).expect("the property");
        rest.split('<').next().expect("its end").to_owned()
    })
}

/// Whether the version is at least this one.
pub fn at_least(major: u32, minor: u32) -> bool {
    let version = version();
    let mut parts = version.split('.').map(|part| part.parse::<u32>().expect("a number"));
    (parts.next(), parts.next()) >= (Some(major), Some(minor))
}

impl Jvm {
    /// The process that all tests share but those that kill one.
    pub fn shared() -> Arc<Self> {
        static SHARED: OnceLock<Arc<Jvm>> = OnceLock::new();
        SHARED.get_or_init(Self::start).clone()
    }

    /// # Panics
    ///
    /// If the Java program has not been built.
    pub fn start() -> Arc<Self> {
        let dir = built();
        let path = format!("{0}/classes:{0}/jars/*", dir.display());
        // Quick to start, and small: several of them share few cores.
        let options = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp"];
        let mut process = Command::new("java")
            .args(options)
            .args([&path, "Peer"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("java starts");
        let orders = Mutex::new(process.stdin.take().expect("piped"));
        let answers = BufReader::new(process.stdout.take().expect("piped"));
        let complaints = BufReader::new(process.stderr.take().expect("piped"));
        let inbox = Arc::<Mutex<Inbox>>::default();
        let to = inbox.clone();
        thread::spawn(move || collect(answers, &to));
        thread::spawn(move || {
            let lines = complaints.lines().map_while(Result::ok);
            lines.filter(|line| !line.starts_with("SLF4J")).for_each(|line| eprintln!("{line}"));
        });
        Arc::new(Self { process: Mutex::new(process), orders, inbox, next: AtomicU64::new(1) })
    }

    /// Sends an order at once; the future is its answer.
    ///
    /// # Panics
    ///
    /// The future does, if the process ends without an answer.
    pub fn ask(&self, verb: &str, args: &[&str]) -> impl Future<Output = Answer> + Send + use<> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut line = format!("{number} {verb}");
        for arg in args {
            line.push(' ');
            encode(&mut line, arg);
        }
        line.push('\n');
        let (sender, answer) = oneshot::channel();
        let mut inbox = lock(&self.inbox);
        if !inbox.ended {
            inbox.waiting.insert(number, sender);
        }
        drop(inbox);
        let sent = lock(&self.orders).write_all(line.as_bytes());
        let line = line.trim_end().to_owned();
        async move {
            sent.unwrap_or_else(|error| panic!("{line}: {error}"));
            answer.await.unwrap_or_else(|_| panic!("the JVM ended without an answer to {line}"))
        }
    }

    pub fn pid(&self) -> u32 {
        lock(&self.process).id()
    }

    /// Kills the process with `SIGKILL` and waits until it is gone.
    pub fn kill(&self) {
        let mut process = lock(&self.process);
        let _ = process.kill(); // fails if it has ended by itself
        process.wait().expect("it is our child");
    }

    /// What `contend` has told so far, as lines.
    pub fn told(&self) -> Vec<String> {
        lock(&self.inbox).told.clone()
    }
}

impl Drop for Jvm {
    fn drop(&mut self) {
        self.kill();
    }
}

/// One client of Redisson, and the kind of its objects that is meant.
#[derive(Clone, Debug)]
pub struct Java {
    pub jvm: Arc<Jvm>,
    /// Its `getId()`.
    pub id: String,
    key: String,
    kind: &'static str,
}

/// How to open a client.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    pub kind: &'a str,
    pub watchdog_ms: u64,
    /// What a `NameMapper` puts in front of names.
    pub prefix: &'a str,
}

impl Default for Settings<'_> {
    fn default() -> Self {
        Self { kind: "single", watchdog_ms: 30_000, prefix: "" }
    }
}

impl Java {
    pub async fn open(jvm: Arc<Jvm>, port: u16, settings: Settings<'_>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let key = format!("client{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let Settings { kind, watchdog_ms, prefix } = settings;
        let (url, watchdog) = (format!("redis://127.0.0.1:{port}"), watchdog_ms.to_string());
        let opened = jvm.ask("open", &[&key, kind, &url, &watchdog, prefix]);
        let id = soon(opened).await.expect("Redisson connects");
        Self { jvm, id, key, kind: "lock" }
    }

    /// The same client, for another kind of object.
    pub fn of(&self, kind: &'static str) -> Self {
        Self { kind, ..self.clone() }
    }

    /// The `RedissonRedLock`s of these clients, all of one JVM.
    pub fn red(clients: &[Self]) -> Self {
        let keys: Vec<_> = clients.iter().map(|client| &*client.key).collect();
        Self { key: keys.join(","), ..clients[0].of("red") }
    }

    /// `lock()`, or `lock(lease)` if the lease is not 0.
    pub async fn lock(&self, name: &str, thread: u32, lease_ms: u64) -> Answer {
        soon(self.locking(name, thread, lease_ms)).await
    }

    /// As [`Java::lock`], for as long as it takes; the order is sent at once.
    pub fn locking(
        &self,
        name: &str,
        thread: u32,
        lease_ms: u64,
    ) -> impl Future<Output = Answer> + Send + use<> {
        let lease = [&*lease_ms.to_string(), MS];
        self.call(Some(thread), name, "lock", if lease_ms == 0 { &[] } else { &lease })
    }

    pub async fn try_lock(&self, name: &str, thread: u32, wait_ms: u64, lease_ms: u64) -> bool {
        let answer = soon(self.trying(name, thread, wait_ms, lease_ms)).await;
        answer.expect("no exception") == "true"
    }

    pub fn trying(
        &self,
        name: &str,
        thread: u32,
        wait_ms: u64,
        lease_ms: u64,
    ) -> impl Future<Output = Answer> + Send + use<> {
        let (wait, lease) = (wait_ms.to_string(), lease_ms.to_string());
        self.call(Some(thread), name, "tryLock", &[&wait, &lease, MS])
    }

    pub async fn unlock(&self, name: &str, thread: u32) -> Answer {
        soon(self.call(Some(thread), name, "unlock", &[])).await
    }

    pub async fn force_unlock(&self, name: &str) -> bool {
        self.ask(name, "forceUnlock", &[]).await == "true"
    }

    pub async fn is_locked(&self, name: &str) -> bool {
        self.ask(name, "isLocked", &[]).await == "true"
    }

    pub async fn hold_count(&self, name: &str, thread: u32) -> u32 {
        let count = soon(self.call(Some(thread), name, "getHoldCount", &[])).await;
        count.expect("no exception").parse().expect("a number")
    }

    pub async fn ttl(&self, name: &str) -> i64 {
        self.ask(name, "remainTimeToLive", &[]).await.parse().expect("a number")
    }

    /// Calls a method of the object of this name, in any thread.
    pub async fn ask(&self, name: &str, method: &str, args: &[&str]) -> String {
        soon(self.call(None, name, method, args)).await.expect("no exception")
    }

    /// Calls a method of the object of this name, in this logical thread; the order is sent at once.
    pub fn call(
        &self,
        thread: Option<u32>,
        name: &str,
        method: &str,
        args: &[&str],
    ) -> impl Future<Output = Answer> + Send + use<> {
        let thread = thread.map_or_else(|| "-".to_owned(), |thread| thread.to_string());
        self.jvm.ask("call", &[&[&*self.key, &thread, self.kind, name, method], args].concat())
    }

    /// What stands for a thread in a lock's hash.
    pub async fn field(&self, thread: u32) -> String {
        let thread = self.jvm.ask("thread", &[&self.key, &thread.to_string()]);
        let id = soon(thread).await.expect("no exception");
        format!("{}:{id}", self.id)
    }

    /// Lets so many threads contend for each kind of work; the answer is the number of holds.
    pub fn contend(
        &self,
        work: &str,
        threads: u32,
        ms: u64,
    ) -> impl Future<Output = Answer> + Send + use<> {
        let (threads, ms) = (threads.to_string(), ms.to_string());
        self.jvm.ask("contend", &[&self.key, work, &threads, &ms])
    }

    /// Shuts the client down.
    pub async fn close(&self) {
        soon(self.jvm.ask("close", &[&self.key])).await.expect("no exception");
    }
}

/// Where the Java program of this version was built.
fn built() -> PathBuf {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("target");
    let dir = target.join("interop").join(version());
    let program = dir.join("classes/Peer.class");
    assert!(program.is_file(), "there is no {}: .ci/run interop builds it", program.display());
    dir
}

fn collect(answers: impl BufRead, to: &Mutex<Inbox>) {
    for line in answers.lines().map_while(Result::ok) {
        if line.starts_with(['*', '+']) {
            lock(to).told.push(line);
            continue;
        }
        let mut words = line.split(' ');
        let number = words.next().and_then(|word| word.parse().ok());
        let words: Vec<_> = words.map(decode).collect();
        let answer = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["ok", value] => Ok(value.to_owned()),
            ["err", class, message] => {
                Err(Thrown { class: class.to_owned(), message: message.to_owned() })
            }
            _ => panic!("a strange line of the JVM: {line}"),
        };
        let waiting = number.and_then(|number: u64| lock(to).waiting.remove(&number));
        // Whoever asked may have gone.
        let _ = waiting.map(|sender| sender.send(answer));
    }
    let mut inbox = lock(to);
    inbox.ended = true;
    inbox.waiting.clear();
}

fn encode(line: &mut String, text: &str) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() {
            line.push(byte.into());
        } else {
            write!(line, "%{byte:02X}").expect("a string takes everything");
        }
    }
}

pub fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits: String = rest.by_ref().take(2).map(char::from).collect();
                u8::from_str_radix(&digits, 16).expect("two hexadecimal digits")
            }
            other => other,
        });
    }
    String::from_utf8(bytes).expect("UTF-8")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
