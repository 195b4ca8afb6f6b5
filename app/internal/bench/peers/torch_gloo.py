"""The collectives of PyTorch's Gloo, for the benchmark to compare with.

One process a rank, started with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
The conversation with the benchmark is that of peer.h.
"""
import os
import resource
import socket
import time

import torch
import torch.distributed as dist

BLOCKS = {"reduce-scatter", "all-gather", "all-to-all", "gather", "scatter"}


def value(rank, index):
    return ((index * 7 + rank * 31) % 97 - 48).to(torch.float32)


def total(n, index):
    return sum(value(r, index) for r in range(n))


class Work:
    """Buffers and the call for one operation and size."""

    def __init__(self, op, count_bytes, rank, n):
        self.op, self.rank, self.n, self.root = op, rank, n, 0
        self.block = max(1, count_bytes // 4 // n)
        count = self.block * n if op in BLOCKS else count_bytes // 4
        index = torch.arange(count)
        self.input = value(rank, index)
        self.output = self.input.clone() if op in ("all-reduce", "broadcast") else torch.full((count,), 1e9)
        b = self.block
        parts = list(self.output.split(b)) if op in BLOCKS else []
        pieces = list(self.input.split(b)) if op in BLOCKS else []
        root = rank == self.root
        apart = "WEFT_BENCH_APART" in os.environ
        self.call = {
            "all-reduce": lambda: dist.all_reduce(self.output.copy_(self.input) if apart else self.output),
            "broadcast": lambda: dist.broadcast(self.output, self.root),
            "reduce-scatter": lambda: dist.reduce_scatter_tensor(self.output[:b], self.input),
            "all-gather": lambda: dist.all_gather_into_tensor(self.output, self.input[:b]),
            "all-to-all": lambda: dist.all_to_all_single(self.output, self.input),
            "gather": lambda: dist.gather(self.input[:b], parts if root else None, self.root),
            "scatter": lambda: dist.scatter(self.output[:b], pieces if root else None, self.root),
            "barrier": dist.barrier,
        }.get(op)

    def wrong(self):
        n, b, me, op = self.n, self.block, self.rank, self.op
        if op == "barrier" or op == "gather" and me != self.root:
            return 0
        index = torch.arange(len(self.output))
        got = self.output
        if op == "all-reduce":
            want = total(n, index)
        elif op == "broadcast":
            want = value(self.root, index)
        elif op == "reduce-scatter":
            got, want = got[:b], total(n, me * b + index[:b])
        elif op == "scatter":
            got, want = got[:b], value(self.root, me * b + index[:b])
        elif op == "all-to-all":
            want = torch.cat([value(r, me * b + index[:b]) for r in range(n)])
        else:
            want = torch.cat([value(r, index[:b]) for r in range(n)])
        return int((got != want).sum())


def cpu_ns():
    u = resource.getrusage(resource.RUSAGE_SELF)
    return (u.ru_utime + u.ru_stime) * 1e9


def answer(line, work, rank, n):
    words = line.split()
    if words[0] == "prep":
        work = Work(words[1], int(words[3]), rank, n)
        if work.call is None:
            return None, "cannot no such operation in torch.distributed's gloo"
        try:
            work.call()
        except (RuntimeError, ValueError, NotImplementedError) as e:
            return None, "cannot " + str(e).splitlines()[0]
        wrong = work.wrong()
        dist.barrier()
        work.input.zero_()
        work.output.zero_()
        return work, f"ready {wrong}"
    dist.barrier()
    for _ in range(0, int(words[1]), 10):
        work.call()
    if words[0] == "each":
        times, cpu, last = [], cpu_ns(), time.perf_counter_ns()
        for _ in range(int(words[1])):
            work.call()
            now = time.perf_counter_ns()
            times.append(str(now - last))
            last = now
        return work, f"each {cpu_ns() - cpu:.0f} " + " ".join(times)
    cpu, start = cpu_ns(), time.perf_counter_ns()
    for _ in range(int(words[1])):
        work.call()
    return work, f"took {time.perf_counter_ns() - start} {cpu_ns() - cpu:.0f}"


def bind(rank):
    """Keeps this thread on one processor, as peer_bind of peer.h; those of Gloo go where they like."""
    if os.environ.get("WEFT_BENCH_BIND"):
        may = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {may[rank % len(may)]})


def main():
    dist.init_process_group("gloo")
    rank, n = dist.get_rank(), dist.get_world_size()
    bind(rank)
    s = socket.socket(socket.AF_UNIX)
    s.connect(os.environ["WEFT_BENCH_CONTROL"])
    s.sendall(f"rank {rank} of {n}\n".encode())
    work = None
    for line in s.makefile("r"):
        work, text = answer(line, work, rank, n)
        s.sendall((text + "\n").encode())


main()
