"""Training that goes on when a rank dies, without a restart of the others.

    weft run --follow --nproc 4 -- python3 train.py

    import weft.torch.elastic as elastic

    def train(state):                                   # called again in every epoch
        ddp = DistributedDataParallel(state.model)
        while state.step < 1000:
            ...forward, backward, state.optimizer.step()...
            state.commit()                              # the step counts, on all ranks

    elastic.run(train, elastic.State(model=model, optimizer=optimizer))

An epoch is a set of ranks. When one of them dies, or comes back, the collective under way fails on the others with an error that
names it. run catches that, forms the next epoch's process group, gives every rank the state of the one that is furthest, and calls
train again, in the same process. Nothing but the step under way is repeated.

So train must make what belongs to a process group (DistributedDataParallel, samplers, subgroups) anew each time, and everything
that has to survive is in the state: step, the number of steps that count, is there already.
"""

import ctypes
import gc
import io
import os
import signal
import threading
import traceback
from ctypes import byref, c_int64
from datetime import timedelta

import torch
import torch.distributed as dist

from .. import _lib
from . import _group, _native as native
from ._work import Error

__all__ = ["State", "run", "epoch"]

epoch = 0  # the number of the one this process is in


class State:
    """What outlives a rank: step, and what is given by name. What has state_dict and load_state_dict is saved by these; the rest
    must be values that torch.save takes."""

    def __init__(self, **parts):
        self.__dict__.update(parts)
        self._names, self._commit = list(parts), None
        self.step = parts.get("step", 0)
        if "step" not in parts:
            self._names.append("step")

    def commit(self):
        """Ends a step on all ranks. It does not return if the set of ranks changes here: train is called again then."""
        if self._commit is None:
            raise RuntimeError("State.commit is for the function that weft.torch.elastic.run calls")
        self.step += 1
        self._commit()

    def _save(self):
        parts = {}
        for name in self._names:
            value = getattr(self, name)
            parts[name] = value.state_dict() if hasattr(value, "state_dict") else value
        out = io.BytesIO()
        torch.save(parts, out)
        return out.getvalue()

    def _load(self, saved):
        more = {"weights_only": False} if _group.VERSION >= (2, 0) else {}
        for name, value in torch.load(io.BytesIO(saved), **more).items():
            mine = getattr(self, name)
            if hasattr(mine, "load_state_dict"):
                mine.load_state_dict(value)
            else:
                setattr(self, name, value)

    def _spread(self):
        """Gives every rank the state of the one that is furthest."""
        mine = torch.tensor([self.step], dtype=torch.int64)
        steps = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(steps, mine)
        steps = [int(s) for s in steps]
        if min(steps) == max(steps):
            if self.step or len(steps) == 1:
                return
        first = steps.index(max(steps))
        saved = self._save() if dist.get_rank() == first else b""
        size = torch.tensor([len(saved)], dtype=torch.int64)
        dist.broadcast(size, first)
        data = torch.frombuffer(bytearray(saved), dtype=torch.uint8) if saved else torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(data, first)
        if not saved:
            self._load(data.numpy().tobytes())


class _Moved(BaseException):
    """Another epoch begins: what runs in this one ends."""

    def __init__(self, task):
        super().__init__(task)
        self.task = task


class _Follower:
    def __init__(self):
        self.handle = c_int64()
        self.error = _lib.Error()
        self._check(_lib.lib().weft_follow(byref(self.handle), self.error))

    def _check(self, rc):
        if rc == _lib.INTERRUPTED:
            _lib.reraise()
        if rc:
            raise RuntimeError(self.error.text.decode(errors="replace"))

    def next(self):
        task = _lib.Task(ctypes.sizeof(_lib.Task))
        self._check(_lib.lib().weft_follow_next(self.handle, -1, byref(task), self.error))
        return task

    def done(self, last=False, failed=0, why=""):
        self._check(_lib.lib().weft_follow_done(self.handle, last, failed, why.encode()[:500], self.error))

    def leave(self, *_):
        _lib.lib().weft_follow_leave(self.handle, None)

    def close(self):
        _lib.lib().weft_follow_close(self.handle, None)


def _text(comm, text=""):
    """Tells all ranks of a communicator a text of rank 0."""
    buffer = ctypes.create_string_buffer(text.encode(), 128)
    call = _lib.Call(ctypes.sizeof(_lib.Call), op=_lib.BROADCAST, type=_lib.dtype(1, 8), dst=ctypes.addressof(buffer), count=len(buffer))
    native.check(_lib.lib().weft_run(comm, byref(call), None, native._local.error))
    return buffer.value.decode()


def _form(task, state, timeout):
    """Makes the process group of an epoch on its communicator."""
    global epoch
    host = os.environ.get("WEFT_HOST_ADDR") or "127.0.0.1"
    wait = {"timeout": timedelta(seconds=10), "wait_for_workers": False}
    if task.rank == 0:
        store = dist.TCPStore(host, 0, None, True, **wait)
        _text(task.comm, f"{host} {store.port}")
    else:
        host, port = _text(task.comm).split()
        store = dist.TCPStore(host, int(port), None, False, **wait)
    _group._ready = task.comm
    dist.init_process_group("weft", store=dist.PrefixStore(f"epoch {task.epoch}", store), rank=task.rank, world_size=task.ranks, timeout=timeout)
    epoch = task.epoch
    state._spread()


def _tear():
    """Ends the process group of an epoch."""
    _group._ready = None
    if dist.is_initialized():
        world = dist.distributed_c10d._get_default_group()
        dist.destroy_process_group()
        world.close()
    gc.collect()  # a DistributedDataParallel of the old group has hooks on the parameters until it is gone


def _elsewhere(e, comm):
    """Whether an exception comes of ranks that are gone: another epoch mends it."""
    return isinstance(e, (Error, native.Refused, getattr(dist, "DistStoreError", Error))) or not native.alive(comm)


def _reform(make):
    """Calls make, whose errors in PyTorch's store are those of a rank that is gone."""
    try:
        return make()
    except RuntimeError as e:
        raise Error(f"weft: forming an epoch: {e}") from e


def run(train, state, timeout=timedelta(seconds=60), halt=None):
    """Calls train(state) in every epoch, until it returns on all ranks. halt(state) is called when too few ranks are left to go on:
    there the state can be saved. SIGTERM lets this rank leave, and the others go on without it."""
    follower = _Follower()
    old = signal.signal(signal.SIGTERM, follower.leave) if threading.current_thread() is threading.main_thread() else None
    try:
        _follow(follower, train, state, timeout, halt)
    finally:
        if old is not None:
            signal.signal(signal.SIGTERM, old)
        _tear()
        follower.close()


def _follow(follower, train, state, timeout, halt):
    task = follower.next()
    while task.kind:
        if task.kind == _lib.STEP:
            task = _work(follower, train, state, task.comm)
            continue
        try:
            _tear()
            if task.kind == _lib.FORM:
                _reform(lambda: _form(task, state, timeout))
            elif halt is not None:
                halt(state)
        except Exception as e:
            _answer(follower, e, task.comm)
        else:
            follower.done()
        task = follower.next()


def _answer(follower, e, comm):
    """Says what failed. An error that another epoch does not mend is raised again."""
    mends = _elsewhere(e, comm)
    follower.done(failed=_lib.FAILED_ELSEWHERE if mends else _lib.FAILED, why=f"{type(e).__name__}: {e}")
    if not mends:
        raise e
    # The frames that it passed hold the model of the old group, whose hooks would go on.
    while e is not None:
        traceback.clear_frames(e.__traceback__)
        e.__traceback__, e = None, e.__context__


def _work(follower, train, state, comm):
    """Calls train, whose commits end one step after another, and gives the task after it."""

    def commit():
        follower.done()
        task = follower.next()
        if task.kind != _lib.STEP:
            raise _Moved(task)

    state._commit = commit
    try:
        train(state)
        follower.done(last=True)
    except _Moved as m:
        traceback.clear_frames(m.__traceback__)
        return m.task
    except Exception as e:
        _answer(follower, e, comm)
    finally:
        state._commit = None
    return follower.next()
