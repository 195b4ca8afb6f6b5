"""The process group: PyTorch's calls, made on a communicator."""

import atexit
import collections
import ctypes
import os
import secrets
import struct
import sys
import time
import warnings
import weakref
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import _create_work_from_future

from . import _memory, _native as native
from ._memory import in_backward
from ._names import Named
from ._members import Disagreement, Members, error, gone, late, wait
from ._present import Presence, put
from ._types import BYTE, SUM, TYPES, reduction
from ._work import Done, Error, Over, Queued, Work, ends, failure

_ReduceOp, _RedOpType = dist.ReduceOp, dist.ReduceOp.RedOpType
_SUM, _Options = _RedOpType.SUM, dist.AllreduceOptions
_STRIDED = torch.strided
_profiling = torch._C._autograd._profiler_enabled
VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
TESTED = ((1, 13), (2, 6), (2, 11), (2, 14))
# From PyTorch 2.7 on C++ keeps a Python Work alive while it holds it. Before, it holds the half of it that is C++.
_KEEPS_WORK = VERSION >= (2, 7)

# How a call is made: by a caller that waits at once, for one that gets the Work, or as a part of another Work.
SYNC, STARTED, PART = 0, 1, 2
_TRACER = "torch._dynamo.trace_rules"
_traced = True  # torch.compile may look into this package


def _stay_untraced():
    """Has torch.compile leave the calls of groups alone: DDP's forward pass makes some. What a group is (_names) it may read, for functional
    collectives. It is told once it is loaded; loading it takes seconds."""
    global _traced
    if _TRACER in sys.modules:
        _traced = False
        for name in ("_lib", *(f"torch.{m}" for m in ("_group", "_members", "_memory", "_native", "_present", "_work"))):
            getattr(sys.modules[_TRACER], "add", lambda _: None)(f"weft.{name}")


_OPTIONS_TELL = hasattr(dist.AllreduceOptions, "asyncOp")


def _mode(opts=None):
    """Whether who calls waits at once: then the call runs on this thread. From PyTorch 2.8 on the options of a collective tell.

    Otherwise, and for messages, nobody can know. The call is started, and wait carries it out on the thread that waits."""
    if _traced:
        _stay_untraced()
    return SYNC if _OPTIONS_TELL and opts is not None and getattr(opts, "asyncOp", True) is False else STARTED


class Options:
    """Settings of one group: pg_options=Options(transport="tcp", streams=4) is what WEFT_TRANSPORT=tcp and WEFT_STREAMS=4 are.

    address is where rank 0 listens (host:port, or host alone)."""

    def __init__(self, address=None, token=None, **settings):
        self.address, self.token = address, token
        self.settings = {"WEFT_" + k.upper(): str(v) for k, v in settings.items()}

    def lines(self):
        """As the library takes them; they come before the environment."""
        return "\n".join(f"{k}={v}" for k, v in self.settings.items())


_PLAIN = {torch.Tensor, torch.nn.Parameter}


def _wraps(t):
    """Whether a tensor has its memory in another one, so that its own address means nothing."""
    return getattr(type(t), "__torch_dispatch__", None) is not getattr(torch.Tensor, "__torch_dispatch__", None)


def _overlapping(tensors):
    """Which tensors of a list, by their places, share memory with an earlier one: they cannot all be reduced where they lie."""
    spans = sorted((t.data_ptr(), i, t.numel() * t.element_size()) for i, t in enumerate(tensors) if t.is_contiguous() and t.numel())
    shared, end = set(), 0
    for start, i, size in spans:
        if start < end:
            shared.add(i)
        end = max(end, start + size)
    return shared


class ProcessGroup(Named):
    """A group of ranks over weft."""

    def __init__(self, comm, rank, size, timeout, store=None, name=""):
        super().__init__(rank, size)
        self._comm, self._rank, self._size = comm, rank, size
        self._ms = max(1, int(timeout.total_seconds() * 1000))
        self._store, self._name, self._desc = store, name, ""
        self._live = {}         # works that are not over
        self._watched = collections.deque()  # collectives whose futures are not complete, in their order
        self._kept = {}         # works that C++ may hold: see Work.keep
        self._calls = 0
        self._collectives = 0   # of these
        self.token = object()   # stands for the group where it must not be kept
        self._coalesced = None  # works since _start_coalescing
        self._barriers = 0      # monitored ones
        self._above = None      # the group that it was made of
        self._lent = False      # whether somebody else closes the communicator
        self._late = None       # the error of a call whose wait was over before it failed
        self._members = None    # asked before the first call whether all ranks have the same list
        self._presence = None   # which ranks came, and live
        self._meeting = ""      # what tells the ranks of this Join from others
        self._sides = {}        # a stream of each device, for futures
        self._shared = bool(comm) and native.transport(comm) in ("shm", "mixed")
        _groups.add(self)

    # ---- what it is (and _names) ----

    def set_timeout(self, timeout):
        self._ms = max(1, int(timeout.total_seconds() * 1000))

    def _set_default_timeout(self, timeout):
        self.set_timeout(timeout)

    def _set_sequence_number_for_group(self):
        pass  # all ranks begin with 0

    def _get_sequence_number_for_group(self):
        return self._calls

    def _get_backend(self, device):
        return self  # PyTorch's own method knows only what C++ registered

    def __repr__(self):
        return f"<weft.torch.ProcessGroup {self._name!r}: rank {self._rank} of {self._size}>"

    def _root(self):
        """The group that joined, to which memory belongs."""
        return self if self._above is None else self._above._root()

    # ---- calls ----

    def _limit(self, mode, opts):
        """The time limit of a call, in milliseconds."""
        if mode == STARTED and opts is not None:
            t = opts.timeout.total_seconds()
            if t > 0:
                return int(t * 1000)
        return self._ms

    def _make(self, what, mode, opts, tensors, op, type=BYTE, reduce=0, factor=0.0, root=0, peer=0, tag=-2, dst=0, src=0, count=0,
              counts=None, sends=None, keep=None, finish=None, place=(0, 0, 0), recorded=False):
        """Makes one call and gives the Work for it."""
        if not recorded and _profiling():
            return self._record(dict(locals(), recorded=True))
        if self._late is not None:
            self._raise_late()
        if self._members is not None:
            self._agree()
        number = self._count(op)
        k = _pack(_SIZE, op, type, reduce, root, peer, 0, tag, 0, dst, src, count, 0,
                  ctypes.addressof(counts) if counts is not None else 0, ctypes.addressof(sends) if sends is not None else 0,
                  factor, self._limit(mode, opts), 0, 0, 0, 0, 0, *place, ends.cause(self) if number else 0)
        if place[0] and op < native.SEND:
            self._side(place[1])
            if mode == SYNC and self._coalesced is None:
                self._enqueue(what, op, k)
                if finish is not None:
                    finish()
                return _DONE
            work = self._work(what, self._start(what, op, k), tensors, (keep, counts, sends), finish, place)
            return self._hand(work, mode)
        waits = mode == SYNC and self._coalesced is None
        if waits and not ends.has_turn():
            if op == native.RECV:
                status = native.Status()
                rc = native.run(self._comm, k, ctypes.addressof(status), native.error())
            else:
                rc = native.run(self._comm, k, None, native.error())
            if rc:
                self._failed(rc, what, op)
            if finish is not None:
                finish()
            return Done(tensors, status.source) if op == native.RECV else _DONE
        requests = self._start(what, op, k)
        if requests or finish is not None:
            work = Work(self, what, requests, tensors, (keep, counts, sends), finish)
            work.number = number
        else:
            work = Over(self, what, tensors, number)
        if waits:
            work.wait()
            return work
        return self._hand(work, mode)

    def _record(self, call):
        """Makes a call under PyTorch's profiler, which lists it as weft:all_reduce from its beginning to its end."""
        call.pop("self")
        with torch.autograd.profiler.record_function("weft:" + call["what"]) as record:
            work = self._make(**call)
            if isinstance(work, Work):
                work.record(record)
            return work

    def _count(self, op):
        """Counts a call. Gives the number of a collective, 0 for a message."""
        self._calls += 1
        if op >= native.SEND:
            return 0
        self._collectives += 1
        return self._collectives

    def _work(self, what, requests, tensors, keep, finish, place):
        """The Work for calls that were started. Those on a GPU that are over are let go of."""
        if not place[0]:
            return Work(self, what, requests, tensors, keep, finish)
        for w in list(self._live.copy().values())[:4]:
            if not w.is_completed():
                break
        return Queued(self, what, requests, tensors, keep, finish, place[1])

    def _raise_late(self):
        e, self._late = self._late, None
        raise e

    def _agree(self):
        """Before the first call, when all ranks have passed new_group: raises on every member if their lists differ."""
        try:
            self._members.check()
        except Disagreement as e:
            raise RuntimeError(str(e)) from None
        self._members = None

    def _side(self, device):
        """A stream on which futures wait. It is made with the first call: making one waits for all that the GPU does."""
        s = self._sides.get(device)
        if s is None:
            s = self._sides[device] = torch.cuda.Stream(device)
        return s

    def _enqueue(self, what, op, k):
        """Makes a call on tensors of a GPU and lets the current stream wait for it. Their memory may be given back at once: what
        uses it next does so behind the call."""
        rc = native.enqueue(self._comm, k, native.error())
        if rc:
            self._failed(rc, what, op)

    def _start(self, what, op, k):
        """Starts a call. Gives its request, or none if it is over."""
        local = native.local
        rc = native.start(self._comm, k, local.request_address, local.address)
        if rc:
            self._failed(rc, what, op)
        request = local.request.value
        return (request,) if request else ()

    def _tidy(self):
        """Lets go of works that are over and that nobody waits for."""
        for w in list(self._live.copy().values())[:8]:  # other threads end works meanwhile
            w.is_completed()

    def _hand(self, work, mode):
        """Gives a work to the caller, in a form in which it can keep it."""
        if len(self._live) > 16:
            self._tidy()
        if self._coalesced is not None:
            self._coalesced.append(work)
        if mode == PART:
            return work
        if VERSION < (2, 0) and in_backward():
            return work.half()
        if not _KEEPS_WORK and work.number:
            work.keep()
        return work

    def _failed(self, rc, what, op):
        """A call that failed, or could not be made."""
        e = failure(rc, what)
        if rc in (native.INVALID, native.NO_DEVICE) and op < native.SEND:
            self._refuse(e)
        raise e

    def _refuse(self, why):
        """Raises why, after telling the other ranks, which may be in the call that this one cannot make.

        It makes a barrier instead. If the others refuse the same call, all pass it and go on. If they do not, all learn from
        weft's comparison of calls which rank did something else: none waits for the time limit."""
        k = _pack(_SIZE, native.BARRIER, 0, 0, 0, 0, 0, -2, 0, 0, 0, 0, 0, 0, 0, 0.0, self._ms, 0, 0, 0, 0, 0, 0, 0, 0, ends.cause(self))
        rc = native.run(self._comm, k, None, native.error())
        if rc == native.INTERRUPTED:
            native.reraise()
        if rc:
            why.args = (f"{why.args[0]}; the others make another call: {native.read()[0]}",)
        raise why

    # ---- tensors ----

    def _look(self, what, *tensors):
        """Refuses what cannot be sent, and says where it lies: device, number and stream."""
        place = None
        for t in tensors:
            if not isinstance(t, torch.Tensor):
                self._refuse(TypeError(f"{what}: {type(t).__name__} is no tensor"))
            if type(t) not in _PLAIN and _wraps(t):
                self._refuse(TypeError(f"{what}: a {type(t).__name__}, which wraps a tensor; call it with the tensor inside"))
            if t.layout is not _STRIDED:
                self._refuse(TypeError(f"{what}: a tensor of layout {t.layout}; only all_reduce takes sparse tensors"))
            at = _place(t)
            if at is None:
                self._refuse(TypeError(f"{what}: a tensor on {t.device}; weft moves tensors of cpu and cuda"))
            if place is not None and place != at:
                self._refuse(ValueError(f"{what}: tensors on {tensors[0].device} and on {t.device}; all must be on one device"))
            place = at
        return place or (0, 0, 0)

    def _same(self, what, first, others):
        """Refuses tensors of different types."""
        for t in others:
            if t.dtype is not first.dtype:
                self._refuse(ValueError(f"{what}: tensors of {first.dtype} and of {t.dtype}; all must have one type"))

    def _reducible(self, what, t):
        ty = TYPES.get(t.dtype)
        if ty is None:
            self._refuse(TypeError(f"{what}: tensors of {t.dtype} cannot be reduced"))
        return ty

    def _op(self, what, opts, t):
        r = opts.reduceOp if opts is not None else _SUM
        if r == _SUM:
            return SUM, 0.0
        try:
            return reduction(r)
        except ValueError as e:
            return self._refuse(e)

    # ---- collectives ----

    def allreduce(self, tensors=None, opts=None, *, tensor=None, op=None):
        tensors = tensor if tensors is None else tensors
        done = self._plain_sum(tensors, opts)
        if done is not None:
            return done
        mode = _mode(opts)
        opts = op if opts is None else opts
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        if isinstance(opts, (_ReduceOp, _RedOpType)):
            opts = _with(dist.AllreduceOptions(), opts)
        if len(tensors) != 1:
            self._refuse(ValueError(f"all_reduce: {len(tensors)} tensors; a rank has one"))
        bucket = mode == STARTED and _memory.of_cpp(tensors)
        t = tensors[0]
        if t.layout is torch.sparse_coo:
            return self._sparse(t, mode, opts)
        place = self._look("all_reduce", t)
        ty = self._reducible("all_reduce", t)
        op, factor = self._op("all_reduce", opts, t)
        if t.is_contiguous():
            if bucket and not place[0]:
                _memory.adopt(self, t)
            p = t.data_ptr()
            return self._make("all_reduce", mode, opts, tensors, native.ALL_REDUCE, ty, op, factor, dst=p, src=p, count=t.numel(), keep=t, place=place)
        flat = t.contiguous()
        p = flat.data_ptr()
        return self._make("all_reduce", mode, opts, tensors, native.ALL_REDUCE, ty, op, factor, dst=p, src=p, count=t.numel(), keep=flat,
                          finish=lambda: t.copy_(flat), place=place)

    def _plain_sum(self, tensors, opts):
        """The call that is made most, dist.all_reduce(t), in a few microseconds: it asks PyTorch's objects for as little as it can.
        None if it is another one, or failed."""
        if type(opts) is not _Options or type(tensors) is not list or len(tensors) != 1 or self._coalesced is not None or self._members is not None:
            return None
        if _profiling() or opts.reduceOp != _SUM:
            return None
        goes_on = not _OPTIONS_TELL or opts.asyncOp
        if goes_on and in_backward() or ends.has_turn():
            return None
        t = tensors[0]
        ty = TYPES.get(t.dtype)
        if ty is None or t.layout is not _STRIDED or not t.is_contiguous() or type(t) not in _PLAIN:
            return None
        if not t.is_cpu:
            return None if goes_on else self._plain_sum_on_gpu(t, ty)
        p = t.data_ptr()
        self._calls += 1
        self._collectives += 1
        k = _pack(_SIZE, native.ALL_REDUCE, ty, SUM, 0, 0, 0, -2, 0, p, p, t.numel(), 0, 0, 0, 0.0, self._ms, 0, 0, 0, 0, 0, 0, 0, 0, ends.cause(self))
        if goes_on:
            requests = self._start("all_reduce", native.ALL_REDUCE, k)
            if requests:
                work = Work(self, "all_reduce", requests, tensors, t, None)
                work.number = self._collectives
                if len(self._live) > 16:
                    self._tidy()
            else:
                work = Over(self, "all_reduce", tensors, self._collectives)
            if not _KEEPS_WORK:
                work.keep()
            return work
        rc = native.run(self._comm, k, None, native.error())
        if rc:
            self._failed(rc, "all_reduce", native.ALL_REDUCE)
        return _DONE

    def _plain_sum_on_gpu(self, t, ty):
        """The same on a GPU, if its streams are known."""
        device = t.device.index if t.is_cuda else None
        if device not in self._sides or self._late is not None:
            return None
        p = t.data_ptr()
        self._count(native.ALL_REDUCE)
        self._enqueue("all_reduce", native.ALL_REDUCE,
                      _pack(_SIZE, native.ALL_REDUCE, ty, SUM, 0, 0, 0, -2, 0, p, p, t.numel(), 0, 0, 0, 0.0, self._ms, 0, 0, 0, 0, 0, *_place(t), 0))
        return _DONE

    def allreduce_coalesced(self, tensors, opts=None):
        mode = _mode(opts)
        what = "all_reduce_coalesced"
        if not tensors:
            self._refuse(ValueError(f"{what}: no tensors"))
        place = self._look(what, *tensors)
        op, factor = self._op(what, opts, tensors[0])
        calls, copies, shared = [], [], _overlapping(tensors)
        for i, t in enumerate(tensors):
            flat = t.clone(memory_format=torch.contiguous_format) if i in shared else t.contiguous()
            if flat.data_ptr() != t.data_ptr():
                copies.append((t, flat))
            calls.append((flat, dict(type=self._reducible(what, t), reduce=op, factor=factor, dst=flat.data_ptr(), src=flat.data_ptr(), count=t.numel())))
        return self._many(what, mode, opts, tensors, native.ALL_REDUCE, calls, copies, place)

    def _many(self, what, mode, opts, tensors, op, calls, copies, place):
        """Starts several calls that are one Work."""
        requests, number = [], 0
        for _, k in calls:
            number = self._count(op)
            requests.extend(self._start(what, op, _pack(
                _SIZE, op, k["type"], k.get("reduce", 0), k.get("root", 0), 0, 0, -2, 0, k["dst"], k["src"], k["count"], 0, 0, 0, k.get("factor", 0.0),
                self._limit(mode, opts), 0, 0, 0, 0, 0, *place, ends.cause(self))))

        def finish():
            for t, flat in copies:
                t.copy_(flat)

        work = self._work(what, requests, tensors, calls, finish, place)
        work.number = number
        if mode == SYNC and self._coalesced is None:
            work.wait()
            return work
        return self._hand(work, mode)

    def broadcast(self, tensors=None, opts=None, *, tensor=None, root=None):
        mode = _mode(opts)
        tensors = tensor if tensors is None else tensors
        if isinstance(tensors, torch.Tensor):
            tensors, opts = [tensors], _root(dist.BroadcastOptions, root if opts is None else opts)
        if len(tensors) != 1:
            self._refuse(ValueError(f"broadcast: {len(tensors)} tensors; a rank has one"))
        t = tensors[0]
        place = self._look("broadcast", t)
        flat = t.contiguous()
        ty, n = _counted(t)
        root = opts.rootRank if opts is not None else 0
        finish = None if flat.data_ptr() == t.data_ptr() or root == self._rank else lambda: t.copy_(flat)
        return self._make("broadcast", mode, opts, tensors, native.BROADCAST, ty, root=root, dst=flat.data_ptr(), count=n, keep=flat, finish=finish, place=place)

    def reduce(self, tensors=None, opts=None, op=None, *, tensor=None, root=None):
        mode = _mode(opts)
        tensors = tensor if tensors is None else tensors
        if isinstance(tensors, torch.Tensor):
            tensors, opts = [tensors], _root(dist.ReduceOptions, root if opts is None else opts)
            if op is not None:
                opts.reduceOp = op
        t = tensors[0]
        place = self._look("reduce", t)
        ty = self._reducible("reduce", t)
        op, factor = self._op("reduce", opts, t)
        flat = t.contiguous()
        root = opts.rootRank if opts is not None else 0
        finish = None if flat.data_ptr() == t.data_ptr() or root != self._rank else lambda: t.copy_(flat)
        return self._make("reduce", mode, opts, tensors, native.REDUCE, ty, op, factor, root=root, dst=flat.data_ptr() if root == self._rank else 0,
                          src=flat.data_ptr(), count=t.numel(), keep=flat, finish=finish, place=place)

    def allgather(self, outputs, inputs, opts=None):
        mode = _mode(opts)
        what = "all_gather"
        if len(inputs) != 1 or len(outputs) != 1:
            self._refuse(ValueError(f"{what}: {len(inputs)} tensors and {len(outputs)} lists; a rank has one of each"))
        return self._gather_into(what, mode, opts, outputs[0], inputs[0])

    def _gather_into(self, what, mode, opts, outs, t):
        """Leaves the tensors of all ranks, which may differ in length, in a list of tensors."""
        place = self._look(what, t, *outs)
        self._same(what, t, outs)
        if len(outs) != self._size:
            self._refuse(ValueError(f"{what}: a list of {len(outs)} tensors for {self._size} ranks"))
        if outs[self._rank].numel() != t.numel():
            self._refuse(ValueError(f"{what}: rank {self._rank} gives {t.numel()} elements, and has room for {outs[self._rank].numel()}"))
        src = t.contiguous()
        ty, n = _counted(t)
        flat, spread = _joined(outs, t)
        counts = None if all(o.numel() == t.numel() for o in outs) else _counts(_counted(o)[1] for o in outs)
        return self._make(what, mode, opts, outs, native.ALL_GATHER, ty, dst=flat.data_ptr(), src=src.data_ptr(), count=n, counts=counts,
                          keep=(src, flat), finish=spread, place=place)

    def _allgather_base(self, out, t, opts=None):
        mode = _mode(opts)
        return self._gather_flat("all_gather_into_tensor", mode, opts, out, t)

    all_gather_single = allgather_into_tensor = _allgather_base

    def _gather_flat(self, what, mode, opts, out, t):
        place = self._look(what, out, t)
        self._same(what, t, [out])
        if out.numel() != t.numel() * self._size:
            self._refuse(ValueError(f"{what}: {out.numel()} elements for {self._size} ranks of {t.numel()}"))
        src, flat = t.contiguous(), out.contiguous()
        ty, n = _counted(t)
        finish = None if flat.data_ptr() == out.data_ptr() else lambda: out.copy_(flat)
        return self._make(what, mode, opts, [out], native.ALL_GATHER, ty, dst=flat.data_ptr(), src=src.data_ptr(), count=n, keep=(src, flat), finish=finish, place=place)

    def allgather_into_tensor_coalesced(self, outs, inputs, opts=None):
        mode = _mode(opts)
        works = [self._gather_flat("all_gather_into_tensor_coalesced", PART, opts, o, t) for o, t in zip(outs, inputs)]
        return self._all_of("all_gather_into_tensor_coalesced", mode, works, outs)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def allgather_coalesced(self, output_lists, inputs, opts=None):
        mode = _mode(opts)
        what = "all_gather_coalesced"
        if len(output_lists) != self._size:
            self._refuse(ValueError(f"{what}: {len(output_lists)} lists for {self._size} ranks"))
        works = [self._gather_into(what, PART, opts, [outs[i] for outs in output_lists], t) for i, t in enumerate(inputs)]
        return self._all_of(what, mode, works, [o for outs in output_lists for o in outs])

    def _all_of(self, what, mode, works, tensors):
        """One Work for several."""
        requests, finishes, place = [], [], (0, 0, 0)
        for w in works:
            requests += w._requests
            finishes.append((w._finish, w._keep))
            self._live.pop(id(w), None)
            if isinstance(w, Queued):
                place = (2, w._device, 0)

        def finish():
            for f, _ in finishes:
                if f is not None:
                    f()

        work = self._work(what, requests, tensors, finishes, finish, place)
        if mode == SYNC and self._coalesced is None:
            work.wait()
            return work
        return self._hand(work, mode)

    def gather(self, outputs, inputs, opts=None):
        mode = _mode(opts)
        t, root = inputs[0], opts.rootRank if opts is not None else 0
        outs = outputs[0] if root == self._rank else []
        place = self._look("gather", t, *outs)
        self._same("gather", t, outs)
        if root == self._rank and len(outs) != self._size:
            self._refuse(ValueError(f"gather: a list of {len(outs)} tensors for {self._size} ranks"))
        src = t.contiguous()
        ty, n = _counted(t)
        flat, spread = _joined(outs, t) if outs else (None, None)
        return self._make("gather", mode, opts, outs, native.GATHER, ty, root=root, dst=flat.data_ptr() if outs else 0, src=src.data_ptr(), count=n,
                          keep=(src, flat), finish=spread, place=place)

    def scatter(self, outputs, inputs, opts=None):
        mode = _mode(opts)
        t, root = outputs[0], opts.rootRank if opts is not None else 0
        ins = inputs[0] if root == self._rank else []
        place = self._look("scatter", t, *ins)
        self._same("scatter", t, ins)
        if root == self._rank and len(ins) != self._size:
            self._refuse(ValueError(f"scatter: a list of {len(ins)} tensors for {self._size} ranks"))
        flat = t.contiguous()
        ty, n = _counted(t)
        src = _flat(ins) if ins else None
        finish = None if flat.data_ptr() == t.data_ptr() else lambda: t.copy_(flat)
        return self._make("scatter", mode, opts, [t], native.SCATTER, ty, root=root, dst=flat.data_ptr(), src=src.data_ptr() if ins else 0, count=n,
                          keep=(ins, src, flat), finish=finish, place=place)

    def reduce_scatter(self, outputs, inputs, opts=None):
        mode = _mode(opts)
        what = "reduce_scatter"
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        t, ins = outputs[0], inputs[0]
        place = self._look(what, t, *ins)
        self._same(what, t, ins)
        ty = self._reducible(what, t)
        op, factor = self._op(what, opts, t)
        if len(ins) != self._size:
            self._refuse(ValueError(f"{what}: a list of {len(ins)} tensors for {self._size} ranks"))
        if ins[self._rank].numel() != t.numel():
            self._refuse(ValueError(f"{what}: rank {self._rank} gets {ins[self._rank].numel()} elements, and has room for {t.numel()}"))
        src, flat = _flat(ins), t.contiguous()
        counts = None if all(i.numel() == t.numel() for i in ins) else _counts(i.numel() for i in ins)
        finish = None if flat.data_ptr() == t.data_ptr() else lambda: t.copy_(flat)
        return self._make(what, mode, opts, [t], native.REDUCE_SCATTER, ty, op, factor, dst=flat.data_ptr(), src=src.data_ptr(), count=t.numel(),
                          counts=counts, keep=(ins, src, flat), finish=finish, place=place)

    def _reduce_scatter_base(self, out, t, opts=None):
        mode = _mode(opts)
        return self._scatter_flat("reduce_scatter_tensor", mode, opts, out, t)

    reduce_scatter_single = reduce_scatter_tensor = _reduce_scatter_base

    def _scatter_flat(self, what, mode, opts, out, t):
        place = self._look(what, out, t)
        self._same(what, t, [out])
        ty = self._reducible(what, t)
        op, factor = self._op(what, opts, t)
        if t.numel() != out.numel() * self._size:
            self._refuse(ValueError(f"{what}: {t.numel()} elements for {self._size} ranks of {out.numel()}"))
        src, flat = t.contiguous(), out.contiguous()
        finish = None if flat.data_ptr() == out.data_ptr() else lambda: out.copy_(flat)
        return self._make(what, mode, opts, [out], native.REDUCE_SCATTER, ty, op, factor, dst=flat.data_ptr(), src=src.data_ptr(), count=out.numel(),
                          keep=(src, flat), finish=finish, place=place)

    def reduce_scatter_tensor_coalesced(self, outs, inputs, opts=None):
        mode = _mode(opts)
        works = [self._scatter_flat("reduce_scatter_tensor_coalesced", PART, opts, o, t) for o, t in zip(outs, inputs)]
        return self._all_of("reduce_scatter_tensor_coalesced", mode, works, outs)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def alltoall(self, outputs, inputs, opts=None):
        mode = _mode(opts)
        what = "all_to_all"
        place = self._look(what, *outputs, *inputs)
        self._same(what, inputs[0], [*inputs, *outputs])
        if len(inputs) != self._size or len(outputs) != self._size:
            self._refuse(ValueError(f"{what}: lists of {len(inputs)} and {len(outputs)} tensors for {self._size} ranks"))
        src = _flat(inputs)
        flat, spread = _joined(outputs, inputs[0])
        ty = _counted(inputs[0])[0]
        return self._make(what, mode, opts, outputs, native.ALL_TO_ALL, ty, dst=flat.data_ptr(), src=src.data_ptr(),
                          counts=_counts(_counted(o)[1] for o in outputs), sends=_counts(_counted(i)[1] for i in inputs), keep=(inputs, src, flat), finish=spread, place=place)

    def alltoall_base(self, out, t, out_splits, in_splits, opts=None):
        mode = _mode(opts)
        what = "all_to_all_single"
        place = self._look(what, out, t)
        self._same(what, t, [out])
        src, flat = t.contiguous(), out.contiguous()
        counts = sends = None
        ty, n = _counted(t)
        if out_splits or in_splits:
            counts, sends = self._rows(what, out, out_splits), self._rows(what, t, in_splits)
        elif t.numel() != out.numel() or (t.size(0) if t.dim() else 1) % self._size:
            self._refuse(ValueError(f"{what}: {tuple(t.shape)} to {tuple(out.shape)} cannot be divided among {self._size} ranks"))
        finish = None if flat.data_ptr() == out.data_ptr() else lambda: out.copy_(flat)
        return self._make(what, mode, opts, [out], native.ALL_TO_ALL, ty, dst=flat.data_ptr(), src=src.data_ptr(), count=n // self._size,
                          counts=counts, sends=sends, keep=(src, flat), finish=finish, place=place)

    all_to_all_single = alltoall_base

    def _rows(self, what, t, splits):
        """The elements of each rank, of a tensor that is divided by rows."""
        rows = t.size(0) if t.dim() else 1
        if not splits:
            if rows % self._size:
                self._refuse(ValueError(f"{what}: {rows} rows cannot be divided among {self._size} ranks"))
            splits = [rows // self._size] * self._size
        if len(splits) != self._size or sum(splits) != rows:
            self._refuse(ValueError(f"{what}: split sizes {list(splits)} for {self._size} ranks and {rows} rows"))
        row = _counted(t)[1] // rows if rows else 0
        return _counts(s * row for s in splits)

    def barrier(self, opts=None):
        mode = _mode(opts)
        if dist.get_debug_level() == dist.DebugLevel.DETAIL:
            # PyTorch's wrapper for this level is for its own backends. Calls are compared anyway; this names all ranks that do not come.
            self.monitored_barrier(self._limit(mode, opts) / 1000)
        return self._make("barrier", mode, opts, (), native.BARRIER)

    # ---- messages ----

    def send(self, tensors, peer, tag=0):
        mode = _mode()
        t = self._message("send", tensors)
        src = t.contiguous()
        ty, n = _counted(t)
        return self._make("send", mode, None, tensors, native.SEND, ty, peer=peer, tag=tag, src=src.data_ptr(), count=n, keep=src, place=_place(t))

    def recv(self, tensors, peer, tag=0):
        mode = _mode()
        return self._receive("recv", mode, tensors, peer, tag)

    def recv_anysource(self, tensors, tag=0):
        mode = _mode()
        return self._receive("recv", mode, tensors, -1, tag)

    def _receive(self, what, mode, tensors, peer, tag):
        t = self._message(what, tensors)
        flat = t.contiguous()
        ty, n = _counted(t)
        finish = None if flat.data_ptr() == t.data_ptr() else lambda: t.copy_(flat)
        return self._make(what, mode, None, tensors, native.RECV, ty, peer=peer, tag=tag, dst=flat.data_ptr(), count=n, keep=flat, finish=finish, place=_place(t))

    def _message(self, what, tensors):
        """The tensor of a message. A message is refused here alone: no other rank is told."""
        if len(tensors) != 1:
            raise ValueError(f"{what}: {len(tensors)} tensors; a message is one")
        t = tensors[0]
        if t.layout is not _STRIDED:
            raise TypeError(f"{what}: a tensor of layout {t.layout}; make it dense")
        if _place(t) is None:
            raise TypeError(f"{what}: a tensor on {t.device}; weft moves tensors of cpu and cuda")
        return t

    # ---- several calls as one ----

    def _start_coalescing(self, *device):
        self._coalesced = []

    start_coalescing = _start_coalescing

    def _end_coalescing(self, *rest):
        works, self._coalesced = self._coalesced or [], None
        if rest and isinstance(rest[0], list):
            return None  # PyTorch 1.13 keeps the works itself
        return _Several(works)

    end_coalescing = _end_coalescing

    # ---- sparse tensors ----

    def _sparse(self, t, mode, opts):
        """The sum of sparse tensors: all ranks gather what the others have, and add it in the order of ranks."""
        what = "all_reduce of sparse tensors"
        self._look(what, t._indices(), t._values())
        if self._op(what, opts, t)[0] != SUM:
            self._refuse(ValueError(f"{what}: only SUM has a meaning"))
        target, t = t, t.coalesce()
        shape = list(t.shape)
        mine = torch.tensor([t._nnz(), t.sparse_dim(), t.dense_dim(), *shape, *[-1] * (16 - len(shape))], dtype=torch.int64)
        all_of = [torch.empty_like(mine) for _ in range(self._size)]
        self._gather_into(what, SYNC, None, all_of, mine)
        if any(not torch.equal(o[1:], mine[1:]) for o in all_of):
            others = {r: [int(x) for x in o[3:] if x >= 0] for r, o in enumerate(all_of)}
            raise ValueError(f"{what}: sizes differ between ranks: {others}")
        counts = [int(o[0]) for o in all_of]
        values = t._values()
        indices = [torch.empty((t.sparse_dim(), n), dtype=torch.int64, device=t.device) for n in counts]
        parts = [torch.empty((n, *values.shape[1:]), dtype=values.dtype, device=t.device) for n in counts]
        self._gather_into(what, SYNC, None, indices, t._indices())
        self._gather_into(what, SYNC, None, parts, values)
        total = torch.sparse_coo_tensor(torch.cat(indices, 1), torch.cat(parts), t.shape).coalesce()
        target.copy_(total)
        work = Done([target])
        return work if _KEEPS_WORK else _create_work_from_future(work.get_future())

    # ---- the end ----

    def abort(self, why="a rank called abort"):
        native.abort(self._comm, why)

    def shutdown(self):
        self.close()

    def close(self):
        """Leaves the group. What it has of registered memory goes back into the host's own."""
        comm, self._comm = self._comm, 0
        if comm:
            self._comm = comm
            _memory.leave(self)
            self._comm = 0
            if not self._lent:
                native.close(comm)

    def __del__(self):
        try:
            self.close()
        except Exception:  # Python may be ending
            pass


class _Several(Done):
    """Works that are waited for together."""

    def __init__(self, works):
        super().__init__()
        self._works = works

    def wait(self, timeout=None):
        for w in self._works:
            w.wait() if timeout is None else w.wait(timeout)
        return True

    synchronize = wait

    def is_completed(self):
        return all([w.is_completed() for w in self._works])

    def is_success(self):
        return all([w.is_success() for w in self._works])

    def exception(self):
        return next((e for w in self._works if (e := w.exception()) is not None), None)

    def result(self):
        return [t for w in self._works for t in w.result()]

    def get_future(self):
        return torch.futures.collect_all([w.get_future() for w in self._works]).then(lambda all_of: [t for f in all_of.value() for t in f.value()])


_DONE = Done()  # for calls that ran in their caller

_LAYOUT = struct.Struct("@QiIiiiiiIPPqqPPdqQQQPqiiPQ")
_SIZE = _LAYOUT.size
_pack = _LAYOUT.pack


def _with(opts, op):
    opts.reduceOp = op
    return opts


def _root(kind, root):
    """Options with a root, which may be given in their place."""
    if isinstance(root, int):
        opts = kind()
        opts.rootRank = root
        return opts
    return kind() if root is None else root


# The handle of the current stream. PyTorch's own object for it takes ten times as long.
_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (lambda device: torch.cuda.current_stream(device).cuda_stream)


def _place(t):
    """Where a tensor lies: DLPack's kind of device, its number, and the stream behind which a call begins; None if weft cannot reach it."""
    if t.is_cpu:
        return (0, 0, 0)
    if not t.is_cuda:
        return None
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("weft: a call on a stream that is being captured: weft's calls cannot be part of a CUDA graph; make them outside of it")
    device = t.get_device()
    return (2, device, _stream(device))


def _counted(t):
    """The type of a tensor that is moved, and how many there are of it; bytes where weft has no such type."""
    ty = TYPES.get(t.dtype)
    if ty is not None:
        return ty, t.numel()
    return BYTE, t.numel() * t.element_size()


def _counts(list_):
    values = list(list_)
    return (ctypes.c_int64 * len(values))(*values)


def _flat(tensors):
    """Tensors one behind another in memory; without a copy where they are: then the caller keeps all of them, for they may be of
    several storages that the allocator put side by side."""
    first = tensors[0]
    at = first.data_ptr()
    for t in tensors:
        if t.data_ptr() != at or not t.is_contiguous():
            return torch.cat([t.reshape(-1) for t in tensors])
        at += t.numel() * t.element_size()
    return first


def _storage(t):
    """Where the allocation begins that a tensor lies in."""
    return (t.untyped_storage() if VERSION >= (2, 0) else t.storage()).data_ptr()


def _joined(tensors, like):
    """Memory for tensors one behind another, and what puts it into them; their own memory where they are.

    Allocations of their own do not count, even where one ends at the address at which the next begins: a GPU's driver knows them apart."""
    at = tensors[0].data_ptr()
    for t in tensors:
        if t.data_ptr() != at or not t.is_contiguous():
            break
        at += t.numel() * t.element_size()
    else:
        if len({_storage(t) for t in tensors}) == 1:
            return tensors[0], None
    flat = torch.empty(sum(t.numel() for t in tensors), dtype=like.dtype, device=like.device)

    def spread():
        at = 0
        for t in tensors:
            t.copy_(flat[at:at + t.numel()].view(t.shape))
            at += t.numel()

    return flat, spread


def _keep_forward_work():
    """Lets DDP's reducer keep the Work of join's all-reduce. Of a Work that Python hands to it, every version of PyTorch keeps only the
    part that is C++, on which the reducer then waits for ever."""
    kind, kept = dist.Reducer, weakref.WeakKeyDictionary()
    plain = kind._set_forward_pass_work_handle

    def keep(self, work, static):
        kept[self] = work
        return plain(self, work, static)

    kind._set_forward_pass_work_handle = keep


# ---- making groups ----

_groups = weakref.WeakSet()
_ready = None  # a communicator that somebody else made, for the next group


def _address(options):
    """Where rank 0 listens: where the ranks meet anyway (MASTER_ADDR), at a port of its own; the loopback if nobody says."""
    address = options.address or os.environ.get("MASTER_ADDR") or "127.0.0.1"
    if address.count(":") > 1 and not address.startswith("["):
        address = f"[{address}]"
    return address if ":" in address.rpartition("]")[2] else address + ":0"


def _join(store, rank, size, timeout, options, ranks, presence):
    """Meets the other ranks, all within the time limit."""
    seconds, every = timeout.total_seconds(), ranks or range(size)
    try:
        return _meet(store, rank, size, time.monotonic() + seconds, options, ranks, presence, lambda: gone("joining", presence, every))
    except native.Refused as e:
        culprits = e.culprits
        if not culprits and presence is not None and e.code != native.ABORTED:
            culprits = sorted({*presence.ended(every), *presence.missing(every)})
        who = f"; rank {', '.join(map(str, culprits))} did not come or ended" if culprits and not e.culprits else ""
        raise error(e.code, f"weft: joining: {'Timed out ' if e.code == native.TIMEOUT else ''}{e}{who}", culprits) from None
    except TimeoutError:
        raise late("joining", seconds, every[:1]) from None


def _meet(store, rank, size, end, options, ranks, presence, look):
    """Meets the other ranks at an address that rank 0 leaves in the store, under a key for these ranks alone."""
    timeout = timedelta(seconds=end - time.monotonic())
    if size == 1:
        return native.join(0, 1, "", "", timeout, options.lines()), ""
    key = f"weft {ranks}" if ranks else "weft"
    if rank == 0:
        token = options.token or os.environ.get("WEFT_TOKEN") or secrets.token_hex(16)
        listener, address = native.listen(_address(options))
        try:
            put(store, key, f"{address} {token}")
            return native.join(0, size, address, token, timeout, options.lines(), listener), address
        finally:
            native.unlisten(listener)
    said = wait("joining", presence, store, key, end, look)
    if said is None:
        raise TimeoutError
    address, _, token = said.decode().partition(" ")
    return native.join(rank, size, address, token, timedelta(seconds=max(end - time.monotonic(), 0.001)), options.lines()), address


def _parent(ranks):
    """The group of all ranks, if it is one of weft's, and the numbers of these ranks in it."""
    world = c10d._get_default_group()
    if isinstance(world, ProcessGroup) and world._comm:
        return world, ranks
    return None, None


def _presence(store, rank, ranks):
    """Who has come to the meeting of all ranks; None if that is not one of weft's."""
    if not ranks:
        return Presence(store, rank)
    world = c10d._get_default_group()
    return world._presence if isinstance(world, ProcessGroup) else None


def create(backend, options=None):
    """Makes a group: what init_process_group and new_group call."""
    global _ready
    options = options if isinstance(options, Options) else Options()
    store, rank, size, timeout = backend.store, backend.group_rank, backend.group_size, backend.timeout
    ranks = list(backend.global_ranks_in_group)  # none for the group of all
    own = _ready is not None or not ranks or options.settings or options.address
    parent, members = (None, None) if own else _parent(ranks)
    lent, who, meeting = _ready is not None, None, ""
    presence = _presence(store, rank, ranks)
    if lent:
        comm, _ready = _ready, None
    else:
        if ranks:
            who = Members(store, ranks, rank, timeout, parent._meeting if parent is not None else "", presence)
        try:
            if who is not None:
                who.agree()
            if parent is not None:
                comm = native.group(parent._comm, members, who.gather)
            else:
                comm, meeting = _join(store, rank, size, timeout, options, ranks, presence)
        except Disagreement:
            comm = 0  # the first call tells all ranks why
    if not ranks:
        presence.remember(0)  # PyTorch's store is mostly in its process
    g = ProcessGroup(comm, rank, size, timeout, store, str(backend.group_id))
    g._above, g._lent, g._members, g._meeting, g._presence = parent, lent, who, meeting, presence
    if not ranks:
        all_ = weakref.ref(g)
        presence.others = lambda: native.ended(all_()._comm) if all_() is not None else []
    return g


def register():
    """Tells PyTorch of the backend."""
    if hasattr(dist.Backend, "WEFT"):
        return
    if VERSION not in TESTED:
        known = ", ".join(f"{major}.{minor}" for major, minor in TESTED)
        warnings.warn(f"weft.torch is tested with PyTorch {known}; this is {torch.__version__}", stacklevel=3)
    more = {"devices": ["cpu", "cuda"]} if VERSION >= (2, 0) else {}
    dist.Backend.register_backend("weft", create, extended_api=True, **more)
    _keep_forward_work()
    os.register_at_fork(after_in_child=_forked)
    atexit.register(_close_all)


def _forked():
    """In a child that was forked no group works, and no call of the library may be made."""
    ends.forked()
    for g in list(_groups):
        g._live.clear()
        g._watched.clear()


def _close_all():
    for g in list(_groups):
        try:
            g.close()
        except Exception:
            pass
