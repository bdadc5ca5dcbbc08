//! A proxy between a client and a Redis server that knows where commands and replies begin and end,
//! and so can lose, hold, delay and cut exactly what a test names.
//!
//! It runs on a thread of its own: a test that blocks its runtime, or drops it, does not stop it.
//! Each connection has two sides, one per socket. A side reads whole frames for the other and
//! writes what the other read. When a side ends, the other first writes what is left for it; so a
//! command that has left a client reaches the server even if that client is gone by then.
//!
//! It counts on one answer for each command, so `CLIENT REPLY` and `MONITOR` confuse it.
use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt,
    future::pending,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver, Sender},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::{
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
        oneshot, watch,
    },
    time::{Instant, sleep_until, timeout},
};

use super::server::{Parsed, Reply, free_port};

/// How long a test waits for an event before it is told that the event did not come.
const PATIENCE: Duration = Duration::from_secs(10);

/// A handle to a running proxy. The proxy ends, and with it all its connections, when the last
/// clone of the handle is dropped.
#[derive(Clone)]
pub struct Proxy {
    shared: Arc<Shared>,
    port: u16,
    _thread: Arc<Thread>,
}

impl Proxy {
    /// Starts a proxy on a free port, to a server on this machine.
    pub fn start(upstream_port: u16) -> Self {
        let state = State { upstream_port, ..State::default() };
        let shared = Arc::new(Shared { state: watch::Sender::new(state), ..Shared::default() });
        let (stop, stopped) = oneshot::channel();
        let (started, port): (Sender<u16>, Receiver<u16>) = mpsc::channel();
        let serving = Arc::clone(&shared);
        let thread = thread::spawn(move || serve(&serving, &started, stopped));
        let port = port.recv().expect("the proxy starts");
        let thread = Thread { stop: Some(stop), thread: Some(thread) };
        Self { shared, port, _thread: Arc::new(thread) }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }
}

/// Lost, held and late bytes.
impl Proxy {
    /// Delivers each command this much later than it came.
    pub fn delay_commands(&self, delay: Duration) {
        self.shared.state.send_modify(|state| state.command_delay = delay);
    }

    /// Delivers each reply and message this much later than it came.
    pub fn delay_replies(&self, delay: Duration) {
        self.shared.state.send_modify(|state| state.reply_delay = delay);
    }

    /// Swallows the replies of the next `n` commands that match. The server executes the commands,
    /// and later replies flow on.
    pub fn drop_reply(&self, matcher: impl Matcher, n: usize) -> Fault {
        self.shared.add(Stage::Reply, matcher, n, Action::Drop)
    }

    /// Swallows the reply of the next command that matches and cuts its connection.
    pub fn drop_reply_and_cut(&self, matcher: impl Matcher) -> Fault {
        self.shared.add(Stage::Reply, matcher, 1, Action::DropAndCut)
    }

    /// Holds the reply of the next command that matches; all later replies and messages of that
    /// connection wait behind it.
    pub fn hold_reply(&self, matcher: impl Matcher) -> Hold {
        self.hold(Stage::Reply, matcher)
    }

    /// Holds the next command that matches before it reaches the server; all later commands of
    /// that connection wait behind it. It outlives its client, so that it can be delivered late.
    pub fn hold_command(&self, matcher: impl Matcher) -> Hold {
        self.hold(Stage::Command, matcher)
    }

    /// Swallows messages on subscribed channels; confirmations of subscriptions pass.
    pub fn eat_messages(&self, eat: bool) {
        self.shared.state.send_modify(|state| state.eat_messages = eat);
    }

    /// How many messages were swallowed.
    pub fn messages_eaten(&self) -> usize {
        self.shared.state.borrow().messages_eaten
    }

    fn hold(&self, stage: Stage, matcher: impl Matcher) -> Hold {
        let held = watch::Sender::new(HoldState::default());
        self.shared.add(stage, matcher, 1, Action::Hold(held.clone()));
        Hold { held }
    }
}

/// Broken and silent connections.
impl Proxy {
    /// Resets every connection, on both sides. Returns when they are gone.
    pub async fn cut_all(&self) {
        self.cut(Cut::Both).await;
    }

    /// Resets every connection on the client's side only. Commands that had left the client, held
    /// ones too, still go to the server on the old connection. Returns when the clients are cut.
    pub async fn cut_client_side_only(&self) {
        self.cut(Cut::Client).await;
    }

    /// Stops reading and writing on all connections without closing them; new ones are accepted
    /// and as silent. Switched off, everything flows on where it stopped.
    pub fn half_open(&self, half_open: bool) {
        self.shared.half_open.send_replace(half_open);
    }

    /// Resets new connections as soon as they come. Those that stand are left alone.
    pub fn refuse(&self, refuse: bool) {
        self.shared.state.send_modify(|state| state.refuse = refuse);
    }

    /// Connects new clients to another server.
    pub fn retarget(&self, upstream_port: u16) {
        self.shared.state.send_modify(|state| state.upstream_port = upstream_port);
    }

    /// How many clients are connected.
    pub fn connections(&self) -> usize {
        self.shared.state.borrow().open.values().filter(|open| open.client).count()
    }

    /// How many connections to the server stand, with or without their client.
    pub fn upstream_connections(&self) -> usize {
        self.shared.state.borrow().open.values().filter(|open| open.upstream).count()
    }

    /// How many clients have ever connected, refused ones included.
    pub fn accepted(&self) -> usize {
        self.shared.state.borrow().accepted
    }

    /// Waits until this many clients are connected.
    pub async fn wait_connections(&self, n: usize) {
        let connected = |state: &State| state.open.values().filter(|open| open.client).count();
        let seen = self.shared.wait(|state| connected(state) == n).await;
        assert!(seen, "waited {PATIENCE:?} in vain for {n} clients, have {}", self.connections());
    }

    async fn cut(&self, how: Cut) {
        let mut cut = HashSet::new();
        for (id, open) in &self.shared.state.borrow().open {
            open.cut.send_replace(how);
            cut.insert(*id);
        }
        let stands = |open: &Open| open.client || (open.upstream && how == Cut::Both);
        let gone = |state: &State| cut.iter().all(|id| !state.open.get(id).is_some_and(stands));
        assert!(self.shared.wait(gone).await, "connections outlived their cut");
    }
}

/// What clients have sent.
impl Proxy {
    /// Every command that has come from a client, in order.
    pub fn commands(&self) -> Vec<Vec<Vec<u8>>> {
        self.shared.state.borrow().commands.iter().map(|command| command.args.clone()).collect()
    }

    /// How many commands that match have come.
    pub fn count(&self, matcher: impl Matcher) -> usize {
        self.shared.state.borrow().count(&matcher)
    }

    /// Forgets the commands that have come, for a count from here.
    pub fn forget_commands(&self) {
        self.shared.state.send_modify(|state| state.commands.clear());
    }

    /// Waits until `n` commands that match have come.
    ///
    /// # Panics
    ///
    /// If they have not come within ten seconds.
    pub async fn wait_for(&self, matcher: impl Matcher, n: usize) {
        if !self.shared.wait(|state| state.count(&matcher) >= n).await {
            let state = self.shared.state.borrow();
            let last = &state.commands[state.commands.len().saturating_sub(20)..];
            let seen = state.count(&matcher);
            panic!("waited {PATIENCE:?} in vain for {n} commands, saw {seen}; the last: {last:#?}");
        }
    }
}

/// A command as it came from a client.
pub struct Command {
    /// Which connection it came on, counted from 0.
    pub connection: usize,
    pub args: Vec<Vec<u8>>,
}

impl Command {
    /// Whether this is the command of that name, in any case.
    pub fn is(&self, name: &str) -> bool {
        self.args.first().is_some_and(|first| first.eq_ignore_ascii_case(name.as_bytes()))
    }

    /// Whether any argument contains the bytes.
    pub fn mentions(&self, bytes: impl AsRef<[u8]>) -> bool {
        let bytes = bytes.as_ref();
        self.args.iter().any(|arg| bytes.is_empty() || arg.windows(bytes.len()).any(|w| w == bytes))
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let args: Vec<_> = self.args.iter().map(|arg| String::from_utf8_lossy(arg)).collect();
        write!(f, "{}: {}", self.connection, args.join(" "))
    }
}

/// Says which commands a fault is about.
pub trait Matcher: Fn(&Command) -> bool + Send + Sync + 'static {}

impl<F: Fn(&Command) -> bool + Send + Sync + 'static> Matcher for F {}

/// Matches every command.
pub fn any() -> impl Matcher + Clone {
    |_: &Command| true
}

/// Matches commands by name, in any case.
pub fn named(name: &str) -> impl Matcher + Clone + use<> {
    let name = name.to_owned();
    move |command: &Command| command.is(&name)
}

/// Matches commands with an argument that contains the text.
pub fn mentioning(text: &str) -> impl Matcher + Clone + use<> {
    let text = text.to_owned();
    move |command: &Command| command.mentions(&text)
}

/// Matches what both match.
pub fn both(a: impl Matcher, b: impl Matcher) -> impl Matcher {
    move |command: &Command| a(command) && b(command)
}

/// A fault that was asked for, and how often it has happened.
pub struct Fault {
    shared: Arc<Shared>,
    rule: usize,
}

impl Fault {
    /// How many commands it has befallen.
    pub fn hits(&self) -> usize {
        self.shared.state.borrow().rules[self.rule].hits
    }

    /// Waits until it has befallen `n` commands.
    ///
    /// # Panics
    ///
    /// If that takes more than ten seconds.
    pub async fn happened(&self, n: usize) {
        let happened = self.shared.wait(|state| state.rules[self.rule].hits >= n).await;
        assert!(happened, "the fault befell {} of {n} commands in {PATIENCE:?}", self.hits());
    }

    /// Lets it happen no more.
    pub fn stop(&self) {
        self.shared.state.send_modify(|state| state.rules[self.rule].left = 0);
    }
}

/// A command or reply that is, or will be, held. Dropping this does not release it.
#[must_use = "what is held stays held until it is released"]
pub struct Hold {
    held: watch::Sender<HoldState>,
}

impl Hold {
    /// Waits until a match has come and is held.
    ///
    /// # Panics
    ///
    /// If none comes within ten seconds.
    pub async fn held(&self) {
        let held = timeout(PATIENCE, until(&self.held, |hold| hold.held)).await;
        assert!(held.is_ok(), "waited {PATIENCE:?} in vain for something to hold");
    }

    /// Lets it go on, with all that waits behind it. Before anything is held: gives up the hold.
    pub fn release(&self) {
        self.held.send_modify(|hold| hold.released = true);
    }

    /// Waits for what the server answers: `None` if it cannot be known any more, because the
    /// connection to the server is gone.
    ///
    /// # Panics
    ///
    /// If neither happens within ten seconds.
    pub async fn answered(&self) -> Option<Reply> {
        let answered = timeout(PATIENCE, until(&self.held, |hold| hold.answer.is_some())).await;
        assert!(answered.is_ok(), "waited {PATIENCE:?} in vain for an answer to what was held");
        self.held.borrow().answer.clone().flatten()
    }
}

#[derive(Default)]
struct HoldState {
    held: bool,
    released: bool,
    answer: Option<Option<Reply>>,
}

/// The duty to tell a [`Hold`] what became of its command.
struct Owed(watch::Sender<HoldState>);

impl Owed {
    fn tell(&self, answer: Option<Reply>) {
        self.0.send_modify(|hold| {
            hold.answer.get_or_insert(answer);
        });
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        self.tell(None);
    }
}

#[derive(Default)]
struct Shared {
    state: watch::Sender<State>,
    half_open: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    upstream_port: u16,
    refuse: bool,
    eat_messages: bool,
    command_delay: Duration,
    reply_delay: Duration,
    rules: Vec<Rule>,
    commands: Vec<Arc<Command>>,
    messages_eaten: usize,
    accepted: usize,
    open: HashMap<usize, Open>,
}

/// A connection: which of its sides stand, and the order to cut it.
struct Open {
    client: bool,
    upstream: bool,
    cut: watch::Sender<Cut>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cut {
    No,
    Client,
    Both,
}

struct Rule {
    stage: Stage,
    matcher: Box<dyn Matcher>,
    left: usize,
    hits: usize,
    action: Action,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Command,
    Reply,
}

#[derive(Clone)]
enum Action {
    Drop,
    DropAndCut,
    Hold(watch::Sender<HoldState>),
}

impl State {
    fn count(&self, matcher: &impl Matcher) -> usize {
        self.commands.iter().filter(|command| matcher(command)).count()
    }
}

impl Shared {
    fn add(
        self: &Arc<Self>,
        stage: Stage,
        matcher: impl Matcher,
        left: usize,
        action: Action,
    ) -> Fault {
        let mut rule = 0;
        self.state.send_modify(|state| {
            rule = state.rules.len();
            state.rules.push(Rule { stage, matcher: Box::new(matcher), left, hits: 0, action });
        });
        Fault { shared: Arc::clone(self), rule }
    }

    /// What is to be done to a frame; `whole` says that nothing more of its command will come.
    fn fault(&self, stage: Stage, command: &Command, whole: bool) -> Option<Action> {
        let mut action = None;
        self.state.send_if_modified(|state| {
            let applies =
                |rule: &&mut Rule| rule.stage == stage && rule.left > 0 && (rule.matcher)(command);
            let Some(rule) = state.rules.iter_mut().find(applies) else { return false };
            let spent = usize::from(whole || matches!(rule.action, Action::DropAndCut));
            rule.left -= spent;
            rule.hits += spent;
            action = Some(rule.action.clone());
            true
        });
        action
    }

    /// Waits for a condition, and says whether it came true in time.
    async fn wait(&self, condition: impl Fn(&State) -> bool) -> bool {
        timeout(PATIENCE, until(&self.state, condition)).await.is_ok()
    }

    async fn while_half_open(&self) {
        until(&self.half_open, |half_open| !half_open).await;
    }

    /// Reads frames and hands them on, until the stream ends. What is no RESP is one opaque frame.
    async fn read<T>(
        &self,
        stream: &TcpStream,
        parse: fn(&[u8]) -> Parsed<T>,
        mut each: impl FnMut(Option<T>, Vec<u8>),
    ) {
        let mut unread = Vec::new();
        loop {
            self.while_half_open().await;
            let read = tokio::select! {
                biased;
                () = until(&self.half_open, |half_open| *half_open) => continue,
                read = read_some(stream, &mut unread) => read,
            };
            if !matches!(read, Ok(1..)) {
                return;
            }
            while !unread.is_empty() {
                match parse(&unread) {
                    Ok(Some((frame, used))) => {
                        let rest = unread.split_off(used);
                        each(Some(frame), std::mem::replace(&mut unread, rest));
                    }
                    Ok(None) => break,
                    Err(_) => each(None, std::mem::take(&mut unread)),
                }
            }
            tokio::task::yield_now().await; // a flood must not keep the other tasks waiting
        }
    }
}

/// A whole command, reply or message on its way.
struct Frame {
    bytes: Vec<u8>,
    arrived: Instant,
    kind: Kind,
}

enum Kind {
    Command(Arc<Command>),
    /// An answer; the last one of its command, unless more are to follow.
    Reply {
        command: Arc<Command>,
        last: bool,
    },
    Message,
    Other,
}

impl Frame {
    fn new(bytes: Vec<u8>, kind: Kind) -> Self {
        Self { bytes, arrived: Instant::now(), kind }
    }

    async fn wait(&self, delay: Duration) {
        if !delay.is_zero() {
            sleep_until(self.arrived + delay).await; // a millisecond at least: timers are coarse
        }
    }
}

/// Reads the arguments of one command: an array of strings, or words in a line.
fn parse_command(bytes: &[u8]) -> Parsed<Vec<Vec<u8>>> {
    if bytes.starts_with(b"*") {
        let Some((array, used)) = Reply::parse(bytes)? else { return Ok(None) };
        let args = array.items().iter().filter_map(|arg| match arg {
            Reply::Bulk(arg) => Some(arg.clone()),
            _ => None,
        });
        return Ok(Some((args.collect(), used)));
    }
    let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else { return Ok(None) };
    let words = bytes[..end].split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    Ok(Some((words.map(<[u8]>::to_vec).collect(), end + 1)))
}

/// The body of the proxy's thread.
fn serve(shared: &Arc<Shared>, started: &Sender<u16>, stopped: oneshot::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime for the proxy").block_on(async {
        let listener = loop {
            // Someone else may have taken the free port by now.
            if let Ok(listener) = TcpListener::bind(("127.0.0.1", free_port())).await {
                break listener;
            }
        };
        let port = listener.local_addr().expect("the listener has an address").port();
        started.send(port).expect("the proxy is waited for");
        tokio::select! {
            () = accept(shared, &listener) => {}
            _ = stopped => {}
        }
    });
}

async fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        let cut = watch::Sender::new(Cut::No);
        let (mut id, mut refused) = (0, false);
        shared.state.send_modify(|state| {
            (id, refused) = (state.accepted, state.refuse);
            state.accepted += 1;
            if !refused {
                let open = Open { client: true, upstream: true, cut: cut.clone() };
                state.open.insert(id, open);
            }
        });
        if refused {
            reset(&client);
        } else {
            let shared = Arc::clone(shared);
            tokio::spawn(async move { Connection::new(shared, id, cut).run(client).await });
        }
    }
}

/// One client, and the connection to the server that was opened for it.
struct Connection {
    shared: Arc<Shared>,
    id: usize,
    cut: watch::Sender<Cut>,
    dialogue: Mutex<Dialogue>,
}

impl Connection {
    fn new(shared: Arc<Shared>, id: usize, cut: watch::Sender<Cut>) -> Self {
        Self { shared, id, cut, dialogue: Mutex::default() }
    }

    async fn run(self, client: TcpStream) {
        let upstream = tokio::select! {
            () = until(&self.cut, |cut| *cut != Cut::No) => None,
            upstream = self.dial() => upstream.ok(),
        };
        if let Some(upstream) = upstream {
            let (commands_in, commands_out) = unbounded_channel();
            let (replies_in, replies_out) = unbounded_channel();
            tokio::join!(
                self.client_side(client, commands_in, replies_out),
                self.upstream_side(upstream, replies_in, commands_out),
            );
        } else {
            reset(&client);
            drop(client);
            self.closed(|open| (open.client, open.upstream) = (false, false));
        }
    }

    async fn dial(&self) -> io::Result<TcpStream> {
        self.shared.while_half_open().await;
        let port = self.shared.state.borrow().upstream_port;
        TcpStream::connect(("127.0.0.1", port)).await
    }

    async fn client_side(
        &self,
        stream: TcpStream,
        commands: UnboundedSender<Frame>,
        replies: UnboundedReceiver<Frame>,
    ) {
        let read = self.shared.read(&stream, parse_command, |args, bytes| {
            let kind = args.map_or(Kind::Other, |args| self.record(args));
            let _ = commands.send(Frame::new(bytes, kind));
        });
        let _ = stream.set_nodelay(true);
        tokio::select! {
            biased;
            () = until(&self.cut, |cut| *cut != Cut::No) => reset(&stream),
            () = read => {}
            () = self.deliver_replies(&stream, replies) => {}
        }
        drop(stream);
        self.closed(|open| open.client = false);
    }

    async fn upstream_side(
        &self,
        stream: TcpStream,
        replies: UnboundedSender<Frame>,
        commands: UnboundedReceiver<Frame>,
    ) {
        let read = self.shared.read(&stream, Reply::parse, |frame, bytes| {
            let kind = frame.map_or(Kind::Other, |frame| self.dialogue().place(frame));
            let _ = replies.send(Frame::new(bytes, kind));
        });
        let _ = stream.set_nodelay(true);
        tokio::select! {
            biased;
            () = until(&self.cut, |cut| *cut == Cut::Both) => reset(&stream),
            () = read => {}
            () = self.deliver_commands(&stream, commands) => {}
        }
        drop(stream);
        self.closed(|open| open.upstream = false);
    }

    /// Writes commands to the server until the client is gone and nothing it sent is left. If one
    /// of them was held, stays for its answer.
    async fn deliver_commands(&self, stream: &TcpStream, mut commands: UnboundedReceiver<Frame>) {
        while let Some(frame) = commands.recv().await {
            let delay = self.shared.state.borrow().command_delay;
            frame.wait(delay).await;
            if let Kind::Command(command) = frame.kind {
                let owed = match self.shared.fault(Stage::Command, &command, true) {
                    Some(Action::Hold(hold)) => Some(Owed(hold)),
                    _ => None,
                };
                if let Some(Owed(hold)) = &owed {
                    hold.send_modify(|hold| hold.held = true);
                    until(hold, |hold| hold.released).await;
                }
                let asked = Asked { command, left: None, owed };
                self.dialogue().unanswered.push_back(asked);
            }
            self.shared.while_half_open().await;
            if write_all(stream, &frame.bytes).await.is_err() {
                return;
            }
        }
        loop {
            let owed = self.dialogue().first_owed();
            let Some(hold) = owed else { return };
            until(&hold, |hold| hold.answer.is_some()).await;
        }
    }

    /// Writes replies and messages to the client until the server is gone and nothing is left.
    async fn deliver_replies(&self, stream: &TcpStream, mut replies: UnboundedReceiver<Frame>) {
        while let Some(frame) = replies.recv().await {
            let delay = self.shared.state.borrow().reply_delay;
            frame.wait(delay).await;
            match &frame.kind {
                Kind::Reply { command, last } => {
                    match self.shared.fault(Stage::Reply, command, *last) {
                        Some(Action::Drop) => continue,
                        Some(Action::DropAndCut) => {
                            self.cut.send_replace(Cut::Both);
                            pending::<()>().await;
                        }
                        Some(Action::Hold(hold)) => {
                            let answer = Reply::parse(&frame.bytes).ok().flatten();
                            Owed(hold.clone()).tell(answer.map(|(reply, _)| reply));
                            hold.send_modify(|hold| hold.held = true);
                            until(&hold, |hold| hold.released).await;
                        }
                        None => {}
                    }
                }
                Kind::Message if self.shared.state.borrow().eat_messages => {
                    self.shared.state.send_modify(|state| state.messages_eaten += 1);
                    continue;
                }
                _ => {}
            }
            self.shared.while_half_open().await;
            if write_all(stream, &frame.bytes).await.is_err() {
                return;
            }
        }
    }

    /// Notes that a command has come. A blank line is none, and is not answered.
    fn record(&self, args: Vec<Vec<u8>>) -> Kind {
        if args.is_empty() {
            return Kind::Other;
        }
        let command = Arc::new(Command { connection: self.id, args });
        self.shared.state.send_modify(|state| state.commands.push(Arc::clone(&command)));
        Kind::Command(command)
    }

    fn closed(&self, side: impl Fn(&mut Open)) {
        self.shared.state.send_modify(|state| {
            let Some(open) = state.open.get_mut(&self.id) else { return };
            side(open);
            if !open.client && !open.upstream {
                state.open.remove(&self.id);
            }
        });
    }

    fn dialogue(&self) -> std::sync::MutexGuard<'_, Dialogue> {
        self.dialogue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which command the server will answer next, and what its client is subscribed to.
#[derive(Default)]
struct Dialogue {
    unanswered: VecDeque<Asked>,
    /// Kind (`""`, `p` or `s`) and channel of what has been confirmed.
    subscriptions: HashSet<(String, Vec<u8>)>,
    /// Subscriptions were confirmed in RESP2, where a message looks like a reply.
    resp2: bool,
}

struct Asked {
    command: Arc<Command>,
    /// How many confirmations are still to come, known once the first has come.
    left: Option<usize>,
    owed: Option<Owed>,
}

impl Dialogue {
    /// Says what a frame from the server is: an answer to the oldest command, or something that
    /// the server says of its own accord.
    fn place(&mut self, frame: Reply) -> Kind {
        let pushed = matches!(frame, Reply::Push(_));
        let word = frame.first_word().unwrap_or_default();
        let is_message = matches!(word.as_str(), "message" | "pmessage" | "smessage");
        if is_message && (pushed || (self.resp2 && !self.subscriptions.is_empty())) {
            return Kind::Message;
        }
        let asked_for = self.unanswered.front().is_some_and(|asked| asked.command.is(&word));
        let confirms = word.ends_with("subscribe") && asked_for;
        if pushed && !confirms {
            return Kind::Other;
        }
        let last = !confirms || self.confirm(&word, frame.items(), pushed);
        let Some(asked) = self.unanswered.front_mut() else { return Kind::Other };
        if let Some(owed) = asked.owed.take() {
            owed.tell(Some(frame));
        }
        let command = Arc::clone(&asked.command);
        if last {
            self.unanswered.pop_front();
        }
        Kind::Reply { command, last }
    }

    /// Notes the confirmation of one channel; returns whether it is the last of its command. One
    /// comes for each named channel; if none is named, for each that there was, and one at least.
    fn confirm(&mut self, word: &str, items: &[Reply], pushed: bool) -> bool {
        self.resp2 = !pushed;
        let verb = word.trim_end_matches("subscribe");
        let kind = verb.trim_end_matches("un");
        let asked = self.unanswered.front_mut().expect("the confirmation was asked for");
        let named = asked.command.args.len() - 1;
        let standing = self.subscriptions.iter().filter(|(k, _)| k == kind).count();
        let left = asked.left.get_or_insert(if named > 0 { named } else { standing.max(1) });
        *left -= 1;
        if let Some(Reply::Bulk(channel)) = items.get(1) {
            let subscription = (kind.to_owned(), channel.clone());
            if verb.ends_with("un") {
                self.subscriptions.remove(&subscription);
            } else {
                self.subscriptions.insert(subscription);
            }
        }
        *left == 0
    }

    fn first_owed(&self) -> Option<watch::Sender<HoldState>> {
        self.unanswered.iter().find_map(|asked| asked.owed.as_ref().map(|owed| owed.0.clone()))
    }
}

/// The proxy's thread, which ends when this is dropped.
struct Thread {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Thread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn until<T>(state: &watch::Sender<T>, condition: impl Fn(&T) -> bool) {
    let _ = state.subscribe().wait_for(|state| condition(state)).await;
}

/// Makes the close of a stream a reset.
#[allow(deprecated, reason = "with a linger of zero it does not block")]
fn reset(stream: &TcpStream) {
    let _ = stream.set_linger(Some(Duration::ZERO));
}

async fn read_some(stream: &TcpStream, into: &mut Vec<u8>) -> io::Result<usize> {
    loop {
        stream.readable().await?;
        into.reserve(64 * 1024);
        match stream.try_read_buf(into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return read,
        }
    }
}

async fn write_all(stream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
