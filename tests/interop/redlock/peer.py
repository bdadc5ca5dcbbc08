"""A Redlock of another library on the same servers, told what to do line by line.

    peer.py redis-py|pottery NAME PORT...

try          "ok" if it got the lock, else "no"
unlock       "ok" if it still had it
count FILE N adds N to the number in FILE, one by one, each under the lock; then "ok"
"""

import logging
import random
import secrets
import sys
import time

import redis

kind, name, *ports = sys.argv[1:]
masters = [redis.Redis(port=int(port), socket_timeout=1) for port in ports]
logging.disable(logging.CRITICAL)


class ByHand:
    """redis-py has the lock of one server: on each of them with one token, it is a Redlock."""

    def __init__(self):
        self.locks = [m.lock(name, timeout=10, thread_local=False) for m in masters]

    def take(self):
        token = secrets.token_hex(20)
        got = sum(self.try_one(lock, token) for lock in self.locks)
        if 2 * got > len(self.locks):
            return True
        self.give()
        return False

    @staticmethod
    def try_one(lock, token):
        try:
            return lock.acquire(blocking=False, token=token)
        except redis.exceptions.ConnectionError:
            return False

    def give(self):
        released = 0
        for lock in self.locks:
            try:
                lock.release()
                released += 1
            except (redis.exceptions.LockError, redis.exceptions.ConnectionError):
                pass
        return 2 * released > len(self.locks)


class Pottery:
    """Its keys are named `redlock:NAME`."""

    def __init__(self):
        from pottery import Redlock

        key = name.removeprefix("redlock:")
        self.lock = Redlock(key=key, masters=set(masters), auto_release_time=10)

    def take(self):
        return self.lock.acquire(blocking=False)

    def give(self):
        try:
            self.lock.release()
            return True
        except Exception:
            return False


peer = ByHand() if kind == "redis-py" else Pottery()


def count(path, times):
    for _ in range(int(times)):
        while not peer.take():
            time.sleep(random.uniform(0.001, 0.01))
        with open(path) as file:
            number = int(file.read())
        time.sleep(0.001)
        with open(path, "w") as file:
            file.write(str(number + 1))
        peer.give()
    return True


for line in sys.stdin:
    verb, *args = line.split()
    done = {"try": peer.take, "unlock": peer.give, "count": count}[verb](*args)
    print("ok" if done else "no", flush=True)
