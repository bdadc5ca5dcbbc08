#!/usr/bin/env python3
"""Builds the drivers of leasehold and its peers and runs them side by side on one private Redis.

Peers take turns, in an order that changes with the round; every figure is the median of the rounds
with the least and the most. A peer that cannot be built or fails is a row that says so. Writes
nothing outside the target directory. See README.md here.
"""

import argparse
import array
import atexit
import functools
import heapq
import itertools
import json
import os
import platform
import queue
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
OUT = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "bench"
BUILT = OUT / "peers"

STARTED = time.monotonic()

# key: title, what the drivers call it, processes, tasks in each, seconds
WORKLOADS = {
    "a1": ("lock + unlock, a name of its own, 1 task", "uncontended", 1, 1, 1.0),
    "a16": ("lock + unlock, a name of its own, 16 tasks", "uncontended", 1, 16, 1.0),
    "a256": ("lock + unlock, a name of its own, 256 tasks", "uncontended", 1, 256, 1.0),
    "b": ("one hot lock, 64 tasks of one process, empty section", "hot", 1, 64, 1.5),
    "c": ("one hot lock, 4 processes of 16 tasks, empty section", "hot", 4, 16, 1.5),
    "d": ("unlock to the next holder in another process", "handoff", 2, 1, 2.0),
    # If they are not served by then, that is the result.
    "e": ("1,000 waiters on one lock, until each was served once", "drain", 1, 1000, 6.0),
}
WARM_UP = {"redisson": 5.0}  # of the driver itself, before its turn; a JVM needs long
PATIENCE = 600  # seconds for a step of a build: a registry that does not answer is no reason to hang
BALL_WARM_UP = {"redisson": 3.0}  # then the same for d, with the ball in the air
LEFT_OUT = {  # what a row cannot be
    "bare": {"b", "c", "e"},
    "tokio": {"a1", "a16", "a256", "c", "d", "e"},
}
BOUNDS = set(LEFT_OUT)  # no lock libraries: they are not compared to, only shown
# What a client may send by itself. The server also counts what scripts call; SET is of the client
# only where it is named here.
SENT = re.compile(r"eval|evalsha|s?subscribe|s?unsubscribe|psubscribe|ping|wait")
SENDS_SET = {"redsync", "rslock", "distributed-lock-redis", "redis-py"}


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--scale", type=float, default=1.0, help="of the length of turns")
    arguments.add_argument("--limit", type=float, default=660, help="seconds, without the builds")
    arguments.add_argument("--peers", help="some, with commas: leasehold,redisson,...")
    arguments.add_argument("--workloads", help="some, with commas: a1,a16,a256,b,c,d,e")
    options = arguments.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))

    commands, absent = build()
    if options.peers:
        wanted = options.peers.split(",")
        commands = {peer: commands[peer] for peer in commands if peer in wanted}
        absent = {peer: absent[peer] for peer in absent if peer in wanted}
    chosen = (options.workloads or ",".join(WORKLOADS)).split(",")
    chosen = [key for key in WORKLOADS if key in chosen]
    end = time.monotonic() + options.limit
    server = Server()
    atexit.register(server.stop)
    machine(server, options)
    results = {key: {} for key in chosen}
    for number in range(options.rounds):
        for workload in chosen:
            peers = [peer for peer in commands if workload not in LEFT_OUT.get(peer, ())]
            shift = number * len(peers) // options.rounds
            for peer in peers[shift:] + peers[:shift]:
                turns = results[workload].setdefault(peer, {})
                if time.monotonic() > end:
                    say(f"round {number + 1}, {workload}, {peer}: left out, the time is over")
                    turns[number] = cannot(peer, "not run: the time was over")
                elif given_up(turns):
                    turns[number] = turns[0]  # it will not be otherwise
                else:
                    say(f"round {number + 1} of {options.rounds}, {workload}, {peer}")
                    turn = Turn(server, commands[peer], peer, workload, options.scale)
                    turns[number] = turn.run()
    (OUT / "peers.json").write_text(json.dumps(results, indent=1))
    for workload, rows in results.items():
        for peer, why in absent.items():
            if workload not in LEFT_OUT.get(peer, ()):
                rows[peer] = {0: cannot(peer, why)}
        order = [*commands, *absent]
        results[workload] = dict(sorted(rows.items(), key=lambda row: order.index(row[0])))
        table(workload, results[workload])
    bars(results)
    charts(results)
    if any(turn.get("overlaps") for rows in results.values() for turn in rows.get("leasehold", {}).values()):
        sys.exit("leasehold did not exclude")


def cannot(peer, why):
    return {"peer": peer, "version": "–", "cannot": why}


def given_up(turns):
    """Whether the peer said in its first turn that it has no such thing."""
    return turns.get(0, {}).get("cannot", "").startswith("not applicable")


# ---- builds ---------------------------------------------------------------------------------------


def build():
    """What to run for each peer, and why there are some that cannot be run."""
    commands, absent, environment = {}, {}, dict(os.environ)
    for folder in ("rust", "redisson", "go", "python", "node"):
        shutil.copytree(HERE / folder, BUILT / folder, dirs_exist_ok=True)
    manifest = BUILT / "rust/Cargo.toml"
    manifest.write_text(manifest.read_text().replace('"../../.."', f'"{ROOT}"'))

    def attempt(peers, needs, *steps):
        why = [f"{tool} not found" for tool in needs if not shutil.which(tool)]
        for folder, *command in steps if not why else ():
            say(f"building {', '.join(peers)}: {os.path.basename(command[0])}")
            try:
                done = subprocess.run(
                    command, cwd=BUILT / folder, env=environment, stdin=subprocess.DEVNULL,
                    stdout=sys.stderr, timeout=PATIENCE,
                )  # fmt: skip
                why = ["it does not build"] if done.returncode else []
            except (OSError, subprocess.TimeoutExpired) as error:
                why = [f"it does not build: {type(error).__name__}"]
            if why:
                break
        if why:
            say(f"{', '.join(peers)}: left out, {why[0]}")
            absent.update({peer: f"not run: {why[0]}" for peer in peers})
        return not why

    def offer(peer, *command):
        commands[peer] = [str(part) for part in command]

    leasehold_version()  # of what is built here, whatever is committed later
    target = OUT / "cargo"
    rust = ("rust", "cargo", "build", "--release", "--quiet", "--target-dir", str(target))
    of_rust = ["rslock", "async-redis-lock", "distributed-lock-redis"]
    if not attempt(["leasehold", *of_rust], ["cargo"], rust):
        sys.exit(1)
    offer("leasehold", target / "release/peers", "leasehold")
    offer("bare", target / "release/peers", "bare")
    offer("tokio", target / "release/peers", "tokio")
    maven = ("redisson", "mvn", "-q", "-B", "-Dstyle.color=never", "package", "dependency:copy-dependencies")
    if attempt(["redisson"], ["java", "mvn"], maven):
        made = BUILT / "redisson/target"
        offer("redisson", "java", "-cp", f"{made}/classes:{made}/dependency/*", "bench.Driver")
    if attempt(["rueidislock", "redsync"], ["go"], ("go", "go", "build", "-o", "driver", ".")):
        offer("rueidislock", BUILT / "go/driver", "rueidislock")
        offer("redsync", BUILT / "go/driver", "redsync")
    for peer in of_rust:
        offer(peer, target / "release/peers", peer)
    python = BUILT / "python/venv/bin/python"
    install = ("install", "-q", "--disable-pip-version-check", "-r", "requirements.txt")
    steps = [("python", sys.executable, "-m", "venv", "venv")] if not python.exists() else []
    if attempt(["redis-py"], [], *steps, ("python", str(python), "-m", "pip", *install)):
        offer("redis-py", python, BUILT / "python/driver.py")
    npm = ("node", "npm", "ci", "--silent", "--no-audit", "--no-fund")
    if attempt(["node-redlock"], ["node", "npm"], npm):
        offer("node-redlock", "node", BUILT / "node/driver.mjs")
    return commands, absent


# ---- the server -----------------------------------------------------------------------------------


class Server:
    """A private Redis. It ends when this process ends, whatever this process dies of."""

    KEEPER = '"$@" </dev/null >/dev/null & server=$!; cat >/dev/null; kill -9 $server'

    def __init__(self):
        program = os.environ.get("LEASEHOLD_REDIS_SERVER") or shutil.which("redis-server")
        program = program or shutil.which("valkey-server") or sys.exit("no redis-server on PATH")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/"
        settings = ["--save", "", "--appendonly", "no", "--loglevel", "warning"]
        command = [program, "--bind", "127.0.0.1", "--port", str(self.port), *settings]
        self.keeper = subprocess.Popen(
            ["sh", "-c", self.KEEPER, "keeper", *command, "--dir", str(OUT)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        until = time.monotonic() + 10
        while True:
            try:
                self.socket = socket.create_connection(("127.0.0.1", self.port), 30)
                break
            except OSError:
                if time.monotonic() > until:
                    self.stop()
                    sys.exit("redis-server does not start")
                time.sleep(0.02)
        self.file = self.socket.makefile("rb")
        script = lambda verb: (ROOT / f"lua/lock/{verb}.lua").read_text()
        self.acquire = self.command("SCRIPT", "LOAD", script("acquire"))
        self.release = self.command("SCRIPT", "LOAD", script("release"))
        self.version = self.info("server")["redis_version"]

    def stop(self):
        self.keeper.stdin.close()
        self.keeper.wait()

    def command(self, *words):
        parts = [f"*{len(words)}\r\n".encode()]
        for word in words:
            word = str(word).encode()
            parts.append(b"$%d\r\n%b\r\n" % (len(word), word))
        self.socket.sendall(b"".join(parts))
        return self.reply()

    def reply(self):
        line = self.file.readline().decode().strip()
        kind, rest = line[0], line[1:]
        if kind == "-":
            raise RuntimeError(rest)
        if kind == "$":
            return self.file.read(int(rest) + 2)[:-2].decode() if int(rest) >= 0 else None
        if kind == "*":
            return [self.reply() for _ in range(int(rest))]
        return int(rest) if kind == ":" else rest

    def info(self, section):
        lines = self.command("INFO", section).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def cpu(self):
        info = self.info("cpu")
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])

    def sent(self, peer):
        """Commands that clients have sent, without those that scripts called."""
        total = 0
        for name, text in self.info("commandstats").items():
            name = name.removeprefix("cmdstat_")
            if SENT.fullmatch(name) or (name == "set" and peer in SENDS_SET):
                total += int(text.split(",")[0].removeprefix("calls="))
        return total


# ---- turns ----------------------------------------------------------------------------------------


class Driver:
    """One process of a peer; its lines come as a queue, None at the end."""

    def __init__(self, command, environment, log):
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        )
        atexit.register(self.kill)
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line.decode().strip())
        self.lines.put(None)

    def line(self, until, what):
        try:
            return self.lines.get(timeout=max(0, until - time.monotonic()))
        except queue.Empty:
            raise TimeoutError(f"{what} in time") from None

    def tell(self, text):
        try:
            self.process.stdin.write(text.encode() + b"\n")
            self.process.stdin.flush()
        except (OSError, ValueError):
            pass  # it has ended: its last line says why

    def hush(self):
        try:
            self.process.stdin.close()
        except OSError:
            pass

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        atexit.unregister(self.kill)


class Turn:
    def __init__(self, server, command, peer, workload, scale):
        _, self.kind, self.processes, self.tasks, seconds = WORKLOADS[workload]
        self.server, self.command, self.peer = server, command, peer
        self.seconds = seconds * scale
        self.warm_up = WARM_UP.get(peer, 0.5) * min(1, scale)
        self.ball_warm_up = BALL_WARM_UP.get(peer, 1.0) * min(1, scale)

    def run(self):
        self.server.command("FLUSHALL")
        log = (OUT / "peers.log").open("ab")
        sections = [OUT / f"sections-{n}" for n in range(self.processes)]
        drivers = []
        try:
            for path in sections:
                path.unlink(missing_ok=True)
                environment = dict(
                    os.environ,
                    WARMUP=str(self.warm_up),
                    SECTIONS=str(path),
                    ACQUIRE=self.server.acquire,
                    RELEASE=self.server.release,
                    LEASEHOLD_VERSION=leasehold_version(),
                )
                arguments = [self.kind, self.server.url, str(self.seconds), str(self.tasks)]
                drivers.append(Driver([*self.command, *arguments], environment, log))
            return self.measure(drivers, sections)
        except Exception as error:  # whatever it is, the others are to have their turns
            return cannot(self.peer, f"failed: {error}")
        finally:
            for driver in drivers:
                driver.kill()
            for path in sections:
                path.unlink(missing_ok=True)
            log.close()

    def measure(self, drivers, sections):
        until = time.monotonic() + self.warm_up + 30
        for driver in drivers:
            line = driver.line(until, "it was not ready")
            if line and line.startswith("{"):
                return json.loads(line)  # it cannot
            if line != "ready":
                raise RuntimeError("ended before its turn, see peers.log")
        measured_from = 0
        if self.kind == "handoff":
            for driver in drivers:
                driver.tell("go")
            drivers[0].tell("turn")
            self.pass_on(drivers, self.ball_warm_up)
            measured_from = time.monotonic_ns()
        self.server.command("CONFIG", "RESETSTAT")
        cpu = self.server.cpu()
        if self.kind == "handoff":
            self.pass_on(drivers, self.seconds)
        else:
            for driver in drivers:
                driver.tell("go")
            if self.kind == "drain":
                results = [self.result(driver) for driver in drivers]
            else:
                time.sleep(self.seconds)
        sent, cpu = self.server.sent(self.peer), self.server.cpu() - cpu
        for driver in drivers:
            driver.hush()
        if self.kind != "drain":
            results = [self.result(driver) for driver in drivers]
        ops = sum(result["ops"] for result in results)
        turn = dict(results[0], ops=ops, shares=[result["ops"] for result in results])
        turn["min_served"] = min(result["min_served"] for result in results)
        turn["max_served"] = max(result["max_served"] for result in results)
        for key in ("failed", "overlaps"):
            turn[key] = sum(result[key] for result in results)
        for key in ("longest_us", "seconds"):
            turn[key] = max(result[key] for result in results)
        if self.kind != "uncontended":
            gaps, overlaps = compare(sections, self.kind == "handoff", measured_from)
            turn["overlaps"] += overlaps
            turn["p50_us"], turn["p99_us"] = quantile(gaps, 0.5) / 1e3, quantile(gaps, 0.99) / 1e3
            if self.kind == "handoff":
                ops = turn["ops"] = len(gaps)
                turn["seconds"] = self.seconds
                turn["quantiles"] = [quantile(gaps, n / 200) / 1e3 for n in range(1, 200)]
            if self.kind == "drain":
                turn["rest"], turn["limit"] = self.tasks - ops, self.seconds
                ops = self.tasks  # what was sent was sent for all of them
        turn["rate"] = ops / turn["seconds"]
        turn["commands"] = sent / ops if ops else 0
        turn["server_us"] = cpu * 1e6 / ops if ops else 0
        return turn

    def pass_on(self, drivers, seconds):
        """Gives the turn to the one as soon as the other is in."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for driver, other in (drivers, reversed(drivers)):
                try:
                    line = driver.lines.get(timeout=0.001)
                except queue.Empty:
                    continue
                if line is None:
                    raise RuntimeError("ended in its turn, see peers.log")
                other.tell("turn")

    def result(self, driver):
        until = time.monotonic() + 45
        while (line := driver.line(until, "it did not end")) is not None:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError("ended without a result, see peers.log")


def compare(paths, between_processes, measured_from):
    """From when a section was left to when the next was entered, and how many overlapped.

    All processes took their times from the one monotonic clock of this machine.
    """
    merged = []
    for number, path in enumerate(paths):
        edges = array.array("q")
        if path.exists():
            edges.frombytes(path.read_bytes())
        merged.append(zip(edges[0::2], edges[1::2], itertools.repeat(number)))
    gaps, overlaps = array.array("q"), 0
    last_leave, last_process = None, None
    for enter, leave, process in heapq.merge(*merged):
        if last_leave is not None:
            overlaps += enter < last_leave
            if enter > measured_from and not (between_processes and process == last_process):
                gaps.append(enter - last_leave)
        last_leave, last_process = max(leave, last_leave or 0), process
    return sorted(gaps), overlaps


def quantile(ordered, share):
    return ordered[int((len(ordered) - 1) * share)] if ordered else 0


# ---- what is printed ------------------------------------------------------------------------------


HEADS = {
    "uncontended": ["pairs/s", "leasehold is × as fast", "p50 µs", "p99 µs", "commands a pair", "Redis CPU µs a pair"],
    "hot": [
        "acquisitions/s", "leasehold is × as fast", "hand-over p50 µs", "p99 µs", "commands each",
        "least/most served", "longest wait ms", "gave up", "overlaps",
    ],
    "handoff": [
        "p50 µs", "× leasehold's", "p99 µs", "hand-overs", "commands each", "overlaps",
    ],
    "drain": [
        "ms until all were served", "× leasehold's", "not served in time", "commands each",
        "gave up", "overlaps",
    ],
}  # fmt: skip


def table(workload, rows):
    title, kind, processes, _, _ = WORKLOADS[workload]
    print(f"\n### ({workload}) {title}\n")
    ours = {n: turn for n, turn in rows.get("leasehold", {}).items() if not turn.get("cannot")}
    heads = list(HEADS[kind])
    if processes > 2:
        heads.insert(6, "share, 1 is fair")
    lines = [["peer", "version", *heads]]
    for peer, turns in rows.items():
        good = {n: turn for n, turn in turns.items() if not turn.get("cannot")}
        any_turn = next(iter((good or turns).values()))
        cells = [peer, any_turn["version"]]
        if not good:
            lines.append([*cells, any_turn["cannot"], *[""] * (len(heads) - 1)])
            continue

        def of(key, scale=1.0, good=good):
            return show([turn[key] * scale for turn in good.values()])

        def total(key, good=good):
            return str(sum(turn[key] for turn in good.values()))

        ratio = ratios(ours, good, kind)
        ratio = "1" if peer == "leasehold" else show(ratio) if ratio else "–"
        if kind == "uncontended":
            cells += [of("rate"), ratio, of("p50_us"), of("p99_us")]
            cells += [of("commands"), of("server_us")]
        elif kind == "hot":
            even = [turn["min_served"] / max(1, turn["max_served"]) for turn in good.values()]
            cells += [of("rate"), ratio, of("p50_us"), of("p99_us"), of("commands"), show(even)]
            if processes > 2:
                shares = [
                    share * processes / max(1, turn["ops"])
                    for turn in good.values()
                    for share in turn["shares"]
                ]
                cells.append(f"{min(shares):.2f}–{max(shares):.2f}")
            cells += [of("longest_us", 1e-3), total("failed"), total("overlaps")]
        elif kind == "drain":
            all_served = not any(turn["rest"] for turn in good.values())
            limit = f"> {any_turn['limit'] * 1e3:.0f}"
            cells.append(of("seconds", 1e3) if all_served else limit)
            cells += [ratio if all_served else f"> {ratio}", of("rest")]
            cells += [of("commands"), total("failed"), total("overlaps")]
        else:
            cells += [of("p50_us"), ratio, of("p99_us")]
            cells += [total("ops"), of("commands"), total("overlaps")]
        if len(good) < len(turns):
            cells[0] += f" ({len(good)} of {len(turns)} turns)"
        lines.append(cells)
    markdown(lines)


def ratios(ours, theirs, kind):
    """How many times better leasehold was, round by round."""
    pairs = [(ours[n], turn) for n, turn in theirs.items() if n in ours]
    key = {"handoff": "p50_us", "drain": "seconds"}.get(kind)
    if key:
        return [turn[key] / our[key] for our, turn in pairs if our[key]]
    return [our["rate"] / turn["rate"] for our, turn in pairs if turn["rate"]]


def markdown(lines):
    """A table that is readable as plain text, too."""
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    for number, line in enumerate(lines):
        print("| " + " | ".join(f"{cell:<{width}}" for cell, width in zip(line, widths)) + " |")
        if number == 0:
            print("|-" + "-|-".join("-" * width for width in widths) + "-|")


def bars(results):
    """What is asked for beside what came out. Nothing fails by it."""
    lines = [["bar", "asked", "measured", ""]]

    def add(workload, what, bound, wanted=lambda peer: True, kind="rate"):
        rows = results.get(workload, {})
        good = {
            peer: {n: turn for n, turn in turns.items() if not turn.get("cannot")}
            for peer, turns in rows.items()
        }
        ours, least = good.pop("leasehold", {}), None
        for peer, turns in good.items():
            if peer in BOUNDS or not wanted(peer):
                continue
            found = ratios(ours, turns, kind)
            if found and (least is None or statistics.median(found) < least[0]):
                least = statistics.median(found), peer
        if least:
            verdict = "ok" if least[0] >= bound else "**missed**"
            lines.append([what, f"≥ {bound}", f"{least[0]:.3g} ({least[1]})", verdict])
        elif workload in results:
            lines.append([what, f"≥ {bound}", "–", "not measured"])

    only_redisson = lambda peer: peer == "redisson"
    add("a1", "(a) 1 task: a peer's p50 / leasehold's, the nearest peer", 1, kind="handoff")
    add("a256", "(a) 256 tasks: leasehold / Redisson, pairs/s", 4, only_redisson)
    add("a256", "(a) 256 tasks: leasehold / the nearest peer, pairs/s", 4)
    add("b", "(b) leasehold / Redisson, acquisitions/s", 20, only_redisson)
    add("b", "(b) leasehold / the nearest peer, acquisitions/s", 20)
    add("c", "(c) leasehold / Redisson, hand-overs/s", 10, only_redisson)
    print("\n### Bars\n")
    markdown(lines)


def charts(results):
    """By the bench `uncontended`, which can draw. A chart less is no reason to fail."""
    medians = lambda turns, key: statistics.median(
        [turn[key] for turn in turns.values() if not turn.get("cannot")] or [0]
    )
    rows = [
        (peer, tasks, medians(turns, "rate"))
        for tasks in (1, 16, 256)
        for peer, turns in results.get(f"a{tasks}", {}).items()
    ]
    title = "Uncontended lock + unlock, a lock for each task"
    draw("peers-throughput", rows, title, "tasks", "pairs a second", "log")
    rows = []
    for peer, turns in results.get("d", {}).items():
        good = [turn["quantiles"] for turn in turns.values() if turn.get("quantiles")]
        for at, figures in enumerate(zip(*good)):
            rows.append((peer, statistics.median(figures), (at + 1) / 2))
    title, y = "Unlock to the next holder in another process", "% that took no longer"
    draw("peers-handover", rows, title, "µs", y, "linear")


def draw(name, rows, *labels):
    rows = [row for row in rows if row[1] > 0 and row[2] > 0]
    if not rows:
        return
    file = OUT / f"{name}.tsv"
    file.write_text("".join(f"{line}\t{x}\t{y}\n" for line, x, y in rows))
    environment = dict(os.environ)
    environment.setdefault("BENCH_OUT", str(OUT))
    command = ["cargo", "bench", "-q", "--locked", "--bench", "uncontended", "--", "chart", str(file)]
    try:
        sys.stdout.flush()
        subprocess.run([*command, name, *labels], cwd=ROOT, env=environment, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        say(f"{name}: not drawn, {error}")


def show(figures):
    """median (least–most)"""
    median = statistics.median(figures)
    if not any(figures):
        return "0"
    digits = 0 if median >= 100 else 1 if median >= 10 else 2 if median >= 0.1 else 4
    least, most = min(figures), max(figures)
    return f"{median:.{digits}f} ({least:.{digits}f}–{most:.{digits}f})"


def machine(server, options):
    """What ran where; the machine itself is described by script/bench."""
    runtimes = {"rustc": ["rustc", "-V"], "java": ["java", "-version"], "go": ["go", "version"]}
    runtimes |= {"node": ["node", "-v"]}
    print("\n## leasehold and its peers, side by side\n")
    versions = [f"Redis {server.version}"]
    for name, command in runtimes.items():
        if shutil.which(command[0]):
            done = subprocess.run(command, capture_output=True, text=True)
            said = (done.stdout + done.stderr).splitlines()
            versions.append(f"node {said[0]}" if name == "node" and said else said[0] if said else name)
    versions.append(f"Python {platform.python_version()}")
    print(f"{'; '.join(versions)}. Median (least–most) of {options.rounds} interleaved rounds;")
    print("ratios are taken round by round.", flush=True)


@functools.cache
def leasehold_version():
    version = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M).group(1)
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(git, capture_output=True, text=True)
    return f"{version} ({done.stdout.strip()})" if done.returncode == 0 else version


def say(text):
    print(f"{time.monotonic() - STARTED:5.0f} s  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
