"""What can go wrong with torch.distributed over weft, done on purpose. A drill runs on all ranks of a launcher:

    PYTHONPATH=python weft run -n 3 -- python3 python/tests/torch_drills.py values bad-input groups

kill, interrupt and exit end ranks and run alone. A rank prints "NAME is well" after each."""

import gc
import os
import random
import signal
import sys
import threading
import time
import weakref
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import weft
import weft.torch

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def refused(kind, words, call):
    """The call raises such an exception, with these words, long before a time limit."""
    began = time.monotonic()
    try:
        call()
    except kind as e:
        assert time.monotonic() - began < 60, f"it took {time.monotonic() - began:.0f} s"
        missing = [w for w in words if w not in str(e)]
        assert not missing, f"{missing} is not in: {e}"
        return e
    raise AssertionError(f"nothing was raised; want {kind.__name__} with {words}")


def values():
    """Results against plain PyTorch, for types and forms that are seldom used."""
    torch.manual_seed(3)
    inputs = [torch.randn(7, 5) for _ in range(SIZE)]
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int64, torch.complex64):
        t = (inputs[RANK] * 4).to(dtype)
        want = sum((x * 4).to(dtype).to(torch.complex128 if dtype.is_complex else torch.float64) for x in inputs)
        dist.all_reduce(t)
        torch.testing.assert_close(t.to(want.dtype), want, rtol=0.02, atol=0.1 if dtype in (torch.float16, torch.bfloat16) else 1e-5)
    for op, want in ((dist.ReduceOp.MIN, torch.stack(inputs).amin(0)), (dist.ReduceOp.MAX, torch.stack(inputs).amax(0)),
                     (dist.ReduceOp.PRODUCT, torch.stack(inputs).prod(0)), (dist.ReduceOp.AVG, torch.stack(inputs).mean(0))):
        t = inputs[RANK].clone()
        dist.all_reduce(t, op=op)
        torch.testing.assert_close(t, want)
    t = torch.tensor([RANK == 1, True, False])
    dist.all_reduce(t)
    assert t.tolist() == [SIZE > 1, True, False], t
    # A tensor that is in a list twice is reduced once.
    t, whole = torch.tensor([RANK + 1.0]), torch.arange(4.0) + RANK
    dist.all_reduce_coalesced([t, t])
    assert t.item() == SIZE * (SIZE + 1) / 2, t
    dist.all_reduce_coalesced([whole, whole[1:3]])
    assert whole.tolist() == [SIZE * (x + (SIZE - 1) / 2) for x in range(4)], whole
    # A view with gaps is reduced in place, and what lies in the gaps stays.
    base = torch.zeros(4, 6)
    base[:, ::2] = RANK + 1.0
    dist.all_reduce(base[:, ::2])
    assert base[:, ::2].eq(SIZE * (SIZE + 1) / 2).all() and base[:, 1::2].eq(0).all()
    for async_op in (False, True):
        outs = [torch.empty(r + 1, 2) for r in range(SIZE)]
        w = dist.all_gather(outs, torch.full((RANK + 1, 2), float(RANK)), async_op=async_op)
        if async_op:
            w.wait()
        assert all(o.eq(r).all() for r, o in enumerate(outs))
    # Empty tensors take part.
    dist.all_reduce(torch.empty(0))
    # Registered memory, and parts of it.
    r = weft.torch.empty(100000)
    r.fill_(RANK)
    dist.all_reduce(r)
    assert weft.torch.is_registered(r) and r.eq(SIZE * (SIZE - 1) / 2).all()
    dist.broadcast(r[10:20], 0)
    # Sparse tensors of different sizes.
    s = torch.sparse_coo_tensor([[0, RANK + 1]], [1.0, 2.0], (SIZE + 1,))
    dist.all_reduce(s)
    assert s.to_dense().tolist() == [float(SIZE)] + [2.0] * SIZE, s.to_dense()
    # A started call is not waited for, and its buffers stay.
    for _ in range(100):
        dist.all_reduce(torch.ones(1000), async_op=True)
    gc.collect()
    dist.barrier()
    # So do inputs that lie one behind another: each may have a storage of its own.
    inputs, outs = list(torch.arange(2.0 * SIZE).split(2)), [torch.empty(2) for _ in range(SIZE)]
    refs = [weakref.ref(i) for i in inputs]
    g = dist.distributed_c10d._get_default_group()
    if RANK:
        g._store.get("rank 0 has looked")
    w = g.alltoall(outs, inputs)
    del inputs
    if RANK == 0 and SIZE > 1:
        assert all(r() is not None for r in refs), "inputs of a call under way were let go of"
        g._store.set("rank 0 has looked", "")
    w.wait()
    assert all(o.eq(torch.arange(2.0 * RANK, 2 * RANK + 2)).all() for o in outs), outs
    # The short forms of a group's own methods, by position and by name.
    last = SIZE - 1
    for call in (lambda t: g.broadcast(t, last), lambda t: g.broadcast(t, root=last), lambda t: g.broadcast(tensor=t, root=last)):
        t = torch.full((3,), float(RANK))
        call(t).wait()
        assert t.eq(last).all(), t
    for call in (lambda t: g.allreduce(t, op=dist.ReduceOp.MAX), lambda t: g.reduce(t, root=last, op=dist.ReduceOp.MAX), lambda t: g.reduce(t, last, dist.ReduceOp.MAX)):
        t = torch.full((3,), float(RANK))
        call(t).wait()
        assert RANK != last or t.eq(last).all(), t
    t = torch.ones(3)
    g.reduce(t, last).wait()
    assert RANK != last or t.eq(SIZE).all(), t
    # Calls that are waited for together are over when all are, and have all results.
    g._start_coalescing()
    for i in range(3):
        g.allreduce([torch.full((2,), float(i))])
    several = g._end_coalescing()
    assert [t.tolist() for t in several.get_future().wait()] == [[float(i * SIZE)] * 2 for i in range(3)]
    assert several.is_success() and several.exception() is None and len(several.result()) == 3
    # Messages cross: neither waits for the other's end.
    if SIZE > 1 and RANK < 2:
        got = torch.empty(200000)
        works = [dist.isend(torch.full((200000,), float(RANK)), 1 - RANK, tag=7), dist.irecv(got, 1 - RANK, tag=7)]
        for w in works:
            w.wait()
        assert got.eq(1 - RANK).all()
    futures = [dist.all_reduce(torch.ones(10), async_op=True).get_future().then(lambda f: f.value()[0].sum()) for _ in range(5)]
    assert [f.wait().item() for f in futures] == [10.0 * SIZE] * 5


def bad_input():
    """Wrong calls are errors on all ranks, and nobody hangs. Each group is of no use after ranks called different things."""
    def group():
        return dist.new_group()

    # All ranks are wrong alike: each learns what is wrong, and the group goes on.
    g = group()
    refused(TypeError, ["meta"], lambda: dist.all_reduce(torch.empty(3, device="meta"), group=g))
    refused(TypeError, ["layout", "sparse"], lambda: dist.broadcast(torch.eye(3).to_sparse(), 0, group=g))
    refused((ValueError, RuntimeError), [str(SIZE)], lambda: dist.all_gather_into_tensor(torch.empty(1), torch.empty(1000), group=g))
    refused(ValueError, ["split sizes"], lambda: dist.all_to_all_single(torch.empty(4), torch.empty(4), [9] * SIZE, [9] * SIZE, group=g))
    refused(ValueError, ["divided"], lambda: dist.all_to_all_single(torch.tensor(1.0), torch.tensor(2.0), group=g))
    t = torch.ones(3)
    dist.all_reduce(t, group=g)
    assert t.eq(SIZE).all()
    # One rank is.
    g = group()
    if RANK == 1:
        refused(TypeError, ["meta", "others make another call"], lambda: dist.all_reduce(torch.empty(3, device="meta"), group=g))
    else:
        refused(weft.Error, ["rank 1"], lambda: dist.all_reduce(torch.ones(3), group=g))
    # Types and sizes differ between ranks.
    g = group()
    refused(weft.Error, ["float32", "int32"], lambda: dist.all_reduce(torch.ones(4, dtype=torch.int32 if RANK == 1 else torch.float32), group=g))
    g = group()
    refused(weft.Error, ["rank"], lambda: dist.all_reduce(torch.ones(4 + (RANK == 1)), group=g))
    g = group()
    if RANK == 1:
        refused(weft.Error, ["broadcast"], lambda: dist.broadcast(torch.ones(4), 0, group=g))
    else:
        refused(weft.Error, ["broadcast"], lambda: dist.all_reduce(torch.ones(4), group=g))
    # Reductions that have no meaning.
    g = group()
    refused((ValueError, RuntimeError), [], lambda: dist.all_reduce(torch.ones(4), op=dist.ReduceOp.BAND, group=g))
    dist.barrier()


def count():
    fds = len(os.listdir("/proc/self/fd"))
    with open("/proc/self/status") as f:
        words = dict(line.split(":", 1) for line in f)
    return fds, int(words["Threads"]), int(words["VmRSS"].split()[0]) // 1024


def groups():
    """Groups that are made and destroyed leave nothing behind."""
    cycles = int(os.environ.get("CYCLES", "30"))
    ranks = [[0, 1], None, [SIZE - 1, 0]]

    def cycle(n):
        for i in range(n):
            g = dist.new_group(ranks[i % 3])
            if g is not dist.GroupMember.NON_GROUP_MEMBER:
                t = torch.ones(2)
                dist.all_reduce(t, group=g)
                assert t[0].item() == dist.get_world_size(g)
                dist.destroy_process_group(g)
            del g
        gc.collect()
        dist.barrier()

    cycle(15)
    seen = [count()]
    for _ in range(4):
        cycle(cycles // 4)
        seen.append(count())
    print(f"{dist.get_backend()}: descriptors, threads, MiB at first and after each of four times {cycles // 4} groups: {seen}", flush=True)
    # PyTorch keeps a few keys in its store for every group. Ours are gone; a thousand of PyTorch's are some MiB.
    before, after = seen[0], seen[-1]
    assert after[0] <= before[0] + 2 and after[1] <= before[1] + 6 and after[2] <= before[2] + 20, seen


def lists():
    """Ranks that call new_group with different lists all learn of it, and never compute with each other's values."""
    assert SIZE == 3
    for mine in ([0, 1] if RANK == 1 else [0, 2],                 # one rank is in a group of its own
                 [0, 1, 2] if RANK == 2 else [0, 1],              # of another size
                 [0, 1] if RANK == 0 else [1, 2]):                # rank 0 waits for one that never comes
        g = dist.new_group(mine)
        for call in (lambda: dist.all_reduce(torch.full((4,), float(RANK)), group=g), lambda: dist.barrier(group=g)):
            refused(RuntimeError, [str(mine), "new_group", "calls it with"], call)
        dist.barrier()
    for same in ([0, 1], [2, 0], [0, 1, 2]):
        g = dist.new_group(same)
        if RANK in same:
            t = torch.full((4,), float(RANK))
            dist.all_reduce(t, group=g)
            assert t[0].item() == sum(same), t
    dist.barrier()


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return torch.full((16,), float(i)), torch.tensor([float(i % 3)])


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(16, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))


def step(m, x, y):
    m.zero_grad(set_to_none=False)
    loss = (m(x) - y).pow(2).mean()
    loss.backward()
    return loss


def loader():
    """Workers of a DataLoader, forked and spawned while a group is at work; gradients in registered memory; a small collector."""
    gc.set_threshold(1, 100, 100)  # not all that PyTorch has, every time
    for way in ("fork", "spawn"):
        m = DDP(model(), gradient_as_bucket_view=way == "fork")
        # A spawned worker imports PyTorch, which takes longer than all else here: rank 0 alone has one.
        how = dict(num_workers=1, multiprocessing_context=way) if way == "fork" or RANK == 0 else {}
        data = torch.utils.data.DataLoader(Rows(), batch_size=16, **how)
        for x, y in data:
            step(m, x, y)
        assert any(b.size >= 64 << 10 for b in weft.torch._memory._blocks.values()), "no bucket is in registered memory"
        total = sum(p.grad.double().sum() for p in m.parameters())
        every = [torch.empty_like(total) for _ in range(SIZE)]
        dist.all_gather(every, total)
        assert all(t == total for t in every), every
    gc.set_threshold(700)
    # A child that is forked must not use the group, and is told so.
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            dist.all_reduce(torch.ones(1))
        except weft.Error as e:
            code = 0 if "fork" in str(e) else 2
        os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0, "a forked child used the group"
    dist.barrier()


LATE = 0.5 if SIZE == 2 else 3  # seconds: within them all but the one that is missing come, also on a busy machine


def monitored():
    """A barrier that names who is missing."""
    weft.torch.monitored_barrier(timeout=20)
    if RANK == 0:
        refused(RuntimeError, ["Rank 1 failed to pass monitoredBarrier"], lambda: weft.torch.monitored_barrier(timeout=LATE))
    elif RANK > 1:
        refused(RuntimeError, [f"Rank {RANK} successfully reached monitoredBarrier"], lambda: weft.torch.monitored_barrier(timeout=LATE))
    dist.barrier()


def kill():
    """Rank 1 is killed in the middle of a backward pass. The others learn who it was."""
    m = DDP(model())
    x, y = torch.ones(4, 16), torch.ones(4, 1)
    for i in range(5):
        step(m, x, y)
    if RANK == 1:
        for p in m.parameters():
            p.register_hook(lambda g: os.kill(os.getpid(), signal.SIGKILL))
    e = refused(weft.torch.Error, ["rank 1"], lambda: [step(m, x, y) for _ in range(3)])
    assert e.culprits == [1] and e.code in (1, 4), (e.culprits, e.code, str(e))


class Mixture:
    """Calls on several groups that share ranks: blocking ones, started ones that are waited for at once, late, by their futures or by
    asking, of sizes that take different ways. All ranks draw the same calls; when they wait, and compute between, each draws for itself."""

    SIZES = (1, 2, 2, 2, 256, 16384, 300000)

    def __init__(self, seed):
        self.calls, self.own, self.seed, self.number = random.Random(seed), random.Random(f"{seed} {RANK}"), seed, 0
        self.groups = [(members, dist.new_group(members)) for members in ([0, 1, 2], [0, 1], [1, 2], [0, 2])]
        self.open = []

    def step(self, groups):
        members, group = groups[self.calls.randrange(len(groups))]
        n, blocking, op = self.calls.choice(self.SIZES), self.calls.random() < 0.4, self.calls.choice(("sum", "sum", "broadcast", "gather"))
        self.number += 1
        if RANK not in members:
            return
        x = torch.full((n,), float(RANK + self.number % 100))
        want, out = [float(r + self.number % 100) for r in members], [x]
        sum(range(self.own.randrange(0, 3000)))
        if op == "sum":
            work, want = dist.all_reduce(x, group=group, async_op=not blocking), [sum(want)]
        elif op == "broadcast":
            work, want = dist.broadcast(x, members[-1], group=group, async_op=not blocking), want[-1:]
        else:
            out = [torch.empty(n) for _ in members]
            work = dist.all_gather(out, x, group=group, async_op=not blocking)
        self.open.append((self.number, op, work, out, want))
        while self.open and (len(self.open) > 8 or self.own.random() < 0.4):
            self.end(self.own.randrange(len(self.open)))

    def end(self, i):
        number, op, work, out, want = self.open.pop(i)
        how = self.own.randrange(3) if work is not None else 3
        if how == 0:
            work.wait()
        elif how == 1:
            work.get_future().wait()
        elif how == 2:
            while not work.is_completed():
                pass
            work.wait()
        assert all(t.eq(w).all() for t, w in zip(out, want)), f"seed {self.seed}, call {number}, {op}: {[t[0].item() for t in out]}, want {want}"

    def rest(self):
        while self.open:
            self.end(0)


def mixed():
    """Blocking and started calls on several groups, some over when they are started, give the right values whatever order they end in."""
    assert SIZE == 3
    for seed in range(int(os.environ.get("SEEDS", "3"))):
        m = Mixture(seed)
        for _ in range(400):
            m.step(m.groups)
        m.rest()
        dist.barrier()
        for _, g in m.groups:
            if g is not dist.GroupMember.NON_GROUP_MEMBER:
                dist.destroy_process_group(g)


def mixed_kill():
    """The same when rank 1 is killed between two calls, with some of its own under way: the others learn who it was, and a group without
    it goes on."""
    assert SIZE == 3
    m = Mixture("kill")
    for _ in range(200):
        m.step(m.groups)
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)

    def on():
        for _ in range(200):
            m.step(m.groups)
        m.rest()

    refused(weft.torch.Error, ["rank 1"], on)
    m.open.clear()
    left = m.groups[-1][1]
    for i in range(100):
        x = torch.full((1 + i * i,), float(RANK))
        work = dist.all_reduce(x, group=left, async_op=i % 2 == 0)
        if work is not None:
            work.wait()
        assert x.eq(2).all()


def nested():
    """Callbacks start calls and wait for their futures, levels deep, in chains, for several at once and for one that began before."""
    def start(x):
        return dist.all_reduce(torch.full((4,), float(x)), async_op=True).get_future()

    def value(f):
        return f.value()[0][0].item()

    def down(levels, x):
        """The sum of all levels, each of which is waited for in a callback of the one above."""
        if levels == 0:
            return start(x).wait()[0][0].item()
        return start(x).then(lambda f: value(f) + down(levels - 1, x + 1)).wait()

    assert down(3, 1) == SIZE * (1 + 2 + 3 + 4)
    assert down(12, 0) == SIZE * sum(range(13))  # more levels than threads are kept
    assert down(1, 5) == SIZE * 11
    for i in range(20):
        assert start(i).then(lambda f: value(f) + down(2, 10 * i)).wait() == SIZE * (i + 30 * i + 3)
    assert start(1).then(lambda f: sum(t[0][0].item() for t in torch.futures.wait_all([start(2), start(3)]))).wait() == SIZE * 5
    before, after = start(1), start(2)
    chained = after.then(value)
    assert before.then(lambda f: chained.wait()).wait() == SIZE * 2
    # A callback may ask its own work for the future, and an error in one is that of its future.
    w = dist.all_reduce(torch.ones(1), async_op=True)
    assert w.get_future().then(lambda f: w.get_future().done() and w.wait()).wait() is True
    refused(RuntimeError, ["an error below"], lambda: start(1).then(lambda f: start(2).then(lambda g: dict()["an error below"]).wait()).wait())
    dist.barrier()
    threads = sum(t.name == "weft futures" for t in threading.enumerate())
    assert threads <= 9, f"{threads} threads are left"


def across():
    """Callbacks of two groups, with a thread each, make blocking calls. Which of them runs first differs between ranks, so one that waits
    must let the other run."""
    failed = []

    def loop(g):
        def blocking(f):
            t = torch.full((2,), 3.0)
            dist.all_reduce(t, group=g)
            dist.barrier(group=g)
            return t

        try:
            for _ in range(60):
                f = dist.all_reduce(torch.ones(1), group=g, async_op=True).get_future()
                assert f.then(blocking).wait().eq(3 * SIZE).all()
        except Exception as e:
            failed.append(e)

    limit = timedelta(seconds=60)
    threads = [threading.Thread(target=loop, args=(dist.new_group(timeout=limit),)) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed, failed


def order():
    """Callbacks that start calls of one size at once, on ranks of which each is held up at other moments. They start them in the same
    order on all ranks. Where no order holds, which is a callback against the program itself, a call raises: no sum is wrong."""
    dice = random.Random(RANK)

    def held_up():
        if dice.random() < 0.4:
            time.sleep(dice.random() / 500)

    def start(x, group=None):
        return dist.all_reduce(torch.full((4,), float(x)), group=group, async_op=True).get_future()

    def value(f):
        held_up()
        return f.value()[0][0].item()

    def down(levels, x):
        f = start(x)
        held_up()  # it may be complete by now
        if levels == 0:
            return f.wait()[0][0].item()
        return f.then(lambda f: value(f) + down(levels - 1, x + 1)).wait()

    def several(_):
        held_up()
        tops = [start(i) for i in range(5)]
        held_up()
        return [f.wait() for f in [f.then(lambda f, i=i: value(f) + down(2, 10 * i)) for i, f in enumerate(tops)]]

    def waited(x):
        """The same by waiting for the work, not for its future."""
        w = dist.all_reduce(torch.full((4,), float(x)), async_op=True)
        below = w.get_future().then(lambda f: value(f) + start(x + 1).wait()[0][0].item())
        held_up()
        assert w.wait() and w.is_completed() and w.get_future().done()
        return below.wait()

    for _ in range(20):
        f = start(0)
        held_up()
        got, want = f.then(several).wait(), [SIZE * (i + 30 * i + 3) for i in range(5)]
        assert got == want, (got, want)
        assert waited(7) == SIZE * 15

    # The program goes on while callbacks start calls.
    raced = 0
    for i in range(10):
        g, inner = dist.new_group(), []
        try:
            for k in range(5):
                start(k, g).then(lambda f, k=k: inner.append((k, start(100 + k, g))))
                held_up()
            start(0, g).wait()  # behind it all callbacks have run
            for k, f in inner:
                assert f.wait()[0][0].item() == SIZE * (100 + k), f"callback {k}: {f.value()}"
        except weft.Error as e:
            assert "callback" in str(e), e
            raced += 1
    print(f"{raced} of 10 races were told", flush=True)
    dist.barrier()


# Groups that live as long as the process. A callback of Gloo's keeps its group until one of the group's own threads drops it; if that is
# the last reference, the thread waits for itself, and std::system_error ends the process.
KEPT = []


def powersgd():
    """PowerSGD's hook for DDP, whose callbacks wait for calls: weft and Gloo train the same."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    def train(group):
        m = DDP(model(), process_group=group, bucket_cap_mb=64)
        state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=0.5)
        m.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        optimizer = torch.optim.SGD(m.parameters(), lr=0.01)
        generator = torch.Generator().manual_seed(RANK)
        for _ in range(8):
            step(m, torch.randn(8, 16, generator=generator), torch.ones(8, 1))
            optimizer.step()
        return [p.detach().clone() for p in m.parameters()]

    gloo = dist.new_group(backend="gloo")
    KEPT.append(gloo)
    ours, theirs = train(dist.group.WORLD), train(gloo)
    for a, b, first in zip(ours, theirs, model().parameters()):
        torch.testing.assert_close(a, b)
        assert not torch.equal(a, first), "nothing was learned"


def join():
    """Ranks with fewer batches than others, gradients divided by those that still train, and by all: weft and Gloo give the same."""
    def train(group):
        seen = []
        m = DDP(model(), process_group=group)
        for static in (False, True):
            with m.join(divide_by_initial_world_size=static):
                for _ in range(2 + 2 * RANK):
                    step(m, torch.ones(1, 16), torch.zeros(1, 1))
                    seen.append(next(m.parameters()).grad.clone())
                    m.zero_grad()
        return seen

    ours, theirs = train(dist.group.WORLD), train(dist.new_group(backend="gloo"))
    assert len(ours) == len(theirs) == 4 + 4 * RANK
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b)


def profile():
    """PyTorch's profiler lists weft's calls as it lists Gloo's."""
    def count(group, backend):
        m = DDP(model(), process_group=group)
        x = torch.ones(4)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as p:
            for _ in range(3):
                step(m, torch.ones(1, 16), torch.zeros(1, 1))
            dist.all_reduce(x, group=group)
            dist.all_reduce(x, group=group, async_op=True).wait()
            dist.all_gather([torch.empty(4) for _ in range(SIZE)], x, group=group)
        return {e.key.partition(":")[2]: (e.count, e.is_async) for e in p.key_averages() if e.key.startswith(backend + ":")}

    ours, theirs = count(dist.group.WORLD, "weft"), count(dist.new_group(backend="gloo"), "gloo")
    # A thread of Gloo ends the record of a call after its wait returned: the profiler may have stopped by then.
    assert ours.keys() == theirs.keys() and all(theirs[k][0] <= n <= theirs[k][0] + 1 for k, (n, _) in ours.items()), (ours, theirs)
    assert ours["all_reduce"][0] == 5, ours


def apart():
    """Tensors of two allocations that happen to touch are not taken for one."""
    from weft.torch._group import _joined
    memory = bytearray(32)
    for a, b, one in ((torch.frombuffer(memory, dtype=torch.float32, count=4), torch.frombuffer(memory, dtype=torch.float32, count=4, offset=16), False),
                      (*torch.zeros(8).view(2, 4), True)):
        assert a.data_ptr() + 16 == b.data_ptr()
        flat, spread = _joined([a, b], a)
        assert (flat.data_ptr() == a.data_ptr()) == one == (spread is None), (flat.data_ptr(), a.data_ptr(), spread)
        out = [a, b]
        dist.all_gather(out, torch.full((4,), RANK + 1.0))
        assert out[0].tolist() == [1] * 4 and out[1].tolist() == [2] * 4, out


def dead_member():
    """Rank 1 is killed before it calls new_group. The others learn who it was, long before the time limit."""
    store = dist.distributed_c10d._get_default_group()._store
    dist.barrier()
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    e = refused(weft.torch.Error, ["new_group", "rank 1 died"], dist.new_group)
    assert e.culprits == [1] and e.code == weft.DeadRank.code, (e.culprits, e.code)
    store.get("rank 2 has raised") if RANK == 0 else store.set("rank 2 has raised", "")  # the store is in rank 0


def far_member():
    """The same for ranks that do not see one another's processes, as on other hosts: the group of all ranks knows."""
    dead_member()


def absent():
    """Rank 1 never joins. The others name it when the limit has passed, which is one limit for all parts of joining."""
    limit = timedelta(seconds=4)
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, RANK == 0, wait_for_workers=False)
    if RANK != 1:  # both begin to join at once, however long each took to start
        store.set(f"rank {RANK} is here", "")
        store.get(f"rank {2 - RANK} is here")
        e = refused(weft.torch.Error, ["joining", "rank 1"], lambda: dist.init_process_group("weft", store=store, rank=RANK, world_size=SIZE, timeout=limit))
        assert e.culprits == [1], (e.culprits, str(e))
    store.set(f"rank {RANK} is over", "")
    for r in range(SIZE if RANK == 0 else 0):  # the store is in rank 0
        store.get(f"rank {r} is over")


def interrupt():
    """Ctrl-C ends waits of every kind."""
    for name, call in (("blocking", lambda: dist.all_reduce(torch.ones(1), group=g)), ("started", lambda: dist.all_reduce(torch.ones(1), group=g, async_op=True).wait()),
                       ("receive", lambda: dist.recv(torch.ones(1), 1, group=g, tag=3)),
                       ("future", lambda: dist.all_reduce(torch.ones(1), group=g, async_op=True).get_future().wait()),
                       ("chained", lambda: dist.all_reduce(torch.ones(1), group=g, async_op=True).get_future().then(lambda f: 1).wait()),
                       ("new_group", dist.new_group)):  # the last: rank 1 has made one group less then
        g = dist.new_group()
        if RANK == 0:
            timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
            began = time.monotonic()
            try:
                timer.start()
                call()
                raise AssertionError(f"{name}: nothing was raised")
            except KeyboardInterrupt:
                print(f"{name}: KeyboardInterrupt {time.monotonic() - began - 0.5:.2f} s after the signal", flush=True)
                assert time.monotonic() - began < 60
            timer.join()
        dist.barrier()


def exit_():
    """A program that ends without a word, with a group, works and a future at hand, ends with code 0."""
    dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()
    m = DDP(model())
    for _ in range(4):
        step(m, torch.ones(4, 16), torch.ones(4, 1))
    dist.barrier()


DRILLS = {"values": values, "bad-input": bad_input, "groups": groups, "lists": lists, "loader": loader, "monitored": monitored, "kill": kill, "interrupt": interrupt,
          "nested": nested, "order": order, "across": across, "powersgd": powersgd, "join": join, "profile": profile, "apart": apart, "dead-member": dead_member, "far-member": far_member, "absent": absent, "exit": exit_,
          "mixed": mixed, "mixed-kill": mixed_kill}


def main():
    torch.set_num_threads(1)
    if "far-member" in sys.argv:
        weft.torch._present._here = lambda: f"host {RANK}"
    if "absent" not in sys.argv:
        dist.init_process_group(os.environ.get("BACKEND", "weft"))
    for name in sys.argv[1:]:
        DRILLS[name]()
        print(f"{name} is well", flush=True)
    if not {"kill", "mixed-kill", "exit", "dead-member", "far-member", "absent"} & set(sys.argv):
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
