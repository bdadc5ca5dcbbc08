//! What several examples share: a Redis server of their own, and further programs, which are the
//! example itself, started again with arguments.
#![allow(dead_code, reason = "each example uses its own part of this")]

use std::{
    env,
    io::{self, Read},
    process::{self, Stdio},
    thread,
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

#[path = "../../tests/support/server.rs"]
mod server;

pub use server::RedisServer;

pub type Error = Box<dyn std::error::Error + Send + Sync>;
pub type Result<T> = std::result::Result<T, Error>;

/// An example fails when what it waits for does not come within this time.
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits for something that is sure to come, if all is well.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> Result<T> {
    let came = timeout(PATIENCE, future).await;
    came.map_err(|_| format!("waited {PATIENCE:?} in vain: {what}").into())
}

/// What this program was started with; nothing, if it is the example itself.
pub fn args() -> Vec<String> {
    let args: Vec<_> = env::args().skip(1).collect();
    if !args.is_empty() {
        // The pipe from the example closes with it, whatever it dies of.
        thread::spawn(|| {
            let _ = io::stdin().read_to_end(&mut Vec::new());
            process::exit(1);
        });
    }
    args
}

/// A program that the example started: itself, with arguments. It is killed when this is dropped.
pub struct Program {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    _stdin: ChildStdin,
}

impl Program {
    pub fn start(args: &[&str]) -> Result<Self> {
        let mut child = Command::new(env::current_exe()?)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdin = child.stdin.take().ok_or("no pipe")?;
        let stdout = child.stdout.take().ok_or("no pipe")?;
        Ok(Self { child, lines: BufReader::new(stdout).lines(), _stdin: stdin })
    }

    /// Its process id.
    pub fn pid(&self) -> String {
        self.child.id().map_or_else(|| "gone".into(), |pid| pid.to_string())
    }

    /// The next line it prints. Cancel safe.
    pub async fn line(&mut self) -> Result<String> {
        let line = within("a program says something", self.lines.next_line()).await??;
        line.ok_or_else(|| "a program has ended".into())
    }

    /// Waits until it has ended by itself, and well.
    pub async fn end(mut self) -> Result<()> {
        let status = within("a program ends", self.child.wait()).await??;
        if status.success() { Ok(()) } else { Err(format!("a program ended: {status}").into()) }
    }

    /// Kills it with `SIGKILL`, so that it cannot give back anything.
    pub async fn kill(&mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }
}
