//! A red lock of token locks beside the Redlocks of other libraries, on the same servers: redis-py's
//! lock on each of them, pottery (Python) and redsync (Go).
//!
//! Needs Python with `requirements.txt` and the built `peer.go`; `.ci/run interop-redlock` sees to
//! both and says where they are.

#[path = "../../support/mod.rs"]
mod support;

use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use leasehold::{Client, RedLock};
use support::{assert_no_keys, blocking, eventually, server::RedisServer};

/// Another library's Redlock, in a process of its own.
struct Peer {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Peer {
    fn start(kind: &str, name: &str, servers: &[RedisServer]) -> Self {
        let program = |variable| env::var(variable).expect("run .ci/run interop-redlock");
        let mut command = if kind == "redsync" {
            Command::new(program("LEASEHOLD_REDSYNC"))
        } else {
            let mut python = Command::new(program("LEASEHOLD_PYTHON"));
            let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop/redlock/peer.py");
            python.args([script, kind]);
            python
        };
        command.arg(name).args(servers.iter().map(|server| server.port().to_string()));
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the peer starts");
        let stdin = child.stdin.take().expect("a pipe");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, stdin, stdout }
    }

    fn ask(&mut self, line: &str) -> bool {
        writeln!(self.stdin, "{line}").expect("the peer listens");
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).expect("the peer answers");
        assert!(answer == "ok\n" || answer == "no\n", "{answer:?}");
        answer == "ok\n"
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn red(servers: &[RedisServer], name: &str) -> RedLock {
    let mut locks = Vec::new();
    for server in servers {
        let client = Client::connect(server.url()).await.expect("the server is up");
        locks.push(client.token_lock(name));
    }
    RedLock::new(locks)
}

/// Each sees the other's lock, also with one of the servers dead; a count that both keep is right.
async fn share_with(kind: &str) {
    let name = "redlock:shared";
    let mut servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let red = red(&servers, name).await;
    let mut peer = Peer::start(kind, name, &servers);

    let guard = red.lock().await.expect("it is free");
    assert!(!peer.ask("try"), "{kind} sees ours");
    guard.unlock().await.expect("it is held");
    assert!(peer.ask("try"), "it is free");
    assert!(red.try_lock_now().await.expect("an answer").is_none(), "we see {kind}'s");
    assert!(peer.ask("unlock"), "it is still {kind}'s");

    let file = env::temp_dir().join(support::unique("redlock-count"));
    fs::write(&file, "0").expect("a file");
    let line = format!("count {} 50", file.display());
    let counting = tokio::spawn(blocking(move || {
        assert!(peer.ask(&line));
        peer
    }));
    for _ in 0..50 {
        let guard = red.lock().await.expect("it comes free");
        let number: u32 = fs::read_to_string(&file).expect("a file").parse().expect("a number");
        tokio::time::sleep(Duration::from_millis(1)).await;
        fs::write(&file, (number + 1).to_string()).expect("a file");
        guard.unlock().await.expect("it is held");
        // The others only look now and then, and are not told of anything.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let mut peer = counting.await.expect("the peer goes on");
    assert_eq!(fs::read_to_string(&file).expect("a file"), "100");
    fs::remove_file(&file).expect("a file");
    let raw = servers.iter().map(RedisServer::raw).collect::<Vec<_>>();
    eventually("all is given back", async || raw.iter().all(|raw| raw.cmd(&["DBSIZE"]).int() == 0))
        .await;
    raw.iter().for_each(assert_no_keys);

    servers[0].kill();
    let guard = red.lock().await.expect("two of three are alive");
    assert!(!peer.ask("try"), "{kind} sees ours on two servers");
    guard.unlock().await.expect("it is held");
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_py_on_each_server() {
    share_with("redis-py").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pottery() {
    share_with("pottery").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redsync() {
    share_with("redsync").await;
}
