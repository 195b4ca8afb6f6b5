"""Times collectives of torch.distributed over weft and over Gloo, in turn, in the same processes.

    PYTHONPATH=python python3 python/bench_torch.py                          # 2 ranks over shared memory
    PYTHONPATH=python python3 python/bench_torch.py -n 4 --sizes 8,64K,1M    # more ranks, other sizes
    PYTHONPATH=python python3 python/bench_torch.py -n 4 --busy 2            # two processes compute all the while
    PYTHONPATH=python python3 python/bench_torch.py --ddp                    # steps of a model of 10 million parameters
    PYTHONPATH=python python3 python/bench_torch.py --device cuda -n 8       # tensors of a GPU, which all ranks share

Every cell is the median of rounds, in microseconds for one call of rank 0. Backends take turns round by round, so that other
work on the machine falls on all alike. "blocking" is dist.all_reduce(t), "registered" the same on a tensor of weft.torch.empty,
"async" dist.all_reduce(t, async_op=True).wait(). On a GPU every call is followed by torch.cuda.synchronize(); "behind work" is
"weft" behind a kernel of PyTorch on the same tensor, both together.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size(text):
    text = text.strip().upper().rstrip("B").rstrip("I")
    unit = text[-1] if text[-1] in "KMG" else ""
    return int(float(text[:len(text) - len(unit)]) * UNITS[unit])


def name(n):
    for unit in ("G", "M", "K"):
        if n >= UNITS[unit] and n % UNITS[unit] == 0:
            return f"{n // UNITS[unit]} {unit}iB"
    return f"{n} B"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def calls(dist, torch, weft, nbytes, fast):
    """The ways to all-reduce a number of bytes, by name."""
    n = max(1, nbytes // 4)
    plain, async_ = torch.ones(n), torch.ones(n)
    registered = weft.torch.empty(n, group=fast)
    registered.fill_(1)

    def run(t, group, wait=False):
        if wait:
            return lambda: dist.all_reduce(t, group=group, async_op=True).wait()
        return lambda: dist.all_reduce(t, group=group)

    return {
        "Gloo": run(plain, None), "weft": run(plain, fast), "weft registered": run(registered, fast),
        "Gloo async": run(async_, None, True), "weft async": run(async_, fast, True),
    }, [plain, async_, registered]


def calls_on_gpu(dist, torch, nbytes, fast):
    """The same on a GPU."""
    t = torch.ones(max(1, nbytes // 4), device="cuda")

    def run(group, before=lambda: None, wait=False):
        def call():
            before()
            w = dist.all_reduce(t, group=group, async_op=wait)
            if wait:
                w.wait()
            torch.cuda.synchronize()
        return call

    return {"Gloo": run(None), "weft": run(fast), "weft async": run(fast, wait=True), "weft behind work": run(fast, lambda: t.mul_(0.5))}, [t]


def rank_main(a):
    import torch
    import torch.distributed as dist
    import weft
    import weft.torch  # noqa: F401
    torch.set_num_threads(1)
    if a.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("gloo")
    fast = dist.new_group(backend="weft")
    rank = dist.get_rank()
    if a.ddp:
        return steps(a, torch, dist, fast)
    rows = []
    for nbytes in a.sizes:
        ways, tensors = calls_on_gpu(dist, torch, nbytes, fast) if a.device == "cuda" else calls(dist, torch, weft, nbytes, fast)
        took = {w: [] for w in ways}
        most = max(1, min(a.calls, (64 << 20) // max(1, nbytes)))
        for turn in range(a.rounds + 1):
            for way, call in ways.items():
                times = 1 if nbytes > 1 << 20 and way == "Gloo" and a.device == "cuda" else most
                for t in tensors:
                    t.fill_(1)
                dist.barrier()
                call()
                began = time.perf_counter()
                for _ in range(times):
                    call()
                us = (time.perf_counter() - began) / times * 1e6
                if turn:
                    took[way].append(us)
        rows.append({"bytes": nbytes, **{w: round(statistics.median(t), 1) for w, t in took.items()}})
        if rank == 0:
            print(json.dumps(rows[-1]), flush=True)
    dist.barrier()


def steps(a, torch, dist, fast):
    """Steps of a model of 10 million parameters: over Gloo, over weft, and without communication."""
    from torch.nn.parallel import DistributedDataParallel as DDP

    def model():
        torch.manual_seed(1)
        return torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU()) for _ in range(10)])

    ways = {"alone": model(), "Gloo": DDP(model()), "weft": DDP(model(), process_group=fast),
            "weft, gradients as views": DDP(model(), process_group=fast, gradient_as_bucket_view=True)}
    took = {w: [] for w in ways}
    x = torch.randn(a.batch, 1024)
    for turn in range(a.rounds + 3):
        for way, m in ways.items():
            dist.barrier()
            began = time.perf_counter()
            m.zero_grad(set_to_none=False)
            m(x).pow(2).mean().backward()
            if turn >= 3:
                took[way].append((time.perf_counter() - began) * 1e3)
    if dist.get_rank() == 0:
        print(json.dumps({w: round(statistics.median(t), 1) for w, t in took.items()}), flush=True)
    dist.barrier()


def busy(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(10000))


def launch(a):
    port = free_port()
    workers = [subprocess.Popen([sys.executable, __file__, "--spin"]) for _ in range(a.busy)]
    ranks = []
    try:
        for r in range(a.n):
            env = {**os.environ, "RANK": str(r), "WORLD_SIZE": str(a.n), "LOCAL_RANK": str(r), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                   "OMP_NUM_THREADS": "1"}
            ranks.append(subprocess.Popen([sys.executable, __file__, "--rank", *sys.argv[1:]], env=env, stdout=subprocess.PIPE if r == 0 else None, text=True))
        rows = [json.loads(line) for line in ranks[0].stdout if line.startswith("{")]
        if any([p.wait(a.limit) for p in ranks]):
            raise SystemExit(1)
        return rows
    finally:
        for p in ranks + workers:
            p.kill()
            p.wait()


def table(rows):
    keys = [k for k in rows[0] if k != "bytes"]
    lines = ["| size | " + " | ".join(keys) + " |", "|---:|" + "---:|" * len(keys)]
    for row in rows:
        lines.append(f"| {name(row['bytes'])} | " + " | ".join(f"{row[k]:,.1f}" for k in keys) + " |")
    return "\n".join(lines)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="\n".join(__doc__.splitlines()[1:]),
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-n", type=int, default=2, help="ranks")
    p.add_argument("--sizes", default="8,1K,64K,1M,16M", type=lambda s: [size(x) for x in s.split(",")])
    p.add_argument("--rounds", type=int, default=15)
    p.add_argument("--calls", type=int, default=100, help="calls in a round; fewer of large sizes")
    p.add_argument("--busy", type=int, default=0, help="processes that compute meanwhile")
    p.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    p.add_argument("--ddp", action="store_true", help="steps of a model instead of calls; milliseconds")
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--limit", type=float, default=300, help="seconds after which ranks are ended")
    p.add_argument("--json", action="store_true")
    p.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--spin", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.spin:
        return busy(a.limit)
    if a.rank:
        return rank_main(a)
    rows = launch(a)
    if a.json:
        print(json.dumps(rows, indent=1))
    elif a.ddp:
        print("\n".join(f"{way:26} {ms:8.1f} ms a step" for way, ms in rows[0].items()))
    else:
        print(table(rows))


if __name__ == "__main__":
    main()
