//! Redis servers of one's own: started on a free loopback port, gone with the value that owns them.
//!
//! A server dies with its owner, whatever the owner dies of: each runs under a small shell that
//! kills it and removes its directory once the pipe from the owner closes. So a panic, an abort, a
//! `SIGKILL` and a static that is never dropped leave nothing behind.
//!
//! Standard library only, so that examples and benches can include this file by its path. It
//! brings its own client for that reason: [`Raw`] speaks RESP2, and RESP3 after `HELLO 3`.
#![allow(dead_code, reason = "each program that includes this file uses its own part of it")]

use std::{
    collections::{BTreeMap, VecDeque},
    env, fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{self, Child, ChildStdin, Command, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

/// How long a server may take to start, and a command to be answered.
const PATIENCE: Duration = Duration::from_secs(10);

/// What every server is started with; arguments of the builder come later and win.
const DEFAULTS: [&str; 14] = [
    "--bind",
    "127.0.0.1",
    "--daemonize",
    "no",
    "--loglevel",
    "warning",
    "--save",
    "",
    "--appendonly",
    "no",
    "--enable-debug-command",
    "local",
    "--repl-diskless-sync-delay",
    "0",
];

/// Runs a server (the arguments after the first) in a directory (the first), tells its process id,
/// and ends when it ends. Kills it and removes the directory when standard input closes.
const KEEPER: &str = r#"
dir=$1; shift
exec 3<&0
"$@" </dev/null >>"$dir/log" 2>&1 3<&- &
server=$!
{ read -r _ <&3; trap '' TERM; kill -9 $server; rm -rf "$dir"; } >/dev/null 2>&1 &
watcher=$!
echo $server
wait $server
kill $watcher; wait $watcher
"#;

/// A running Redis or Valkey server with a port and a directory of its own.
#[derive(Debug)]
pub struct RedisServer {
    command: Vec<String>,
    port: u16,
    dir: PathBuf,
    process: Option<Process>,
}

impl RedisServer {
    /// Starts a server that keeps nothing on disk.
    ///
    /// # Panics
    ///
    /// If there is no server to start, with a text that says how to install one.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Starts a server with arguments of one's own.
    pub fn builder() -> Builder {
        Builder { args: Vec::new(), role: Role::Plain }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process id of the server itself.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("the server runs").pid
    }

    /// Where the server keeps its files, and a `log` of what it printed.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A new connection to this server.
    pub fn raw(&self) -> Raw {
        Raw::connect(self.port)
    }

    /// Stops the process with `SIGSTOP`: its sockets stay open and silent.
    pub fn pause(&self) {
        signal(self.pid(), "STOP");
        let stat = format!("/proc/{}/stat", self.pid());
        // Another core may take a moment to notice. Where there is no /proc, nobody can tell.
        until("the server stands still", || {
            let state = fs::read_to_string(&stat).ok();
            state.is_none_or(|text| text.rsplit(')').next().is_some_and(|s| s.starts_with(" T")))
        });
    }

    /// Lets a paused process go on.
    pub fn resume(&self) {
        signal(self.pid(), "CONT");
    }

    /// Kills the process with `SIGKILL`; the directory and the claim to the port stay.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Kills the server if it runs, and starts it again: same port, same directory, same arguments.
    pub fn restart(&mut self) {
        self.kill();
        self.launch().unwrap_or_else(|error| panic!("{error}"));
    }

    fn launch(&mut self) -> io::Result<()> {
        let mut process = Process::spawn(&self.dir, &self.command)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            if process.shell.try_wait()?.is_some() {
                return Err(self.failure(io::ErrorKind::Other, "ended at once"));
            }
            match answering_process(self.port) {
                Some(Some(other)) if other != process.pid => {
                    return Err(self.failure(io::ErrorKind::AddrInUse, "lost its port"));
                }
                Some(_) => break,
                None if Instant::now() > deadline => {
                    return Err(self.failure(io::ErrorKind::TimedOut, "does not answer"));
                }
                None => thread::sleep(Duration::from_millis(5)),
            }
        }
        self.process = Some(process);
        Ok(())
    }

    fn failure(&self, kind: io::ErrorKind, what: &str) -> io::Error {
        let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        let taken = log.contains("Address already in use") || log.contains("Failed listening");
        let kind = if taken { io::ErrorKind::AddrInUse } else { kind };
        io::Error::new(kind, format!("{} {what}:\n{log}", self.command.join(" ")))
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Settings of a server that is yet to start.
#[derive(Clone, Debug)]
pub struct Builder {
    args: Vec<String>,
    role: Role,
}

#[derive(Clone, Debug)]
enum Role {
    Plain,
    Sentinel { conf: String },
}

impl Builder {
    /// Adds one argument, such as `--maxmemory` or its value.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments in their order.
    pub fn args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Makes it a sentinel, with the lines of its configuration.
    pub fn sentinel(self, conf: String) -> Self {
        Self { role: Role::Sentinel { conf }, ..self }
    }

    /// Keeps an append-only file, so that data outlive a restart.
    pub fn appendonly(self) -> Self {
        self.args(["--appendonly", "yes"])
    }

    /// Starts the server.
    ///
    /// # Panics
    ///
    /// If it does not start, with a text that says why.
    pub fn start(self) -> RedisServer {
        self.try_start().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts the server, or says in the error what to install or what the server printed.
    pub fn try_start(self) -> io::Result<RedisServer> {
        let program = find_program(env::var_os("LEASEHOLD_REDIS_SERVER"), env::var_os("PATH"))?;
        let mut attempts = 10;
        loop {
            let (port, dir) = (free_port(), fresh_dir()?);
            let command = self.command(&program, port, &dir)?;
            let mut server = RedisServer { command, port, dir, process: None };
            attempts -= 1;
            match server.launch() {
                Ok(()) => return Ok(server),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && attempts > 0 => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn command(&self, program: &Path, port: u16, dir: &Path) -> io::Result<Vec<String>> {
        let mut command = vec![program.display().to_string()];
        if let Role::Sentinel { conf } = &self.role {
            let file = dir.join("sentinel.conf");
            fs::write(&file, conf)?;
            command.extend([file.display().to_string(), "--sentinel".into()]);
            command.extend(["--bind", "127.0.0.1"].map(String::from));
        } else {
            command.extend(DEFAULTS.map(String::from));
        }
        command.extend(["--port".into(), port.to_string()]);
        command.extend(["--dir".into(), dir.display().to_string()]);
        command.extend(self.args.iter().cloned());
        Ok(command)
    }
}

/// A server process and the shell that keeps it.
#[derive(Debug)]
struct Process {
    shell: Child,
    pid: u32,
    /// Closed last: the shell takes its end for the end of this whole process.
    _lifeline: ChildStdin,
}

impl Process {
    fn spawn(dir: &Path, command: &[String]) -> io::Result<Self> {
        let mut shell = Command::new("sh")
            .args(["-c", KEEPER, "keeper"])
            .arg(dir)
            .args(command)
            .process_group(0) // an interrupt from the keyboard must not kill the keeper first
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let lifeline = shell.stdin.take().expect("standard input is a pipe");
        let mut line = String::new();
        BufReader::new(shell.stdout.take().expect("standard output is a pipe"))
            .read_line(&mut line)?;
        let pid = line.trim().parse().map_err(io::Error::other)?;
        Ok(Self { shell, pid, _lifeline: lifeline })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Ok(None) = self.shell.try_wait() {
            signal(self.pid, "KILL");
            let _ = self.shell.wait();
        }
    }
}

/// What a server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Status(String),
    Error(String),
    /// An integer, or a RESP3 boolean as 0 or 1.
    Int(i64),
    /// A string, or a RESP3 double, big number or verbatim string as its text.
    Bulk(Vec<u8>),
    Nil,
    /// An array, a RESP3 set, or a RESP3 map as keys and values in turn.
    Array(Vec<Reply>),
    /// RESP3 only: something that the server says of its own accord.
    Push(Vec<Reply>),
}

impl Reply {
    pub fn is_nil(&self) -> bool {
        *self == Self::Nil
    }

    /// The text of an error reply.
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Error(text) => Some(text),
            _ => None,
        }
    }

    /// Panics if this is an error.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.error(), None, "the server refused");
        self
    }

    /// The number, also if it came as a string.
    #[track_caller]
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(number) => *number,
            _ => self.text().parse().unwrap_or_else(|_| panic!("no number: {self:?}")),
        }
    }

    /// The string, or a number as its text.
    #[track_caller]
    pub fn text(&self) -> String {
        self.as_text().unwrap_or_else(|| panic!("no text: {self:?}"))
    }

    /// The elements of an array or a push; none of a nil.
    #[track_caller]
    pub fn items(&self) -> &[Reply] {
        match self {
            Self::Array(items) | Self::Push(items) => items,
            Self::Nil => &[],
            _ => panic!("no array: {self:?}"),
        }
    }

    /// An array of keys and values in turn, such as the answer to `HGETALL`.
    #[track_caller]
    pub fn map(&self) -> BTreeMap<String, String> {
        self.items().chunks(2).map(|pair| (pair[0].text(), pair[1].text())).collect()
    }

    fn as_text(&self) -> Option<String> {
        match self {
            Self::Status(text) => Some(text.clone()),
            Self::Bulk(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            Self::Int(number) => Some(number.to_string()),
            _ => None,
        }
    }

    /// The first element as text: what says which kind of message an array or a push is.
    pub fn first_word(&self) -> Option<String> {
        match self {
            Self::Array(items) | Self::Push(items) => items.first()?.as_text(),
            _ => None,
        }
    }

    /// Reads one whole value from the front of `bytes` and says how long it was; `None` if more
    /// bytes are needed, an error if this is no RESP.
    pub fn parse(bytes: &[u8]) -> Parsed<Self> {
        let mut parser = Parser { bytes, at: 0 };
        match parser.value() {
            Ok(reply) => Ok(Some((reply, parser.at))),
            Err(Stop::Incomplete) => Ok(None),
            Err(Stop::Invalid(why)) => Err(why),
        }
    }
}

/// A value and how many bytes it took, or `None` if there are too few of them yet.
pub type Parsed<T> = Result<Option<(T, usize)>, String>;

/// Reads RESP2 and RESP3 values. Starts over when more bytes have come: simple, and quick enough.
struct Parser<'a> {
    bytes: &'a [u8],
    at: usize,
}

enum Stop {
    Incomplete,
    Invalid(String),
}

impl Parser<'_> {
    fn value(&mut self) -> Result<Reply, Stop> {
        let kind = *self.take(1)?.first().ok_or(Stop::Incomplete)?;
        let head = self.line()?;
        Ok(match kind {
            b'+' => Reply::Status(head),
            b'-' => Reply::Error(head),
            b':' => Reply::Int(number(&head)?),
            b'_' => Reply::Nil,
            b'#' => Reply::Int(i64::from(head == "t")),
            b',' | b'(' => Reply::Bulk(head.into_bytes()),
            b'$' | b'*' if head == "-1" => Reply::Nil,
            b'$' => Reply::Bulk(self.blob(&head)?),
            b'!' => Reply::Error(String::from_utf8_lossy(&self.blob(&head)?).into_owned()),
            b'=' => Reply::Bulk(self.blob(&head)?.into_iter().skip("txt:".len()).collect()),
            b'*' | b'~' => Reply::Array(self.values(number(&head)?)?),
            b'%' => Reply::Array(self.values(2 * number::<usize>(&head)?)?),
            b'>' => Reply::Push(self.values(number(&head)?)?),
            // An attribute: notes about the value that follows.
            b'|' => {
                self.values(2 * number::<usize>(&head)?)?;
                self.value()?
            }
            other => return Err(Stop::Invalid(format!("no RESP type: {:?}", other as char))),
        })
    }

    fn values(&mut self, count: usize) -> Result<Vec<Reply>, Stop> {
        (0..count).map(|_| self.value()).collect()
    }

    fn blob(&mut self, length: &str) -> Result<Vec<u8>, Stop> {
        let blob = self.take(number(length)?)?.to_vec();
        match self.take(2)? {
            b"\r\n" => Ok(blob),
            other => Err(Stop::Invalid(format!("a string ends in {other:?}"))),
        }
    }

    fn line(&mut self) -> Result<String, Stop> {
        let rest = &self.bytes[self.at..];
        let length = rest.windows(2).position(|pair| pair == b"\r\n").ok_or(Stop::Incomplete)?;
        self.at += length + 2;
        Ok(String::from_utf8_lossy(&rest[..length]).into_owned())
    }

    fn take(&mut self, count: usize) -> Result<&[u8], Stop> {
        let end = self.at.checked_add(count).ok_or(Stop::Incomplete)?;
        let taken = self.bytes.get(self.at..end).ok_or(Stop::Incomplete)?;
        self.at = end;
        Ok(taken)
    }
}

fn number<N: std::str::FromStr>(text: &str) -> Result<N, Stop> {
    text.parse().map_err(|_| Stop::Invalid(format!("no number: {text:?}")))
}

/// A message on a subscribed channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub channel: String,
    pub payload: String,
}

/// A connection driven by hand. Calls block the thread, for ten seconds at most.
#[derive(Debug)]
pub struct Raw {
    wire: Mutex<Wire>,
}

#[derive(Debug)]
struct Wire {
    stream: TcpStream,
    unread: Vec<u8>,
    subscribed: bool,
    messages: VecDeque<Message>,
}

impl Raw {
    #[track_caller]
    pub fn connect(port: u16) -> Self {
        Self::try_connect(port).unwrap_or_else(|error| panic!("no server on {port}: {error}"))
    }

    pub fn try_connect(port: u16) -> io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        let (unread, messages) = (Vec::new(), VecDeque::new());
        Ok(Self { wire: Mutex::new(Wire { stream, unread, subscribed: false, messages }) })
    }

    /// Sends a command and returns its answer, also if that is an error.
    ///
    /// # Panics
    ///
    /// If the connection breaks or the answer does not come.
    #[track_caller]
    pub fn cmd(&self, args: &[&str]) -> Reply {
        self.try_cmd(args).unwrap_or_else(|error| panic!("{args:?}: {error}"))
    }

    /// As [`Raw::cmd`], for arguments that are not text.
    #[track_caller]
    pub fn cmd_bytes(&self, args: &[&[u8]]) -> Reply {
        self.send(args).and_then(|()| self.receive()).unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn try_cmd(&self, args: &[&str]) -> io::Result<Reply> {
        self.send(&args.iter().map(|arg| arg.as_bytes()).collect::<Vec<_>>())?;
        self.receive()
    }

    /// Sends a command without waiting for its answer.
    pub fn send(&self, args: &[&[u8]]) -> io::Result<()> {
        let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            bytes.extend(format!("${}\r\n", arg.len()).bytes());
            bytes.extend_from_slice(arg);
            bytes.extend(b"\r\n");
        }
        self.wire().stream.write_all(&bytes)
    }

    /// Waits for the next answer.
    pub fn receive(&self) -> io::Result<Reply> {
        let mut wire = self.wire();
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(reply) = wire.next_reply(deadline)? {
                return Ok(reply);
            }
        }
    }

    /// Subscribes to a channel; returns when the server has confirmed it.
    #[track_caller]
    pub fn subscribe(&self, channel: &str) {
        self.wire().subscribed = true;
        self.cmd(&["SUBSCRIBE", channel]).ok();
    }

    /// The next message on a subscribed channel, or `None` if none comes in time.
    ///
    /// # Panics
    ///
    /// If the connection breaks.
    #[track_caller]
    pub fn next_message(&self, timeout: Duration) -> Option<Message> {
        let mut wire = self.wire();
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(message) = wire.messages.pop_front() {
                return Some(message);
            }
            match wire.next_reply(deadline) {
                Ok(_) => {} // a message, or a server that ends a subscription by itself
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn wire(&self) -> std::sync::MutexGuard<'_, Wire> {
        self.wire.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wire {
    /// Reads one value: an answer, or `None` if it was a message, which is put aside.
    fn next_reply(&mut self, deadline: Instant) -> io::Result<Option<Reply>> {
        let value = self.next_value(deadline)?;
        let pushed = matches!(value, Reply::Push(_));
        match value.first_word().unwrap_or_default().as_str() {
            "message" | "smessage" | "pmessage" if pushed || self.subscribed => {
                if let [.., channel, payload] = value.items() {
                    let (channel, payload) = (channel.text(), payload.text());
                    self.messages.push_back(Message { channel, payload });
                }
                Ok(None)
            }
            word if pushed && !word.ends_with("subscribe") => Ok(None),
            _ => Ok(Some(value)),
        }
    }

    fn next_value(&mut self, deadline: Instant) -> io::Result<Reply> {
        loop {
            if let Some((value, used)) = Reply::parse(&self.unread).map_err(io::Error::other)? {
                self.unread.drain(..used);
                return Ok(value);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.unread.extend_from_slice(&chunk[..n]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Sends one command on a connection of its own.
pub fn command(port: u16, args: &[&str]) -> io::Result<Reply> {
    Raw::try_connect(port)?.try_cmd(args)
}

/// A loopback port that nobody listens on.
///
/// It lies below the ports that systems give to outgoing connections. Else a client that knocks at
/// the port of a killed server could be given that very port, and connect to itself.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = process::id().wrapping_mul(7919);
    loop {
        let step = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 12_000 + (step % 20_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Blocks until `check` holds, for ten seconds at most.
///
/// # Panics
///
/// If it does not hold by then.
#[track_caller]
pub fn until(what: &str, check: impl FnMut() -> bool) {
    until_within(PATIENCE, what, check);
}

/// As [`until`], with a bound of one's own.
#[track_caller]
pub fn until_within(bound: Duration, what: &str, mut check: impl FnMut() -> bool) {
    let deadline = Instant::now() + bound;
    while !check() {
        assert!(Instant::now() < deadline, "waited {bound:?} in vain until {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The binary to start: the one that is named, or the first that is found.
pub fn find_program(
    named: Option<std::ffi::OsString>,
    path: Option<std::ffi::OsString>,
) -> io::Result<PathBuf> {
    if let Some(program) = named {
        return Ok(program.into());
    }
    let dirs: Vec<_> = env::split_paths(&path.unwrap_or_default()).collect();
    let names = ["redis-server", "valkey-server"];
    let mut places = names.iter().flat_map(|name| dirs.iter().map(move |dir| dir.join(name)));
    places.find(|place| place.is_file()).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotFound,
            "there is no Redis server to start: redis-server and valkey-server are not on PATH.\n\
             Install one (Debian, Ubuntu: apt install redis-server; Fedora: dnf install valkey;\n\
             Alpine: apk add redis; macOS: brew install redis), or name a binary in\n\
             LEASEHOLD_REDIS_SERVER.",
        )
    })
}

/// Whether a server answers on the port, and if it says so, which process it is.
fn answering_process(port: u16) -> Option<Option<u32>> {
    let ping = command(port, &["PING"]).ok()?;
    if ping.error().is_some_and(|text| text.starts_with("LOADING")) {
        return None;
    }
    let info = command(port, &["INFO", "server"]).ok()?;
    let info = info.as_text().unwrap_or_default();
    let id = info.lines().find_map(|line| line.strip_prefix("process_id:"));
    Some(id.and_then(|id| id.trim().parse().ok()))
}

/// Sends a signal and returns once it is sent.
fn signal(pid: u32, name: &str) {
    let sent = Command::new("sh")
        .args(["-c", r#"kill -s "$1" "$2""#, "signal", name, &pid.to_string()])
        .stderr(Stdio::null())
        .status();
    drop(sent); // a process that has just ended by itself is as good
}

fn fresh_dir() -> io::Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let nth = NEXT.fetch_add(1, Ordering::Relaxed);
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    let dir = env::temp_dir().join(format!("leasehold-{}-{nth}-{now}", process::id()));
    fs::create_dir(&dir)?;
    Ok(dir)
}
