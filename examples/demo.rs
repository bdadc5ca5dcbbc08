//! Shows  several programs that share one file, kept apart by a lock in Redis; one is killed while
//!        it holds the lock, and the others go on.
//!
//! Run    script/demo
//!        (or, if there is a redis-server: cargo run --example demo)
//!
//! Watch  the last lines: no count is lost, no two programs were inside at once, and the killed
//!        one's lock was free again within its lease. The exit code is 1 if any of that is not so.

use indicatif::{ProgressBar, ProgressStyle};
use leasehold::{Client, Lock};
use rustix::time::{ClockId, clock_gettime};
use std::{
    env,
    error::Error,
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{self, Child, ChildStdin, Command, ExitCode, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

#[path = "../tests/support/server.rs"]
mod server;

const PROGRAMS: usize = 4;
/// How often each of them counts.
const TURNS: u64 = 300;
/// How often each of them counts in the first part, where there is no lock.
const TURNS_WITHOUT: u64 = 50;
/// The program that is killed, and how often it counts before.
const VICTIM: usize = 3;
const VICTIM_TURNS: u64 = 100;
/// Redis frees the lock of a program that no longer renews it after this time.
const LEASE: Duration = Duration::from_secs(2);
/// For so long the victim stays inside before it is killed: more than a lease.
const STANDSTILL: Duration = Duration::from_secs(3);
/// What a waiter may need beyond the lease on a busy machine.
const LENIENCE: Duration = Duration::from_millis(500);
/// The demo gives up after this time, whatever it waits for.
const BOUND: Duration = Duration::from_secs(60);

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> ExitCode {
    let args: Vec<_> = env::args().collect();
    let done = match args.get(1).map(String::as_str) {
        Some("worker") => work(&args[2..]).map(|()| true),
        _ => demo(),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

// What each program does.

/// Counts in the shared file, first without the lock, then with it.
#[tokio::main(flavor = "current_thread")]
async fn work(args: &[String]) -> Result<()> {
    let [number, url, count] = args else { return Err("usage: worker NUMBER URL FILE".into()) };
    let (number, count): (usize, _) = (number.parse()?, Path::new(count));
    let start = starting_shots();
    let client = Client::builder(url)?.watchdog(LEASE).connect().await?;
    let lock = client.lock("demo:count");

    tell("ready");
    start.recv()?;
    for _ in 0..TURNS_WITHOUT {
        add_one(count).await?;
    }

    tell("ready");
    start.recv()?;
    for turn in 0..TURNS {
        let guard = lock.lock().await?;
        let entered = now();
        if number == VICTIM && turn == VICTIM_TURNS {
            tell(&format!("holding {entered}"));
            std::future::pending::<()>().await; // stays inside until it is killed
        }
        add_one_locked(&lock, count).await?;
        let left = now();
        guard.unlock().await?;
        tell(&format!("turn {entered} {left}"));
        tokio::time::sleep(Duration::from_millis(1)).await; // something else, without the lock
    }
    client.close().await;
    Ok(())
}

/// Locks what its caller has locked already: a section inside a section.
async fn add_one_locked(lock: &Lock, count: &Path) -> Result<()> {
    let guard = lock.lock().await?;
    if guard.hold_count() != 2 {
        return Err(format!("held {} times, not twice", guard.hold_count()).into());
    }
    add_one(count).await?;
    Ok(guard.unlock().await?)
}

/// Reads the number, waits, writes it back: what two must not do at once.
async fn add_one(count: &Path) -> Result<()> {
    let number = read(count)?;
    tokio::time::sleep(Duration::from_millis(1)).await;
    write(count, number + 1)
}

fn read(count: &Path) -> Result<u64> {
    Ok(fs::read_to_string(count)?.trim().parse()?)
}

/// Overwrites the number in its place, so that nobody ever finds an empty file.
fn write(count: &Path, number: u64) -> Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(count)?;
    Ok(file.write_all(format!("{number:10}\n").as_bytes())?)
}

/// A line to the parent; if it is gone, there is nothing left to do.
fn tell(line: &str) {
    if writeln!(io::stdout(), "{line}").is_err() {
        process::exit(1);
    }
}

/// A byte from the parent starts each part. Its end of the pipe closes with it, whatever it dies
/// of; then this program ends as well.
fn starting_shots() -> Receiver<()> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        while io::stdin().read_exact(&mut [0]).is_ok() {
            let _ = sender.send(());
        }
        process::exit(1);
    });
    receiver
}

/// Nanoseconds on a clock that is the same for all programs on a machine, so that their times can
/// be compared. std's `Instant` reads that clock too, but cannot be sent to another program, and
/// the time of day may jump.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

// What the parent does.

/// Runs it all; whether everything was as it should be.
fn demo() -> Result<bool> {
    println!(
        "{PROGRAMS} programs add 1 to a number in a file, again and again: read it, wait a \
         millisecond, write it back.\nWhen two of them do so at once, both write the same number, \
         and one count is lost.\n"
    );
    let redis = server::RedisServer::builder().try_start()?;
    let count = redis.dir().join("count"); // a directory that is removed however we end
    let mut team = Team::start(&redis.url(), &count)?;
    println!("Started a Redis server of our own (port {}) and {team}.\n", redis.port());

    team.wait_ready()?;
    write(&count, 0)?;
    team.fire()?;
    team.wait_ready()?;
    let (expected, found) = (PROGRAMS as u64 * TURNS_WITHOUT, read(&count)?);
    println!("Without a lock");
    println!("  They counted {expected} times, but the file says {found}.\n");

    println!("With a lock");
    println!("  Each program locks, counts and unlocks, so only one counts at a time.");
    write(&count, 0)?;
    team.fire()?;
    let run = watch(&mut team)?;
    println!();
    report(&run, read(&count)?)
}

/// The time that a program was inside the locked section.
#[derive(Clone, Copy, PartialEq)]
struct Visit {
    program: usize,
    entered: u64,
    left: u64,
}

struct Run {
    /// In order of entry, the victim's last one among them.
    visits: Vec<Visit>,
    /// From its entry to its death.
    victim: Visit,
}

/// Follows the programs until the last has ended, and kills one of them on the way.
fn watch(team: &mut Team) -> Result<Run> {
    let progress = Progress::new((PROGRAMS as u64 - 1) * TURNS + VICTIM_TURNS);
    let (mut visits, mut victim, mut freed) = (Vec::new(), None, false);
    let mut running = PROGRAMS;
    while running > 0 {
        let (program, line) = team.next()?;
        let words: Vec<_> = line.as_deref().unwrap_or_default().split(' ').collect();
        match words[..] {
            ["turn", entered, left] => {
                let visit = Visit { program, entered: entered.parse()?, left: left.parse()? };
                visits.push(visit);
                let after = victim.filter(|victim: &Visit| !freed && visit.entered > victim.left);
                if let Some(victim) = after {
                    freed = true;
                    let wait = seconds(victim.left, visit.entered);
                    progress.say(&format!(
                        "  After {wait:.2} s more, program {program} has the lock, and they count on.\n"
                    ));
                }
                progress.step();
            }
            ["holding", entered] => {
                let visit = kill_holder(team, program, entered.parse()?, &progress)?;
                visits.push(visit);
                victim = Some(visit);
            }
            [""] => {
                team.check_end(program)?;
                running -= 1;
            }
            _ => return Err(format!("program {program} said {line:?}").into()),
        }
    }
    progress.end();
    visits.sort_by_key(|visit| visit.entered);
    Ok(Run { visits, victim: victim.ok_or("nobody was killed")? })
}

fn kill_holder(
    team: &mut Team,
    program: usize,
    entered: u64,
    progress: &Progress,
) -> Result<Visit> {
    let child = &mut team.members[program - 1].child;
    let pid = child.id();
    let lease = LEASE.as_secs();
    progress.say(&format!(
        "\n  Program {program} has locked, and stands still for longer than the lease of {lease} s.\n  \
         As long as it lives, its lease is renewed: the others wait."
    ));
    thread::sleep(STANDSTILL);
    child.kill()?;
    child.wait()?;
    let killed = now();
    let stood = seconds(entered, killed);
    progress.say(&format!(
        "  After {stood:.1} s it is killed (kill -9 {pid}), before it wrote its number.\n  \
         It cannot unlock any more: the lease, no longer renewed, runs out in Redis."
    ));
    Ok(Visit { program, entered, left: killed })
}

/// Prints what came of it; whether all is well.
fn report(run: &Run, found: u64) -> Result<bool> {
    let Run { visits, victim } = run;
    let expected = (PROGRAMS as u64 - 1) * TURNS + VICTIM_TURNS;

    // Whoever enters before all earlier ones have left overlaps with one of them.
    let (mut overlaps, mut last_left) = (0, 0);
    for visit in visits {
        overlaps += usize::from(visit.entered < last_left);
        last_left = last_left.max(visit.left);
    }

    let next = visits.iter().find(|visit| visit.entered > victim.left);
    let next = next.ok_or("nobody had the lock after the kill")?;
    let wait = seconds(victim.left, next.entered);
    let in_time = wait < (LEASE + LENIENCE).as_secs_f64();

    let mut gaps: Vec<_> = visits
        .windows(2)
        .filter(|pair| pair[0].program != pair[1].program && pair[0] != *victim)
        .map(|pair| seconds(pair[0].left, pair[1].entered))
        .collect();
    gaps.sort_by(f64::total_cmp);
    let median = gaps.get(gaps.len() / 2).ok_or("no hand-overs")? * 1000.0;
    let standstill = seconds(victim.entered, next.entered);
    let time = seconds(visits[0].entered, last_left) - standstill;

    let lease = LEASE.as_secs();
    println!("Result");
    line("counts", &format!("{found} in the file, {expected} expected"), found == expected);
    line(
        "overlaps",
        &format!("{overlaps} in {} visits, by their times", visits.len()),
        overlaps == 0,
    );
    line("kill", &format!("the others waited {wait:.2} s, the lease is {lease} s"), in_time);
    println!(
        "  {:<12}{:.0} a second from one program to another, {median:.1} ms each (median)",
        "hand-overs",
        gaps.len() as f64 / time
    );
    Ok(found == expected && overlaps == 0 && in_time)
}

fn line(what: &str, found: &str, ok: bool) {
    println!("  {what:<12}{found:<48}{}", if ok { "ok" } else { "WRONG" });
}

fn seconds(from: u64, to: u64) -> f64 {
    (to as f64 - from as f64) / 1e9
}

/// The programs: this executable, started several times over.
struct Team {
    members: Vec<Member>,
    /// What program (from 1) said which line; no line: it has ended.
    lines: Receiver<(usize, Option<String>)>,
    deadline: Instant,
}

struct Member {
    child: Child,
    stdin: ChildStdin,
}

impl Team {
    fn start(url: &str, count: &Path) -> Result<Self> {
        let (sender, lines) = channel();
        let deadline = Instant::now() + BOUND;
        let mut team = Self { members: Vec::new(), lines, deadline };
        for program in 1..=PROGRAMS {
            let mut child = Command::new(env::current_exe()?)
                .args(["worker", &program.to_string(), url])
                .arg(count)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let stdin = child.stdin.take().ok_or("no pipe")?;
            let stdout = BufReader::new(child.stdout.take().ok_or("no pipe")?);
            team.members.push(Member { child, stdin });
            let sender = sender.clone();
            thread::spawn(move || {
                for line in stdout.lines().map_while(io::Result::ok) {
                    let _ = sender.send((program, Some(line)));
                }
                let _ = sender.send((program, None));
            });
        }
        Ok(team)
    }

    fn next(&mut self) -> Result<(usize, Option<String>)> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        self.lines.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout => format!("not done after {} s", BOUND.as_secs()).into(),
            RecvTimeoutError::Disconnected => "all programs have ended".into(),
        })
    }

    fn wait_ready(&mut self) -> Result<()> {
        for _ in 0..PROGRAMS {
            match self.next()? {
                (_, Some(line)) if line == "ready" => {}
                (program, line) => {
                    return Err(format!("program {program} said {line:?}, not ready").into());
                }
            }
        }
        Ok(())
    }

    /// Starts the next part.
    fn fire(&mut self) -> Result<()> {
        for member in &mut self.members {
            member.stdin.write_all(b"\n")?;
        }
        Ok(())
    }

    /// The victim ends by its signal, all others well.
    fn check_end(&mut self, program: usize) -> Result<()> {
        let status = self.members[program - 1].child.wait()?;
        let killed = program == VICTIM && status.signal() == Some(9);
        if status.success() || killed {
            return Ok(());
        }
        Err(format!("program {program} ended with {status}").into())
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        for Member { child, .. } in &mut self.members {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl std::fmt::Display for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pids: Vec<_> = self.members.iter().map(|one| one.child.id().to_string()).collect();
        write!(f, "{PROGRAMS} programs (processes {})", pids.join(", "))
    }
}

/// A bar on a terminal, else a line now and then; both on standard error.
struct Progress(ProgressBar);

impl Progress {
    fn new(length: u64) -> Self {
        let bar = ProgressBar::new(length);
        bar.set_style(
            ProgressStyle::with_template("  {bar:50} {pos} of {len}").expect("it is valid"),
        );
        Self(bar)
    }

    fn step(&self) {
        self.0.inc(1);
        let (position, length) = (self.0.position(), self.0.length().unwrap_or_default());
        if self.0.is_hidden() && position % (length / 5).max(1) == 0 {
            eprintln!("  {position} of {length}");
        }
    }

    /// Prints a line above the bar.
    fn say(&self, line: &str) {
        self.0.suspend(|| println!("{line}"));
    }

    fn end(&self) {
        self.0.finish();
    }
}
