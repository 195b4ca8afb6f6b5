"""What PyTorch 2 has beside the calls of PyTorch 1, over weft: FSDP2, DTensor, tensor parallelism, DeviceMesh, functional
collectives, torch.compile, distributed checkpoints, pipelines.

    PYTHONPATH=python python3 python/tests/torch_new.py -n 4                    # CPU tensors
    PYTHONPATH=python python3 python/tests/torch_new.py -n 4 --device cuda      # ranks take turns in the GPUs
    PYTHONPATH=python python3 python/tests/torch_new.py -n 4 --backend gloo     # the same parts on Gloo

Every part is compared with the same computation in one process."""

import argparse
import faulthandler
import os
import socket
import sys
import time
import traceback

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

DEVICE = "cpu"


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))


def batch(step, rows=48):
    g = torch.Generator(DEVICE).manual_seed(100 + step)
    x = torch.randn(rows, 64, generator=g)
    return x, x[:, :8].sin()


def reference(steps):
    m = model()
    o = torch.optim.SGD(m.parameters(), lr=0.1)
    losses = []
    for s in range(steps):
        x, y = batch(s)
        loss = (m(x) - y).pow(2).mean()
        o.zero_grad()
        loss.backward()
        o.step()
        losses.append(loss.item())
    return losses


def train(m, optimizer, steps):
    rank, size = dist.get_rank(), dist.get_world_size()
    losses = []
    for s in range(steps):
        x, y = batch(s)
        loss = (m(x[rank::size]) - y[rank::size]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        whole = loss.detach().clone()
        dist.all_reduce(whole, op=dist.ReduceOp.AVG)
        losses.append(whole.item())
    return losses


def near(a, b):
    worst = max(abs(x - y) / abs(y) for x, y in zip(a, b))
    assert worst < 1e-4, (worst, a, b)


def ddp():
    from torch.nn.parallel import DistributedDataParallel as DDP
    for view in (False, True):
        m = DDP(model(), gradient_as_bucket_view=view)
        near(train(m, torch.optim.SGD(m.parameters(), lr=0.1), 6), reference(6))


def zero():
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel as DDP
    m = DDP(model())
    near(train(m, ZeroRedundancyOptimizer(m.parameters(), torch.optim.SGD, lr=0.1), 6), reference(6))


def fsdp2():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    m = model()
    for layer in m:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(m, mesh=mesh)
    near(train(m, torch.optim.SGD(m.parameters(), lr=0.1), 6), reference(6))


def fsdp1():
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    m = FSDP(model(), device_id=torch.device("cuda", 0) if DEVICE == "cuda" else torch.device("cpu"))
    near(train(m, torch.optim.SGD(m.parameters(), lr=0.1), 6), reference(6))


def dtensor():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    n = dist.get_world_size()
    mesh = init_device_mesh(DEVICE, (n,))
    torch.manual_seed(2)
    a, b = torch.randn(8 * n, 16), torch.randn(16, 4 * n)
    da, db = distribute_tensor(a, mesh, [Shard(0)]), distribute_tensor(b, mesh, [Shard(1)])
    torch.testing.assert_close((da @ db).full_tensor(), a @ b)
    torch.testing.assert_close(da.redistribute(mesh, [Shard(1)]).full_tensor(), a)
    torch.testing.assert_close(da.redistribute(mesh, [Replicate()]).to_local(), a)
    torch.testing.assert_close(da.sum().full_tensor(), a.sum())


def mesh2():
    from torch.distributed.device_mesh import init_device_mesh
    n = dist.get_world_size()
    if n % 2:
        return
    mesh = init_device_mesh(DEVICE, (n // 2, 2), mesh_dim_names=("dp", "tp"))
    t = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(t, group=mesh.get_group("tp"))
    low = dist.get_rank() // 2 * 2
    assert t.item() == low + low + 1, t


def functional():
    import torch.distributed._functional_collectives as fc
    n, r = dist.get_world_size(), dist.get_rank()
    g = dist.group.WORLD
    assert fc.all_reduce(torch.ones(3) * r, "sum", g).tolist() == [sum(range(n))] * 3
    assert fc.all_gather_tensor(torch.tensor([r]), 0, g).tolist() == list(range(n))
    assert fc.reduce_scatter_tensor(torch.arange(n).float(), "sum", 0, g).tolist() == [r * n]
    out = fc.all_to_all_single(torch.arange(n) + 10 * r, None, None, g)
    assert out.tolist() == [10 * p + r for p in range(n)], out
    assert fc.broadcast(torch.tensor([r + 5]), 1, g).item() == 6
    outs = fc.all_reduce_coalesced([torch.ones(2), torch.ones(3) * 2], "sum", g)
    assert [o.tolist() for o in outs] == [[n] * 2, [2 * n] * 3]


def objects():
    n, r = dist.get_world_size(), dist.get_rank()
    got = [None] * n
    dist.all_gather_object(got, {"rank": r})
    assert got == [{"rank": i} for i in range(n)]
    one = [f"from {r}"]
    dist.broadcast_object_list(one, src=n - 1)
    assert one == [f"from {n - 1}"]


def compiled():
    """DDP and functional collectives under torch.compile, which has nothing to complain of."""
    import warnings
    import torch.distributed._functional_collectives as fc
    from torch.nn.parallel import DistributedDataParallel as DDP
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        m = torch.compile(DDP(model()))
        near(train(m, torch.optim.SGD(m.parameters(), lr=0.1), 6), reference(6))
    said = [str(w.message) for w in said if "Dynamo" in str(w.message)]
    assert not said, said[0]
    n, r = dist.get_world_size(), dist.get_rank()
    g = dist.group.WORLD

    def several(x):
        s = fc.all_reduce(x * 2, "sum", g)
        a = fc.all_gather_tensor(s[:1] + r, 0, g)
        return fc.reduce_scatter_tensor(a * torch.ones(n), "sum", 0, g) + s[0]

    x = torch.full((5,), float(r))
    total = 2.0 * sum(range(n))
    want = n * (total + r) + total
    for _ in range(3):
        got = torch.compile(several, fullgraph=True)(x)
        assert got.tolist() == [want], (got, want)


def plain_compiled():
    """The calls of torch.distributed inside a compiled function."""
    n, r = dist.get_world_size(), dist.get_rank()

    @torch.compile
    def step(x, whole):
        y = x * 3
        dist.all_reduce(y)
        dist.all_gather_into_tensor(whole, y[:2])
        return whole.sum() + y

    total = 3.0 * sum(range(n))
    for _ in range(3):
        got = step(torch.full((4,), float(r)), torch.empty(2 * n))
        assert got.tolist() == [2 * n * total + total] * 4, got


def powersgd():
    """DDP with the hook that compresses gradients: it starts calls in callbacks."""
    if DEVICE == "cpu" and torch.cuda.is_available():  # PyTorch's hook asks for a GPU then, whatever the backend
        return
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel as DDP
    m = DDP(model())
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
    m.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    losses = train(m, torch.optim.SGD(m.parameters(), lr=0.1), 12)
    assert losses[-1] < losses[0], losses
    weights = [p.detach().clone() for p in m.parameters()]
    for w in weights:
        same = w.clone()
        dist.broadcast(same, 0)
        assert torch.equal(w, same)
    m = DDP(model())
    m.register_comm_hook(None, default_hooks.fp16_compress_hook)
    losses = train(m, torch.optim.SGD(m.parameters(), lr=0.1), 6)
    assert all(abs(x - y) < 1e-2 for x, y in zip(losses, reference(6))), losses


def tensor_parallel():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    m = parallelize_module(model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    o, losses = torch.optim.SGD(m.parameters(), lr=0.1, foreach=False), []
    for s in range(6):
        x, y = batch(s)
        loss = (m(x) - y).pow(2).mean()
        o.zero_grad()
        loss.backward()
        o.step()
        losses.append(loss.item())
    near(losses, reference(6))


def checkpoint():
    """A sharded model is saved, and loaded into another layout: fewer shards, and none."""
    import shutil
    import tempfile
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    n, where = dist.get_world_size(), [None]
    if dist.get_rank() == 0:
        where = [tempfile.mkdtemp()]
    dist.broadcast_object_list(where, 0)
    m = model()
    fully_shard(m, mesh=init_device_mesh(DEVICE, (n,)))
    train(m, torch.optim.SGD(m.parameters(), lr=0.1), 2)
    state = get_model_state_dict(m)
    dcp.save(state, checkpoint_id=where[0] + "/plain")
    dcp.async_save(state, checkpoint_id=where[0] + "/async", process_group=dist.new_group(backend="gloo")).result()
    whole = {k: v.full_tensor() for k, v in state.items()}
    for name in ("plain", "async"):
        fresh = {k: torch.zeros_like(v) for k, v in whole.items()}
        dcp.load(fresh, checkpoint_id=f"{where[0]}/{name}")
        assert all(torch.equal(fresh[k], whole[k]) for k in whole)
    if n % 2 == 0:
        other = model()
        fully_shard(other, mesh=init_device_mesh(DEVICE, (n // 2, 2), mesh_dim_names=("replicas", "shards")))
        part = get_model_state_dict(other)
        dcp.load(part, checkpoint_id=where[0] + "/plain")
        set_model_state_dict(other, part)
        assert all(torch.equal(v.full_tensor(), whole[k]) for k, v in get_model_state_dict(other).items())
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(where[0])


def pipeline():
    """Pipeline stages of torch.distributed.pipelining, one per rank, with three schedules."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
    n, r = dist.get_world_size(), dist.get_rank()

    def layers(k):
        torch.manual_seed(3)
        return [torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh()) for _ in range(k)]

    def loss(out, y):
        return (out - y).pow(2).mean()

    torch.manual_seed(4)
    x, y = torch.randn(4 * n, 16), torch.randn(4 * n, 16)
    for schedule, per in ((ScheduleGPipe, 1), (Schedule1F1B, 1), (ScheduleInterleaved1F1B, 2)):
        one = torch.nn.Sequential(*layers(n * per))
        want = loss(one(x), y)
        want.backward()
        mine = layers(n * per)[r::n]
        stages = [PipelineStage(m, r + i * n, n * per, torch.device(DEVICE)) for i, m in enumerate(mine)]
        s = schedule(stages if per > 1 else stages[0], n_microbatches=2 * n, loss_fn=loss)
        losses = []
        if r == 0:
            s.step(x, target=y, losses=losses) if n == 1 else s.step(x)
        elif r == n - 1:
            s.step(target=y, losses=losses)
        else:
            s.step()
        if r == n - 1:
            torch.testing.assert_close(torch.stack(losses).mean(), want.detach())
        for i, m in enumerate(mine):
            for a, b in zip(m.parameters(), one[r + i * n].parameters()):
                torch.testing.assert_close(a.grad, b.grad)


def mixed():
    """One group with a backend per kind of device."""
    n, r = dist.get_world_size(), dist.get_rank()
    import weft.torch  # noqa: F401
    g = dist.new_group(backend="cpu:gloo,cuda:weft" if DEVICE == "cuda" else "cpu:weft")
    t, u = torch.ones(3) * r, torch.ones(3, device="cpu")
    dist.all_reduce(t, group=g)
    dist.all_reduce(u, group=g)
    assert t.tolist() == [sum(range(n))] * 3 and u.tolist() == [n] * 3


def graphs():
    """A call on a stream that a CUDA graph captures is refused with the reason, and the group goes on."""
    if DEVICE != "cuda":
        return
    t = torch.ones(8)
    dist.all_reduce(t)
    torch.cuda.synchronize()
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            dist.all_reduce(t)
    except RuntimeError as e:
        assert "CUDA graph" in str(e), e
    else:
        raise AssertionError("nothing was raised")
    torch.cuda.synchronize()
    u = torch.ones(4)
    dist.all_reduce(u)
    assert u.eq(dist.get_world_size()).all()


def half():
    for dtype in (torch.bfloat16, torch.float16, torch.float8_e5m2):
        t = torch.ones(100).to(dtype)
        dist.broadcast(t, 0)
    t = torch.ones(5000, dtype=torch.bfloat16)
    dist.all_reduce(t)
    assert t.float().eq(dist.get_world_size()).all()


def coalesced():
    from torch.distributed.distributed_c10d import _coalescing_manager
    n = dist.get_world_size()
    ts = [torch.ones(4) * i for i in range(3)]
    with _coalescing_manager(async_ops=True) as cm:
        for t in ts:
            dist.all_reduce(t)
    cm.wait()
    assert [t[0].item() for t in ts] == [0, n, 2 * n], ts


def messages():
    n, r = dist.get_world_size(), dist.get_rank()
    left, right = (r - 1) % n, (r + 1) % n
    for count in (0, 1, 1000, 300_000):
        mine, theirs = torch.full((count,), float(r)), torch.empty(count)
        if r % 2:
            dist.recv(theirs, left)
            dist.send(mine, right)
        else:
            dist.send(mine, right)
            dist.recv(theirs, left)
        assert (theirs == left).all(), (count, theirs[:3])
    mine, theirs = torch.full((70, 3), float(r)), torch.empty(3, 70).t()
    for w in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, left), dist.P2POp(dist.irecv, theirs, right)]):
        w.wait()
    assert (theirs == right).all()
    if r == 0:
        seen = sorted(dist.recv(theirs) for _ in range(n - 1))
        assert seen == list(range(1, n)), seen
    else:
        dist.send(mine, 0)


def unequal():
    n, r = dist.get_world_size(), dist.get_rank()
    ins = [torch.full((r + 2 * p,), 10.0 * r + p) for p in range(n)]
    outs = [torch.empty(p + 2 * r) for p in range(n)]
    dist.all_to_all(outs, ins)
    assert all((o == 10.0 * p + r).all() for p, o in enumerate(outs)), outs
    lists = [torch.empty(p + 1) for p in range(n)]
    dist.all_gather(lists, torch.full((r + 1,), float(r)))
    assert all((o == p).all() for p, o in enumerate(lists)), lists


def views():
    """Tensors with gaps, waited for on another stream than that of the call."""
    n = dist.get_world_size()
    t = torch.ones(40, 30)[:, ::3]
    w = dist.all_reduce(t, async_op=True)
    if DEVICE == "cuda":
        with torch.cuda.stream(torch.cuda.Stream()):
            w.wait()
            assert (t == n).all()
    w.wait()
    assert (t == n).all(), t


def streams():
    """What is queued behind a wait, or a call that waits at once, finds the sum, and so does who waits for a future, while a GPU
    still works; and no call holds the host meanwhile."""
    if DEVICE != "cuda":
        return
    n, a = dist.get_world_size(), torch.ones(8192, 8192)

    def steps(products):
        """How long each step held the host, and all of them together with the GPU."""
        t, u, v = torch.ones(1000), torch.ones(1000), torch.ones(1000)
        torch.cuda.synchronize()
        dist.barrier()
        began, last, held = time.monotonic(), time.monotonic(), {}

        def step(name):
            nonlocal last
            now = time.monotonic()
            held[name], last = now - last, now

        x = a
        for _ in range(products):
            x = (x @ a).clamp(0, 1)
        step("products")
        t += x[0, 0] - 1
        step("sum of PyTorch")
        dist.all_reduce(t)
        step("all_reduce")
        dist.all_reduce(u, async_op=True).wait()
        step("async and wait")
        f = dist.all_reduce(v, async_op=True).get_future()
        step("future")
        f.wait()
        total = (t + u + v).sum().item()
        took = time.monotonic() - began
        assert total == 3000 * n, total
        return held, took

    first, _ = steps(1)  # PyTorch loads a kernel when it is first used, which waits for all that the GPU does
    held, took = steps(40)
    if dist.get_rank() == 0:
        print(f"{took:.3f} s; held the host, s, first time and again:", ", ".join(f"{k} {first[k]:.4f} {held[k]:.4f}" for k in held), flush=True)
    calls = held["all_reduce"] + held["async and wait"] + held["future"]
    assert took < 0.2 or calls < took / 2, f"the host was held for {calls:.2f} of {took:.2f} s"


def wrong():
    """Wrong calls on tensors of GPUs are errors on all ranks, and nobody hangs."""
    if DEVICE != "cuda":
        return
    import ctypes
    import weft
    n, r = dist.get_world_size(), dist.get_rank()

    def refused(kind, words, call):
        began = time.monotonic()
        try:
            call()
        except kind as e:
            assert all(w in str(e) for w in words), f"{words} is not in: {e}"
            assert time.monotonic() - began < 20
            return
        raise AssertionError(f"nothing was raised; want {kind} with {words}")

    # Devices that differ in one call, on all ranks.
    refused(ValueError, ["cuda:0", "cpu"], lambda: dist.all_gather([torch.ones(1, device="cpu") for _ in range(n)], torch.ones(1)))
    # And between ranks.
    g = dist.new_group()
    dist.all_reduce(torch.ones(1), group=g)
    refused(weft.Error, ["rank"], lambda: dist.all_reduce(torch.ones(4, device="cpu" if r == 1 else "cuda"), group=g))
    # Types that differ between ranks.
    g = dist.new_group()
    refused(weft.Error, ["float32", "int32"], lambda: dist.all_reduce(torch.ones(4, dtype=torch.int32 if r == 1 else torch.float32), group=g))

    # Memory that was freed, on one rank. The group goes on.
    class Raw:
        def __init__(self, at):
            self.__cuda_array_interface__ = {"shape": (64,), "typestr": "<f4", "data": (at, False), "version": 3}

    cuda, at = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
    assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(4 << 20)) == 0
    t = torch.as_tensor(Raw(at.value), device="cuda").fill_(1)
    g = dist.new_group()
    dist.all_reduce(t, group=g)
    assert t.eq(n).all()
    torch.cuda.synchronize()
    dist.barrier()
    if r == 1:
        assert cuda.cuMemFree_v2(at) == 0
    refused((weft.Error, ValueError), ["freed"] if r == 1 else ["rank 1", "freed"], lambda: dist.all_reduce(t, group=g))
    u = torch.ones(4)
    dist.all_reduce(u, group=g)
    assert u.eq(n).all()
    del t


PARTS = [streams, messages, unequal, views, ddp, zero, fsdp2, fsdp1, dtensor, mesh2, functional, compiled, plain_compiled, powersgd,
         tensor_parallel, checkpoint, pipeline, mixed, objects, half, coalesced, graphs, wrong]
OURS = (streams, mixed, graphs, wrong)  # what other backends do not promise


def main(rank, n, port, device, backend, names, out):
    global DEVICE
    DEVICE = device
    local = rank if device == "cpu" else rank % torch.cuda.device_count()
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(n), LOCAL_RANK=str(local), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(280, exit=True)  # a rank that hangs says where
    if device != "cpu":
        torch.cuda.set_device(local)
        torch.set_default_device(device)
    if backend == "weft":
        import weft.torch  # noqa: F401
    dist.init_process_group(backend)
    failed = []
    for part in PARTS:
        if names and part.__name__ not in names or backend != "weft" and part in OURS:
            continue
        try:
            part()
            word = "passed"
        except Exception as e:
            word = f"failed: {type(e).__name__}: {str(e).splitlines()[0][:300] if str(e) else ''}"
            failed.append(part.__name__)
            if rank == 0:
                traceback.print_exc()
        if rank == 0:
            print(f"{backend}  {n} ranks  {device}  {part.__name__:15} {word}", flush=True)
        dist.barrier()
    dist.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()
    out.put(failed)


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("-n", type=int, default=2)
    p.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    p.add_argument("--backend", default="weft", choices=("weft", "gloo"))
    p.add_argument("names", nargs="*", metavar="PART", help=", ".join(f.__name__ for f in PARTS))
    a = p.parse_args()
    if int(torch.__version__.split(".")[0]) < 2:
        raise SystemExit(f"this is for PyTorch 2; here is {torch.__version__}")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = mp.get_context("spawn")
    out = context.SimpleQueue()
    ranks = [context.Process(target=main, args=(r, a.n, port, a.device, a.backend, a.names, out)) for r in range(a.n)]
    for r in ranks:
        r.start()
    for r in ranks:
        r.join(300)
    bad = [r.exitcode for r in ranks if r.exitcode != 0]
    for r in ranks:
        if r.exitcode is None:
            r.kill()
    failed = [] if bad else [f for _ in ranks for f in out.get()]
    print("PyTorch", torch.__version__, "failed:" if bad or failed else "all passed", bad or failed or "")
    sys.exit(bool(bad or failed))
