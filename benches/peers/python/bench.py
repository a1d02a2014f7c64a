"""Puts redis-py's Lock under one load; src/load.rs of the benchmark describes input and output."""

import argparse
import json
import math
import os
import sys
import threading
import time

import redis

HOLD, PAUSE = 0.003, 0.002
LEASE = 30
STEP = math.log(1.02)


class Tally:
    def __init__(self):
        self.cycles = self.acquired = self.entered = self.errors = self.longest = 0
        self.error = None
        self.steps = {}
        self.events = []

    def wait(self, ns):
        step = int(math.log(max(ns, 1)) / STEP)
        self.steps[step] = self.steps.get(step, 0) + 1
        self.longest = max(self.longest, ns)

    def restart(self):
        entered, errors, error = self.entered, self.errors, self.error
        self.__init__()
        self.entered, self.errors, self.error = entered, errors, error


class Guarded:
    """The critical section: numbers that are read and then written."""

    def __init__(self, keys, path):
        self.numbers = [0] * keys
        self.file = os.open(path, os.O_RDWR) if path else None

    def enter(self, key):
        if self.file is not None:
            number = int.from_bytes(os.pread(self.file, 8, 0), "little")
            os.pwrite(self.file, (number + 1).to_bytes(8, "little"), 0)
        number = self.numbers[key]
        self.numbers[key] = number + 1


def say(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def expect(word):
    told = sys.stdin.readline().strip()
    if told != word:
        sys.exit(f"told {told!r} instead of {word!r}")


def spin(lock, key, guarded, end, tally):
    while True:
        asked = time.monotonic_ns()
        if asked >= end:
            return
        try:
            lock.acquire()
            got = time.monotonic_ns()
            tally.wait(got - asked)
            tally.acquired += 1
            tally.entered += 1
            tally.cycles += got < end
            guarded.enter(key)
            lock.release()
        except Exception as error:
            tally.errors += 1
            tally.error = tally.error or str(error)
            if tally.errors >= 100:
                return


def cycles(arguments, client, guarded):
    tallies = [Tally() for _ in range(arguments.threads)]
    warm, go = threading.Barrier(arguments.threads + 1), threading.Barrier(arguments.threads + 1)
    begun = []

    def work(number):
        key, tally = number % arguments.keys, tallies[number]
        lock = client.lock(f"{arguments.name}:{key}", timeout=LEASE)
        spin(lock, key, guarded, time.monotonic_ns() + arguments.warmup * 1e9, tally)
        tally.restart()
        warm.wait()
        go.wait()
        spin(lock, key, guarded, begun[0] + arguments.seconds * 1e9, tally)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(arguments.threads)]
    for thread in threads:
        thread.start()
    warm.wait()
    say("ready")
    expect("go")
    cpu = time.process_time()
    begun.append(time.monotonic_ns())
    go.wait()
    for thread in threads:
        thread.join()
    return tallies, time.process_time() - cpu


def handoff(arguments, client, guarded):
    tally = Tally()
    lock = client.lock(f"{arguments.name}:0", timeout=LEASE)
    spin(lock, 0, guarded, time.monotonic_ns() + arguments.warmup * 1e9, tally)
    tally.restart()
    say("ready")
    expect("go")
    cpu = time.process_time()
    end = time.monotonic_ns() + arguments.seconds * 1e9
    while time.monotonic_ns() < end:
        asked = time.monotonic_ns()
        lock.acquire()
        got = time.monotonic_ns()
        guarded.enter(0)
        time.sleep(HOLD)
        leaving = time.monotonic_ns()
        lock.release()
        tally.events.append([asked, got, leaving])
        tally.wait(got - asked)
        tally.cycles += 1
        tally.acquired += 1
        tally.entered += 1
        time.sleep(PAUSE)
    return [tally], time.process_time() - cpu


def holder(arguments, client, guarded):
    lock = client.lock(f"{arguments.name}:0", timeout=LEASE)
    lock.acquire()
    say("ready")
    expect("release")
    at_ns = time.monotonic_ns()
    lock.release()
    return [], 0.0, at_ns


def crowd(arguments, client, guarded):
    """Every thread has a client of its own, as if it were a process."""
    tallies = [Tally() for _ in range(arguments.threads)]
    clients = [redis.Redis.from_url(arguments.url) for _ in tallies]
    go = threading.Event()

    def work(client, tally):
        lock = client.lock(f"{arguments.name}:0", timeout=LEASE)
        go.wait()
        try:
            lock.acquire()
            tally.acquired += 1
            tally.entered += 1
            guarded.enter(0)
            lock.release()
        except Exception as error:
            tally.errors += 1
            tally.error = str(error)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(clients, tallies)]
    for thread in threads:
        thread.start()
    say("ready")
    expect("go")
    cpu = time.process_time()
    go.set()
    say("waiting")
    for thread in threads:
        thread.join()
    at_ns = time.monotonic_ns()
    say("served")
    return tallies, time.process_time() - cpu, at_ns


def main():
    parser = argparse.ArgumentParser()
    for name, kind in [
        ("peer", str), ("kind", str), ("threads", int), ("keys", int), ("seconds", float),
        ("warmup", float), ("url", str), ("name", str), ("counter", str),
    ]:
        parser.add_argument("--" + name, type=kind)
    arguments = parser.parse_args()
    client = redis.Redis.from_url(arguments.url)
    guarded = Guarded(arguments.keys, arguments.counter)
    kinds = {"cycles": cycles, "handoff": handoff, "holder": holder, "crowd": crowd}
    if arguments.kind not in kinds:
        sys.exit(f"redis-py does not do {arguments.kind}: it neither renews nor wakes")
    tallies, cpu, *at_ns = kinds[arguments.kind](arguments, client, guarded)
    steps = {}
    for tally in tallies:
        for step, count in tally.steps.items():
            steps[step] = steps.get(step, 0) + count
    entered = sum(tally.entered for tally in tallies)
    say(json.dumps({
        "version": redis.__version__,
        "seconds": arguments.seconds,
        "cycles": [tally.cycles for tally in tallies],
        "acquired": sum(tally.acquired for tally in tallies),
        "entered": entered,
        "violations": entered - sum(guarded.numbers),
        "errors": sum(tally.errors for tally in tallies),
        "error": next((tally.error for tally in tallies if tally.error), None),
        "waits": {"steps": steps, "max_ns": max((tally.longest for tally in tallies), default=0)},
        "cpu_s": cpu,
        "events": [event for tally in tallies for event in tally.events],
        "at_ns": at_ns[0] if at_ns else None,
    }))


if __name__ == "__main__":
    main()
