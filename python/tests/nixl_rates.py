"""Rates of weft.nixl between two processes of this host, next to copies by numpy: python3 nixl_rates.py [SIZE ...]

Reads 16 MiB in descriptors of 4 KiB, 64 KiB and 1 MiB out of another process's memory, in a shuffled order, and copies the same pieces by
numpy in this process. Prints GB/s, medians of interleaved rounds.
"""

import random
import statistics
import subprocess
import sys
import time

import numpy

sys.path.insert(0, __file__.rsplit("/", 2)[0])

from weft.nixl import nixl_agent, nixl_agent_config  # noqa: E402

TOTAL, ROUNDS = 16 << 20, 15


def other():
    """The other process: its memory is registered until its standard input ends."""
    memory = numpy.random.default_rng(1).integers(0, 256, TOTAL, dtype=numpy.uint8)
    agent = nixl_agent("other", nixl_agent_config(backends=["UCX"]))
    agent.register_memory([(memory.ctypes.data, TOTAL, 0, "")], "DRAM")
    print(memory.ctypes.data, agent.get_agent_metadata().hex(), flush=True)
    sys.stdin.read()
    agent.close()


def main(sizes):
    p = subprocess.Popen([sys.executable, __file__, "other"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    there, metadata = p.stdout.readline().split()
    there = int(there)
    mine, source = numpy.zeros(TOTAL, numpy.uint8), numpy.random.default_rng(1).integers(0, 256, TOTAL, dtype=numpy.uint8)
    agent = nixl_agent("me", nixl_agent_config(backends=["UCX"]))
    agent.register_memory([(mine.ctypes.data, TOTAL, 0, "")], "DRAM")
    peer = agent.add_remote_agent(bytes.fromhex(metadata))
    for size in sizes:
        count = TOTAL // size
        order = random.Random(2).sample(range(count), count)
        local = agent.prep_xfer_dlist("", [(mine.ctypes.data + i * size, size, 0) for i in range(count)], "DRAM")
        far = agent.prep_xfer_dlist(peer, [(there + i * size, size, 0) for i in range(count)], "DRAM")
        handle = agent.make_prepped_xfer("READ", local, list(range(count)), far, order)
        a, b = mine.reshape(count, size), source.reshape(count, size)
        times = {"weft": [], "numpy": []}
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            state = agent.transfer(handle)
            while state == "PROC":
                state = agent.check_xfer_state(handle)
            times["weft"].append(time.perf_counter() - begun)
            assert state == "DONE", agent.get_xfer_error(handle)
            assert (a == b[order]).all()
            begun = time.perf_counter()
            for i, k in enumerate(order):
                a[i] = b[k]
            times["numpy"].append(time.perf_counter() - begun)
        weft, copy = (TOTAL / statistics.median(t) / 1e9 for t in times.values())
        ratio = statistics.median(y / x for x, y in zip(*times.values()))
        print("%7d bytes: weft %5.2f GB/s by %s, numpy %5.2f GB/s, ratio %.2f" % (size, weft, handle.telemetry.path, copy, ratio), flush=True)
        handle.release()
    agent.close()
    p.stdin.close()
    p.wait()


if __name__ == "__main__":
    if sys.argv[1:] == ["other"]:
        other()
    else:
        main([int(a) for a in sys.argv[1:]] or [4 << 10, 64 << 10, 1 << 20])
