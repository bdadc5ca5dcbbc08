// WORKLOAD URL SECONDS TASKS: one turn of node-redlock, as benches/peers/README.md says.
// Retries are its defaults: 10 of 200 ± 100 ms; an attempt that gives up is counted and made again.
import { readFileSync, writeFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { setTimeout as pause } from "node:timers/promises";
import { Redis } from "ioredis";
// Its ESM build is marked as CommonJS: some ways of loading wrap it once more.
import * as redlock from "redlock";

const Redlock = redlock.default?.default ?? redlock.default;
const LEASE = 30_000;
const WATCH_EVERY = 200_000_000n;
const GATHERING = 0.5; // seconds
const [workload, url, secondsText, tasksText] = process.argv.slice(2);
const seconds = Number(secondsText);
const tasks = Number(tasksText);
const now = () => process.hrtime.bigint(); // CLOCK_MONOTONIC
const nanos = (seconds) => BigInt(Math.round(seconds * 1e9));

const client = new Redis(url);
const locks = new Redlock([client]);
locks.on("error", () => {}); // a refusal is told here, too

const fresh = () => ({ times: [], sections: [], failed: 0, waitsSince: null });

async function take(name, seen) {
  try {
    return await locks.acquire([name], LEASE);
  } catch {
    seen.failed += 1;
    return null;
  }
}

async function uncontended(time) {
  const until = now() + nanos(time);
  const task = async (name) => {
    const seen = fresh();
    for (let began = now(); began < until; ) {
      const lock = await take(name, seen);
      if (lock) await lock.release();
      const done = now();
      seen.times.push(Number(done - began));
      began = done;
    }
    return seen;
  };
  return Promise.all(Array.from({ length: tasks }, (_, n) => task(`bench:own:${process.pid}:${n}`)));
}

// One lock for all, which each wants over and over, or once. Tasks that wait when the time is over
// are left behind, unless drain.
async function hot(name, time, once, drain) {
  const until = now() + nanos(time);
  const all = [];
  const shared = { inside: false, overlaps: 0, watchNext: now() };
  const task = async (seen) => {
    for (let began = now(); began < until; began = now()) {
      seen.waitsSince = began;
      const lock = await take(name, seen);
      if (!lock) continue;
      if (shared.inside) shared.overlaps += 1;
      shared.inside = true;
      const enter = now();
      let leave = enter;
      if (enter >= shared.watchNext) {
        shared.watchNext = enter + WATCH_EVERY;
        await pause(1);
        leave = now();
      }
      if (enter < until) {
        seen.times.push(Number(enter - began));
        seen.sections.push([enter, leave]);
        seen.waitsSince = null;
      }
      shared.inside = false;
      await lock.release();
      if (once) return;
    }
  };
  const running = [];
  for (let n = 0; n < tasks; n++) {
    const seen = fresh();
    all.push(seen);
    running.push(task(seen));
  }
  const left = pause(Math.max(0, Number(until - now()) / 1e6));
  await (once ? Promise.race([Promise.all(running), left]) : left);
  if (drain) await Promise.race([Promise.all(running), pause(5000)]);
  return [all, shared.overlaps];
}

// Each waits once, for a lock that is held while they gather.
async function drain() {
  const held = await take("bench:drain", fresh());
  let released = now();
  const release = async () => {
    await pause(GATHERING * 1e3);
    released = now();
    await held.release();
  };
  const done = release();
  const [all, overlaps] = await hot("bench:drain", GATHERING + seconds, true, false);
  await done;
  return [all, overlaps, released];
}

// Waits for the lock whenever a line comes in, and says `in` when it has it.
async function handoff(lines) {
  const seen = fresh();
  while (!(await lines.next()).done) {
    const began = now();
    let lock = null;
    while (!lock) lock = await take("bench:ball", seen);
    const enter = now();
    console.log("in");
    await pause(5);
    seen.times.push(Number(enter - began));
    seen.sections.push([enter, now()]);
    await lock.release();
  }
  return seen;
}

function report(all, elapsed, overlaps) {
  const times = Float64Array.from(all.flatMap((seen) => seen.times)).sort();
  const sections = all.flatMap((seen) => seen.sections).sort((a, b) => Number(a[0] - b[0]));
  const at = (quantile) =>
    times.length ? times[Math.floor((times.length - 1) * quantile)] / 1e3 : 0;
  const served = all.map((seen) => seen.times.length);
  const end = now();
  const waiting = all.map((seen) => (seen.waitsSince ? Number(end - seen.waitsSince) / 1e3 : 0));
  if (process.env.SECTIONS && workload !== "uncontended") {
    writeFileSync(process.env.SECTIONS, Buffer.from(BigInt64Array.from(sections.flat()).buffer));
  }
  const manifest = new URL("node_modules/redlock/package.json", import.meta.url);
  const round = (figure) => Math.round(figure * 10) / 10;
  const result = {
    peer: "node-redlock",
    version: JSON.parse(readFileSync(manifest, "utf8")).version.replace(/^v/, ""),
    workload,
    ops: times.length,
    seconds: elapsed,
    p50_us: round(at(0.5)),
    p99_us: round(at(0.99)),
    longest_us: round(Math.max(at(1), ...waiting)),
    min_served: Math.min(...served),
    max_served: Math.max(...served),
    failed: all.reduce((sum, seen) => sum + seen.failed, 0),
    overlaps,
  };
  writeFileSync(1, JSON.stringify(result) + "\n");
}

const warmUp = Number(process.env.WARMUP ?? 0.5);
if (workload === "hot") await hot("bench:warm", warmUp, false, true);
else await uncontended(warmUp);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
console.log("ready");
await lines.next();
let start = now();
let [all, overlaps] = [[], 0];
if (workload === "uncontended") all = await uncontended(seconds);
else if (workload === "hot") [all, overlaps] = await hot("bench:hot", seconds, false, false);
else if (workload === "drain") [all, overlaps, start] = await drain();
else all = [await handoff(lines)];
report(all, Number(now() - start) / 1e9, overlaps);
process.exit(0); // whoever still waits for a lock waits in vain
