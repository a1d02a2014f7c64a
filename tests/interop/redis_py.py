"""Carries out the tests' requests with redis-py's Lock, and reports the results.

Standard input, one request a line, fields separated by tabs: number, thread, client, verb, arguments.
Requests of one thread run in order, different threads side by side. Standard output, one answer a line:
number, ok or error, begun, ended (CLOCK_MONOTONIC, nanoseconds), text. The program ends with its input.
"""

import os
import queue
import sys
import threading
import time

import redis

clients = {}
held = {}
writing = threading.Lock()


def take(client, lock_name, lease_ms, wait_ms):
    lock = clients[client].lock(lock_name, timeout=lease_ms / 1000, sleep=0.05)
    if wait_ms == 0:
        taken = lock.acquire(blocking=False)
    else:
        taken = lock.acquire(blocking=True, blocking_timeout=wait_ms / 1000)
    if taken:
        held[client, lock_name] = lock
    return "true" if taken else "false"


def perform(client, verb, *arguments):
    if verb == "connect":
        clients[client] = redis.Redis.from_url(arguments[0])
        clients[client].ping()
        return ""
    if verb == "try-lease":
        return take(client, arguments[0], int(arguments[1]), 0)
    if verb == "try-for-lease":
        return take(client, arguments[0], int(arguments[2]), int(arguments[1]))
    if verb == "unlock":
        held.pop((client, arguments[0])).release()
        return ""
    raise ValueError("no such verb: " + verb)


def serve(requests):
    while True:
        number, _thread, *request = requests.get()
        begun = time.monotonic_ns()
        try:
            verdict, text = "ok", perform(*request)
        except Exception as problem:
            verdict, text = "error", f"{type(problem).__name__}: {problem}".replace("\n", " ")
        ended = time.monotonic_ns()
        with writing:
            print(number, verdict, begun, ended, text, sep="\t", flush=True)


threads = {}
for line in sys.stdin:
    request = line.rstrip("\n").split("\t")
    if request[1] not in threads:
        threads[request[1]] = queue.Queue()
        threading.Thread(target=serve, args=(threads[request[1]],), daemon=True).start()
    threads[request[1]].put(request)
# Ends at once, although a thread may still wait for a lock.
os._exit(0)
