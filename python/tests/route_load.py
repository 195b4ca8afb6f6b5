"""Compares 'weft serve' with round-robin: python3 route_load.py WEFT [ROUNDS]

Starts three engines ('weft up --serve', a cache of 16 MiB each), two routers in front of them, and asks both in turns
for prompts of twelve groups that begin alike. A cache holds the beginnings of five groups. Prints milliseconds to the
first token of all requests but each group's first.
"""

import http.client
import json
import random
import statistics
import subprocess
import sys
import threading
import time

GROUPS, TURNS, USERS, PREFIX = 12, 6, 2, 400


def start(line):
    """Starts a command and waits for the line that tells its API's address."""
    p = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for text in p.stdout:
        if text.startswith("api"):
            threading.Thread(target=p.stdout.read, daemon=True).start()
            return p, text.split()[1].rstrip(",").removesuffix("/v1")
    raise SystemExit(f"{line} did not start")


def ask(host, prompt):
    body = json.dumps({"model": "weft-gpt", "prompt": prompt, "max_tokens": 4, "temperature": 0, "stream": True})
    begun = time.perf_counter()
    c = http.client.HTTPConnection(host)
    c.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    a = c.getresponse()
    first = a.readline()
    took = time.perf_counter() - begun
    rest = first + a.read()
    c.close()
    return took, a.status == 200 and b"[DONE]" in rest and b'"error"' not in rest


def load(host, seed):
    r = random.Random(seed)
    begin = ["".join(r.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(PREFIX)) for _ in range(GROUPS)]
    jobs = [(g, i) for i in range(TURNS) for g in r.sample(range(GROUPS), GROUPS)]
    left, lock, times, failed = iter(jobs), threading.Lock(), [], []

    def user():
        while True:
            with lock:
                job = next(left, None)
            if job is None:
                return
            took, good = ask(host, f"{begin[job[0]]} turn {job[1]:03d} of {job[0]:03d}")
            with lock:
                (times if good else failed).append(took if job[1] else None)
    users = [threading.Thread(target=user) for _ in range(USERS)]
    begun = time.perf_counter()
    for u in users:
        u.start()
    for u in users:
        u.join()
    times = sorted(1e3 * t for t in times if t)
    return statistics.median(times), times[len(times) * 9 // 10], len(jobs) / (time.perf_counter() - begun), len(failed)


def main(weft, rounds):
    running = []
    try:
        engines = []
        for _ in range(3):
            p, at = start([weft, "up", "--serve", "--users", "0", "--prefill", "1", "--decode", "1", "--cache", "16MiB", "--listen", "127.0.0.1:0"])
            running.append(p)
            engines.append(at)
        fronts = {}
        for policy in ("prefix", "round-robin"):
            p, at = start([weft, "serve", "--listen", "127.0.0.1:0", "--policy", policy, *engines])
            running.append(p)
            fronts[policy] = at.removeprefix("http://")
        ratios = []
        for i in range(rounds):
            got = {}
            for policy in sorted(fronts, reverse=i % 2 == 1):
                got[policy] = load(fronts[policy], 2 * i + (policy == "prefix"))
                print("%-12s first token %6.1f ms, p90 %6.1f ms, %5.1f requests/s, %d failed" % (policy, *got[policy]), flush=True)
            ratios.append(got["prefix"][0] / got["round-robin"][0])
        print("first token, prefix by round-robin: %s, median %.2f" % (" ".join("%.2f" % x for x in ratios), statistics.median(ratios)))
    finally:
        for p in running:
            p.terminate()
        for p in running:
            p.wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5)
