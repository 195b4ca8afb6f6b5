"""A cache service with a full slab, stopped and killed: how long it takes to start again, in how much memory, and whether its blocks are right.

    make kv-restart                 # 10 GiB, about three minutes; SIZE=1GiB for less

WEFT_PROGRAM names the weft program; the slab is in TMPDIR.
"""

import os
import random
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from weft.kv import Client  # noqa: E402

BLOCK, BATCH = 1 << 20, 16


def start(slab, size):
    begun = time.monotonic()
    line = [os.environ["WEFT_PROGRAM"], "kv", "serve", "--listen", "127.0.0.1:0", "--memory", "64MiB", "--block", "1MiB", "--disk", slab, "--disk-size", size]
    p = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    at = p.stdout.readline().split("http://")[1].split(",")[0]
    return p, Client(at), time.monotonic() - begun


def used(p):
    """MiB of memory and seconds of a processor."""
    with open("/proc/%d/status" % p.pid) as f:
        memory = int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1)) / 1024
    with open("/proc/%d/stat" % p.pid) as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return memory, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def block(i, rest):
    return i.to_bytes(8, "little") + rest


def fill(c, names, rest):
    for at in range(0, len(names), BATCH):
        c.put(names[at : at + BATCH], [block(i, rest) for i in range(at, min(len(names), at + BATCH))], alone=True)
        while True:  # no more than wait for the disk at once
            n = c.stat()["counters"]
            if n["written_disk"] + n["not_written"] >= min(len(names), at + BATCH) - 32:
                break
            time.sleep(0.01)


def main(size):
    number, unit = re.fullmatch(r"(\d+)(MiB|GiB)", size).groups()
    count = int(number) * {"MiB": 1, "GiB": 1024}[unit]
    rest, names, wrong = os.urandom(BLOCK - 8), ["block %d" % i for i in range(count)], 0
    with tempfile.TemporaryDirectory() as folder:
        slab = os.path.join(folder, "slab")
        p, c, took = start(slab, size)
        fill(c, names, rest)
        p.terminate()
        p.wait()
        print("| it ended by | until it serves | CPU | memory | blocks back | wrong of 200 |\n|---|---:|---:|---:|---:|---:|")
        for end in "SIGTERM", "SIGKILL":
            p, c, took = start(slab, size)
            memory, cpu = used(p)
            back = sum(c.which(names))
            bad = 0
            for i in random.Random(1).sample(range(count), 200):
                (got,) = c.get([names[i]], alone=True)
                bad += got is not None and got != block(i, rest)
            print("| %s | %.2f s | %.2f s | %.0f MiB | %d of %d | %d |" % (end, took, cpu, memory, back, count, bad), flush=True)
            wrong += bad
            p.kill()
            p.wait()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
