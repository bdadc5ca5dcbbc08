"""WORKLOAD URL SECONDS TASKS: one turn of redis-py's asyncio Lock, as benches/peers/README.md says.

Defaults but for the lease: it polls every 0.1 s for as long as it takes.
"""

import array
import asyncio
import json
import os
import sys
from time import monotonic_ns as now  # CLOCK_MONOTONIC

import redis
import redis.asyncio

LEASE = 30
WATCH_EVERY = 200_000_000
GATHERING = 0.5


class Seen:
    """What one task saw."""

    def __init__(self):
        self.times, self.sections, self.waits_since = [], [], None


async def uncontended(client, seconds, tasks):
    until = now() + int(seconds * 1e9)

    async def task(n):
        seen = Seen()
        lock = client.lock(f"bench:own:{os.getpid()}:{n}", timeout=LEASE)
        began = now()
        while began < until:
            await lock.acquire()
            await lock.release()
            done = now()
            seen.times.append(done - began)
            began = done
        return seen

    return await asyncio.gather(*(task(n) for n in range(tasks)))


async def hot(client, name, seconds, tasks, once=False, drain=False):
    """One lock for all, which each wants over and over, or once.

    Tasks that wait when the time is over are left behind, unless drain.
    """
    until = now() + int(seconds * 1e9)
    inside, overlaps, watch_next = False, 0, now()

    async def task(seen):
        nonlocal inside, overlaps, watch_next
        lock = client.lock(name, timeout=LEASE)
        began = now()
        while began < until:
            seen.waits_since = began
            await lock.acquire()
            if inside:
                overlaps += 1
            inside = True
            enter = leave = now()
            if enter >= watch_next:
                watch_next = enter + WATCH_EVERY
                await asyncio.sleep(0.001)
                leave = now()
            if enter < until:
                seen.times.append(enter - began)
                seen.sections.append((enter, leave))
                seen.waits_since = None
            inside = False
            await lock.release()
            if once:
                return
            began = now()

    seen = [Seen() for _ in range(tasks)]
    running = [asyncio.create_task(task(one)) for one in seen]
    left = max(0, until - now()) / 1e9
    await (asyncio.wait(running, timeout=left) if once else asyncio.sleep(left))
    if drain:
        await asyncio.wait(running, timeout=5)
    return seen, overlaps


async def drain(client, seconds, tasks):
    """Each waits once, for a lock that is held while they gather."""
    held = client.lock("bench:drain", timeout=LEASE)
    await held.acquire()

    async def release():
        await asyncio.sleep(GATHERING)
        released = now()
        await held.release()
        return released

    releasing = asyncio.create_task(release())
    seen, overlaps = await hot(client, "bench:drain", GATHERING + seconds, tasks, once=True)
    return seen, overlaps, await releasing


async def handoff(client, lines):
    """Waits for the lock whenever a line comes in, and says `in` when it has it."""
    lock = client.lock("bench:ball", timeout=LEASE)
    seen = Seen()
    while await lines.readline():
        began = now()
        await lock.acquire()
        enter = now()
        print("in", flush=True)
        await asyncio.sleep(0.005)
        seen.times.append(enter - began)
        seen.sections.append((enter, now()))
        await lock.release()
    return seen


def report(workload, seen, seconds, overlaps):
    times = sorted(time for one in seen for time in one.times)
    sections = sorted(section for one in seen for section in one.sections)
    end = now()
    waiting = max((end - one.waits_since for one in seen if one.waits_since), default=0)

    def at(quantile):
        return times[int((len(times) - 1) * quantile)] / 1e3 if times else 0

    path = os.environ.get("SECTIONS")
    if path and workload != "uncontended":
        with open(path, "wb") as file:
            array.array("q", (edge for section in sections for edge in section)).tofile(file)
    served = [len(one.times) for one in seen]
    result = {
        "peer": "redis-py", "version": redis.__version__, "workload": workload,
        "ops": len(times), "seconds": round(seconds, 4),
        "p50_us": at(0.5), "p99_us": at(0.99), "longest_us": max(at(1), waiting / 1e3),
        "min_served": min(served), "max_served": max(served), "failed": 0, "overlaps": overlaps,
    }  # fmt: skip
    print(json.dumps(result), flush=True)


async def main():
    workload, url, seconds, tasks = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
    client = redis.asyncio.from_url(url, max_connections=2 * tasks + 10)  # 100 are too few for a256
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    warm_up = float(os.environ.get("WARMUP", 0.5))
    if workload == "hot":
        await hot(client, "bench:warm", warm_up, tasks, drain=True)
    else:
        await uncontended(client, warm_up, tasks)
    print("ready", flush=True)
    await lines.readline()
    start, overlaps = now(), 0
    if workload == "uncontended":
        seen = await uncontended(client, seconds, tasks)
    elif workload == "hot":
        seen, overlaps = await hot(client, "bench:hot", seconds, tasks)
    elif workload == "drain":
        seen, overlaps, start = await drain(client, seconds, tasks)
    else:
        seen = [await handoff(client, lines)]
    report(workload, seen, (now() - start) / 1e9, overlaps)
    os._exit(0)  # whoever still waits for a lock waits in vain


asyncio.run(main())
