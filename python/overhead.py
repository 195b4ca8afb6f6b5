"""Where the time of a small all-reduce from Python goes: the quickest call of many, in microseconds.

    PYTHONPATH=python python3 python/overhead.py            # 1 process: what the layers cost without waiting for anybody
    PYTHONPATH=python python3 python/overhead.py -n 2       # 2 processes: the same, and the meeting of the ranks
    PYTHONPATH=python python3 python/overhead.py -n 2 --device cuda    # tensors of a GPU, which all ranks share

The layers, from the inside out: a call of C through ctypes that does nothing, weft_run of the library on a call that is packed
already, the process group's all_reduce, and dist.all_reduce as programs call it. Gloo's dist.all_reduce stands beside them.

On a GPU "synchronize" is torch.cuda.synchronize(), which PyTorch's programs call to time something: alone, on a GPU that has
nothing to do, and behind each of the others. "kernel" is a small kernel of PyTorch on the same tensor.
"""

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time


def best(call, rounds, times, meet):
    """The quickest round and the median one, each of the given number of calls, after a meeting of the ranks."""
    took = []
    for _ in range(rounds):
        meet()
        began = time.perf_counter()
        for _ in range(times):
            call()
        took.append((time.perf_counter() - began) / times * 1e6)
    return {"best": round(min(took), 2), "median": round(statistics.median(took), 2)}


def rank_main(a):
    import torch
    import torch.distributed as dist
    import weft.torch  # noqa: F401
    from weft.torch import _group, _native
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    group = dist.new_group(backend="weft")
    if a.device == "cuda":
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    t = torch.ones(2, device=a.device)
    dist.all_reduce(t, group=group)
    pg = group
    while not hasattr(pg, "_comm"):  # PyTorch 2 wraps what a backend made
        pg = pg._get_backend(torch.device(a.device))
    p = t.data_ptr()
    packed = _group._pack(_group._SIZE, _native.ALL_REDUCE, _group.TYPES[t.dtype], _group.SUM, 0, 0, 0, -2, 0, p, p, t.numel(), 0, 0, 0, 0.0, pg._ms, 0, 0, 0, 0, 0, *_group._place(t), 0)
    nothing = ctypes.CDLL(None).getppid
    error = _native.error()

    def started():
        _native.start(pg._comm, packed, _native.request(), error)
        if _native.started():
            _native.wait(_native.started(), -1, _native.status(), error)

    layers = {
        "ctypes call of C": nothing,
        "weft_run": lambda: _native.run(pg._comm, packed, None, error),
        "weft_try, weft_wait": started,
        "dist.all_reduce, weft": lambda: dist.all_reduce(t, group=group),
        "all_reduce async, wait, weft": lambda: dist.all_reduce(t, group=group, async_op=True).wait(),
        "dist.all_reduce, Gloo": lambda: dist.all_reduce(t),
    }
    if a.device == "cuda":
        synchronize, reduce = torch.cuda.synchronize, lambda: dist.all_reduce(t, group=group)

        def both(first, then):
            first()
            then()

        def kernel():
            t.mul_(0.5)

        layers = {
            "ctypes call of C": nothing,
            "synchronize": synchronize,
            "kernel, synchronize": lambda: both(kernel, synchronize),
            "weft_enqueue": lambda: _native.enqueue(pg._comm, packed, error),
            "weft_enqueue, synchronize": lambda: both(lambda: _native.enqueue(pg._comm, packed, error), synchronize),
            "all_reduce": reduce,
            "all_reduce, synchronize": lambda: both(reduce, synchronize),
            "kernel, all_reduce, synchronize": lambda: both(kernel, lambda: both(reduce, synchronize)),
            "all_reduce, Gloo": lambda: dist.all_reduce(t),
        }
    for name, call in layers.items():
        t.fill_(1)
        times = a.calls if "Gloo" not in name or a.device == "cpu" else max(1, a.calls // 10)
        figures = best(call, a.rounds, times, dist.barrier)
        if dist.get_rank() == 0:
            print(json.dumps({name: figures}), flush=True)
    dist.barrier()


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="\n".join(__doc__.splitlines()[1:]), formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-n", type=int, default=1, help="processes")
    p.add_argument("--rounds", type=int, default=200)
    p.add_argument("--calls", type=int, default=50, help="calls of a round")
    p.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    p.add_argument("--limit", type=float, default=120, help="seconds after which processes are ended")
    p.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.rank:
        return rank_main(a)
    from bench_torch import free_port
    port, ranks = free_port(), []
    try:
        for r in range(a.n):
            env = {**os.environ, "RANK": str(r), "WORLD_SIZE": str(a.n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
            ranks.append(subprocess.Popen([sys.executable, __file__, "--rank", *sys.argv[1:]], env=env, stdout=subprocess.PIPE if r == 0 else None, text=True))
        print(f"{'layer':32} {'best':>9} {'median':>9}  us, {a.n} processes")
        for line in ranks[0].stdout:
            if line.startswith("{"):
                for name, f in json.loads(line).items():
                    print(f"{name:32} {f['best']:9.2f} {f['median']:9.2f}", flush=True)
        if any([p.wait(a.limit) for p in ranks]):
            raise SystemExit(1)
    finally:
        for q in ranks:
            q.kill()
            q.wait()


if __name__ == "__main__":
    main()
