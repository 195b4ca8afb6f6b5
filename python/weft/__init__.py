"""Collectives, messages and one-sided memory between processes.

    import numpy, weft
    c = weft.join()                      # under "weft run -n 4 -- python3 script.py", torchrun, srun, mpirun
    x = numpy.ones(1 << 20, "float32")
    c.all_reduce(x)                      # in place, on anything that has memory: numpy, torch, array, bytearray
    c.close()

Names are mpi4py's: with a capital letter they take a buffer to send and one to receive (c.Allreduce(src, dst)), and with an I before
them they start and return a Request (c.Iallreduce(src, dst)). Lower-case ones pickle objects and return the result (c.allreduce(obj)).
all_reduce and broadcast work in place, on the fastest path. An error is an Error with a code, the ranks at fault and a sentence. Ctrl-C
ends every wait.
"""

import atexit
import collections
import ctypes
import json
import os
import threading
import weakref
from ctypes import byref

from . import _lib
from ._buffer import Buffer, of, type_of
from ._lib import AVG, BAND, BOR, BXOR, MAX, MIN, PREMULSUM, PROD, SUM, Call, lib
from ._objects import Objects
from ._version import __version__

__all__ = [
    "join", "Comm", "Request", "Prepared", "Status", "Memory", "version", "__version__",
    "SUM", "PROD", "MIN", "MAX", "AVG", "PREMULSUM", "BAND", "BOR", "BXOR", "IN_PLACE", "ANY_SOURCE", "ANY_TAG",
    "Error", "DeadRank", "Mismatch", "Timeout", "Aborted", "Closed", "Broken", "Left", "Excluded", "NoQuorum", "Invalid", "Forked", "Internal", "NoDevice",
]

ANY_SOURCE = ANY_TAG = _lib.ANY
_ops = {"sum": 1, "prod": 2, "product": 2, "min": 3, "max": 4, "avg": 5, "premulsum": 6, "band": 7, "bor": 8, "bxor": 9}


class _InPlace:
    def __repr__(self):
        return "weft.IN_PLACE"


IN_PLACE = _InPlace()


class Error(Exception):
    """Why a call failed: code, the ranks of the communicator at fault, and a sentence."""

    code = 0

    def __init__(self, text, culprits=(), rank=-1, operation=0):
        super().__init__(text)
        self.culprits, self.rank, self.operation = tuple(culprits), rank, operation


class DeadRank(Error):
    """A rank's process ended or cannot be reached."""
    code = _lib.DEAD


class Mismatch(Error):
    """Ranks call different things."""
    code = _lib.MISMATCH


class Timeout(Error, TimeoutError):
    """The time limit passed."""
    code = _lib.TIMEOUT


class Aborted(Error):
    """A rank called abort, or was interrupted."""
    code = _lib.ABORTED


class Closed(Error):
    """The communicator was closed here."""
    code = _lib.CLOSED


class Broken(Error):
    """The transport failed."""
    code = _lib.BROKEN


class Left(Error):
    """A rank closed the communicator."""
    code = _lib.LEFT


class Excluded(Error):
    """The others went on without this rank."""
    code = _lib.EXCLUDED


class NoQuorum(Error):
    """The ranks that are left may not go on alone."""
    code = _lib.NO_QUORUM


class Invalid(Error, ValueError):
    """The call is wrong in itself: nothing was sent."""
    code = _lib.INVALID


class Forked(Error):
    """This process is a fork of the one that loaded the library."""
    code = _lib.FORKED


class Internal(Error):
    """A bug of weft: please report its text."""
    code = _lib.INTERNAL


class NoDevice(Error, TypeError):
    """The memory belongs to a device that weft cannot reach."""
    code = _lib.NO_DEVICE


_errors = {e.code: e for e in (DeadRank, Mismatch, Timeout, Aborted, Closed, Broken, Left, Excluded, NoQuorum, Invalid, Forked, Internal, NoDevice)}


class _Local(threading.local):
    def __init__(self):
        self.error = _lib.Error()
        self.ref = byref(self.error)


_local = _Local()


def fail(code):
    """Raises the error of a call of this thread that gave a code."""
    if code == _lib.INTERRUPTED:
        _lib.reraise()
    e = _local.error
    text = e.text.decode(errors="replace")
    raise _errors.get(code, Error)(text, e.culprits[: min(max(e.culprit_count, 0), _lib.CULPRITS)], e.rank, e.operation)


def _op(op):
    if isinstance(op, str):
        try:
            return _ops[op.lower()]
        except KeyError:
            raise Invalid(f"reduction {op!r} is none of {', '.join(_ops)}") from None
    return int(op)


def version():
    """The version of the library."""
    return lib().weft_version().decode()


def threads(n=0):
    """How many processors the library uses at once; 0 for all."""
    rc = lib().weft_threads(n, _local.ref)
    if rc:
        fail(rc)


_open = weakref.WeakSet()


@atexit.register
def _close_all():
    for c in list(_open):
        try:
            c.close()
        except Error:
            pass


def join(rank=None, size=None, address=None, *, local_rank=0, token=None, transport=None, timeout=None, **settings):
    """Meets the other ranks and makes the communicator of all of them.

    Without rank and size they come from the environment, as "weft run", torchrun, srun and mpirun set it. address is host:port, where
    rank 0 listens; timeout is in seconds. Further keywords are settings by their names: streams=4 is WEFT_STREAMS=4.
    """
    cfg = _lib.Config(size=ctypes.sizeof(_lib.Config))
    if (rank is None) != (size is None):
        raise Invalid("rank and size go together")
    if size is not None:
        if size < 1:
            raise Invalid(f"size {size}: want 1 or more")
        cfg.rank, cfg.ranks, cfg.local_rank = rank, size, local_rank
    cfg.address = address.encode() if address else None
    cfg.token = token.encode() if token is not None else None
    cfg.transport = transport.encode() if transport else None
    if timeout is not None:
        cfg.timeout_ms = _ms(timeout)
    lines = [f"WEFT_{k.upper()}={_setting(v)}" for k, v in settings.items() if v is not None]
    cfg.settings = "\n".join(lines).encode() if lines else None
    h = ctypes.c_int64()
    rc = lib().weft_join(byref(cfg), byref(h), _local.ref)
    if rc:
        fail(rc)
    return Comm(h.value)


def _setting(v):
    return "1" if v is True else "0" if v is False else str(v)


def _ms(seconds):
    if hasattr(seconds, "total_seconds"):
        seconds = seconds.total_seconds()
    return max(1, int(seconds * 1000))


class Status:
    """What is known of a message: its source, tag and count of elements."""

    def __init__(self):
        self.source, self.tag, self.count = -1, -1, 0

    def _set(self, s):
        self.source, self.tag, self.count = s.source, s.tag, s.count

    def Get_source(self):
        return self.source

    def Get_tag(self):
        return self.tag

    def Get_count(self, datatype=None):
        return self.count

    def __repr__(self):
        return f"Status(source={self.source}, tag={self.tag}, count={self.count})"


class Request:
    """A call under way. Its buffers belong to it until it is over."""

    def __init__(self, handle, keep, status=None):
        self._handle, self._keep, self._status, self._error = handle, keep, status, None

    @property
    def handle(self):
        """The number of the request in the library; 0 when it is over."""
        return self._handle

    def _end(self, rc, s):
        self._handle, self._keep = 0, None
        if rc == _lib.OK:
            if self._status is not None:
                self._status._set(s)
            return True
        try:
            fail(rc)
        except Error as e:
            self._error = e
            raise

    def test(self):
        """Whether the call is over; raises its error."""
        return self._wait(0)

    def wait(self, timeout=None):
        """Waits for the call to be over and raises its error; False if the timeout, in seconds, passed before."""
        return self._wait(-1 if timeout is None else _ms(timeout))

    def _wait(self, ms):
        if self._handle == 0:
            if self._error is not None:
                raise self._error
            return True
        s = _lib.Status()
        if ms == 0:
            rc = lib().weft_test(self._handle, byref(s), _local.ref)
        else:
            rc = lib().weft_wait(self._handle, ms, byref(s), _local.ref)
        if rc == _lib.PENDING:
            return False
        if rc == _lib.INTERRUPTED:
            fail(rc)
        return self._end(rc, s)

    def block(self, stream):
        """Makes a CUDA stream, by its number, wait for a call on memory of a GPU; this thread does not. Errors are told by wait."""
        if self._handle:
            rc = lib().weft_block(self._handle, stream, _local.ref)
            if rc:
                fail(rc)

    def cancel(self):
        """Ends the call, which fails the communicator. Wait for it all the same."""
        if self._handle:
            rc = lib().weft_cancel(self._handle, _local.ref)
            if rc:
                fail(rc)

    def Wait(self, status=None):
        self._status = status or self._status
        return self.wait()

    def Test(self, status=None):
        self._status = status or self._status
        return self.test()

    @staticmethod
    def Waitall(requests, statuses=None):
        """Waits for several calls; raises the first error when all are over."""
        first = None
        for i, r in enumerate(requests):
            try:
                r.Wait(statuses[i] if statuses else None)
            except Error as e:
                first = first or e
        if first is not None:
            raise first
        return True

    @staticmethod
    def Waitany(requests, status=None, timeout=None):
        """Waits for one of several calls and gives its index; None if the timeout passed before."""
        n = len(requests)
        numbers = (ctypes.c_int64 * n)(*[r._handle for r in requests])
        which, s = ctypes.c_int(-1), _lib.Status()
        rc = lib().weft_wait_any(numbers, n, -1 if timeout is None else _ms(timeout), byref(which), byref(s), _local.ref)
        if rc == _lib.PENDING:
            return None
        if which.value < 0 or rc == _lib.INTERRUPTED:
            fail(rc)
        r = requests[which.value]
        r._status = status or r._status
        r._end(rc, s)
        return which.value

    def __del__(self):
        # The library may still write to the buffers: they stay until it is done.
        if self._handle and self._keep is not None:
            _orphans.append((self._handle, self._keep))


_orphans = collections.deque()  # requests that nobody waits for, with their buffers; any thread may add one at any moment


def _sweep():
    """Lets go of the buffers of requests that nobody waited for and that are over."""
    for _ in range(len(_orphans)):
        try:
            h, keep = _orphans.popleft()
        except IndexError:  # another thread sweeps, too
            return
        if lib().weft_test(h, None, None) == _lib.PENDING:
            _orphans.append((h, keep))


class Prepared:
    """A call that is made often, on the same buffers: a persistent request."""

    def __init__(self, handle, keep):
        self._handle, self._keep = handle, keep

    def start(self):
        """Starts the call once more."""
        h = ctypes.c_int64()
        rc = lib().weft_begin(self._handle, byref(h), _local.ref)
        if rc:
            fail(rc)
        return Request(h.value, self._keep)

    Start = start

    def free(self):
        """Forgets the call."""
        if self._handle:
            h, self._handle = self._handle, 0
            lib().weft_forget(h, _local.ref)

    Free = free

    def __del__(self):
        self.free()


class Memory:
    """Memory that the other ranks see: calls on it need no copy, and others reach it by its key. It has __array_interface__ and the
    buffer protocol of view, so numpy.asarray(m) and torch.frombuffer(m.view, dtype=...) share it. It is gone when the last
    communicator of the join is closed; reading it after that crashes the process."""

    def __init__(self, comm, count, type):
        self.comm, self.count, self.type = comm, count, type
        self.nbytes = count * max(1, (type >> 8) // 8)
        p = ctypes.c_void_p()
        rc = lib().weft_alloc(comm._handle, self.nbytes, byref(p), _local.ref)
        if rc:
            fail(rc)
        self.pointer = p.value
        self.view = memoryview((ctypes.c_char * self.nbytes).from_address(p.value)).cast("B")

    @property
    def __array_interface__(self):
        code, size = self.type & 0xFF, (self.type >> 8) // 8
        kind = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}.get(code, "V")
        return {"shape": (self.count,), "typestr": ("|" if size == 1 else "<") + kind + str(size), "data": (self.pointer, False), "version": 3}

    def key(self, first=0, count=None):
        """What the other ranks call this memory, from an element on."""
        size = (self.type >> 8) // 8
        n = self.count - first if count is None else count
        k = ctypes.c_uint64()
        rc = lib().weft_key_of(self.comm._handle, self.pointer + first * size, n * size, byref(k), _local.ref)
        if rc:
            fail(rc)
        return k.value

    def free(self):
        """Gives the memory back. Other ranks must be done with it: have a barrier before."""
        if self.pointer:
            p, self.pointer = self.pointer, 0
            rc = lib().weft_free(self.comm._handle, p, _local.ref)
            if rc:
                fail(rc)


def _memory(m, writable):
    if isinstance(m, Memory):
        if not m.pointer:
            raise Invalid("the memory was freed")
        return Buffer(m.pointer, m.count, m.type, keep=m)
    return of(m, writable)


def _counted(spec):
    """A buffer with the counts of its blocks: (buffer, counts), as mpi4py writes it."""
    if not isinstance(spec, (tuple, list)) or len(spec) < 2:
        raise Invalid("want (buffer, counts)")
    counts = [int(k) for k in (spec[1][0] if isinstance(spec[1], tuple) and len(spec[1]) == 2 and hasattr(spec[1][0], "__len__") else spec[1])]
    return spec[0], counts


def _array(counts):
    return (ctypes.c_int64 * len(counts))(*counts)


_combine = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
_letters = {
    _lib.dtype(0, 8): "b", _lib.dtype(0, 16): "h", _lib.dtype(0, 32): "i", _lib.dtype(0, 64): "q", _lib.dtype(1, 8): "B", _lib.dtype(1, 16): "H",
    _lib.dtype(1, 32): "I", _lib.dtype(1, 64): "Q", _lib.dtype(2, 32): "f", _lib.dtype(2, 64): "d", _lib.dtype(6, 8): "?",
}


class Comm(Objects):
    """A rank's place in a group of ranks. Calls on it are carried out in the order in which they are made, and every rank of the
    group must make the same ones in the same order."""

    def __init__(self, handle):
        self._handle = handle
        self.rank = lib().weft_rank(handle)
        self.size = lib().weft_size(handle)
        _open.add(self)

    _number, _status = staticmethod(_op), Status  # what Objects needs of this module

    # ---- the communicator ----

    @property
    def handle(self):
        """The number of the communicator in the library."""
        return self._handle

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return self.size

    def info(self):
        """Rank, size, epoch and transport."""
        i = _lib.Info(size=ctypes.sizeof(_lib.Info))
        self._check(lib().weft_get_info(self._handle, byref(i), _local.ref))
        return {"rank": i.rank, "size": i.ranks, "epoch": i.epoch, "transport": i.transport.decode()}

    @property
    def transport(self):
        """What carries the bytes: shm, tcp, mixed or mem."""
        return self.info()["transport"]

    def check(self):
        """Raises why the communicator can no longer be used, if it cannot."""
        self._check(lib().weft_check(self._handle, _local.ref))

    def _new(self, f, *args):
        h = ctypes.c_int64()
        self._check(f(self._handle, *args, byref(h), _local.ref))
        return Comm(h.value) if h.value else None

    def split(self, color=0, key=0):
        """A communicator of the ranks that give the same color; None for a negative color."""
        return self._new(lib().weft_split, color, key)

    def dup(self):
        """A communicator of the same ranks whose calls are independent of this one's."""
        return self._new(lib().weft_dup)

    def shrink(self):
        """A communicator of the ranks that are left after a failure. This one is closed."""
        c = self._new(lib().weft_shrink)
        self._handle = 0
        return c

    def abort(self, why="abort was called"):
        """Ends what the group is doing, on every rank."""
        self._check(lib().weft_abort(self._handle, str(why).encode(), _local.ref))

    def close(self):
        """Leaves the group. Have a barrier before."""
        if self._handle:
            h, self._handle = self._handle, 0
            self._check(lib().weft_close(h, _local.ref))

    Split, Dup, Clone, Free, Disconnect = split, dup, dup, close, close

    def Abort(self, errorcode=1):
        self.abort(f"Abort({errorcode})")

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.close()

    def __repr__(self):
        return f"<weft.Comm rank {self.rank} of {self.size}>"

    def way(self):
        """How memory of GPUs goes from rank to rank, and why."""
        return self._text(lib().weft_way)

    def explain(self):
        """Which program runs a call of which size, and why."""
        return self._text(lib().weft_explain)

    def flight(self):
        """The last operations, as the flight recorder holds them."""
        return json.loads(self._text(lib().weft_flight_json))

    def counters(self):
        """What the transport counted."""
        return {x["name"]: x["value"] for x in json.loads(self._text(lib().weft_counters_json)) or []}

    def _text(self, f):
        need = ctypes.c_int64(1 << 14)
        while True:
            cap = need.value
            buf = ctypes.create_string_buffer(cap)
            self._check(f(self._handle, buf, cap, byref(need), _local.ref))
            if need.value <= cap:
                return buf.value.decode(errors="replace")

    @staticmethod
    def _check(rc):
        if rc:
            fail(rc)

    # ---- calls ----

    def _run(self, call, status=None):
        k, keep = call
        s = _lib.Status()
        self._check(lib().weft_run(self._handle, byref(k), byref(s), _local.ref))
        if status is not None:
            status._set(s)
        del keep
        return s

    def _start(self, call, status=None):
        if _orphans:
            _sweep()
        h = ctypes.c_int64()
        self._check(lib().weft_start(self._handle, byref(call[0]), byref(h), _local.ref))
        return Request(h.value, call, status)

    def prepare(self, call):
        """A call that can be started often: c.prepare(c.call.Allreduce(src, dst))."""
        h = ctypes.c_int64()
        self._check(lib().weft_prepare(self._handle, byref(call[0]), byref(h), _local.ref))
        return Prepared(h.value, call)

    def together(self, *calls):
        """Makes several calls at once; none waits for another's end: c.together(c.call.Send(x, 1), c.call.Recv(y, 1))."""
        n = len(calls)
        if n:
            self._check(lib().weft_run_all(self._handle, (Call * n)(*[k[0] for k in calls]), n, _local.ref))

    @property
    def call(self):
        """The calls as values, for prepare and together."""
        return Calls(self)

    # ---- collectives, in place ----

    def barrier(self):
        self._check(lib().weft_barrier(self._handle, _local.ref))

    Barrier = barrier

    def all_reduce(self, x, op=SUM):
        """Leaves in x of every rank the reduction of all."""
        b = _memory(x, True)
        op = op if type(op) is int else _op(op)
        if b.device == 1 and op != PREMULSUM:
            rc = lib().weft_all_reduce(self._handle, b.pointer, b.pointer, b.count, b.type, op, _local.ref)
            if rc:
                fail(rc)
        else:
            self._run(self.call.Allreduce(IN_PLACE, x, op))
        return x

    def broadcast(self, x, root=0):
        """Leaves in x of every rank what the root has there."""
        self.Bcast(x, root)
        return x

    def all_reduce_by(self, x, combine, width=1):
        """Leaves in x of every rank the values of all ranks, combined in the order of the ranks. combine(acc, x) gets two views of as
        many elements and combines the second into the first; width elements belong together."""
        return self._by(lib().weft_all_reduce_by, x, combine, width)

    def scan_by(self, x, combine, width=1):
        """Leaves in x of rank r the values of ranks 0 to r, combined in that order."""
        return self._by(lib().weft_scan_by, x, combine, width)

    def _by(self, f, x, combine, width):
        b = _memory(x, True)
        if b.device != 1:
            raise NoDevice("functions combine memory of the host")
        if width < 1 or b.count % width:
            raise Invalid(f"{b.count} elements cannot be taken {width} at a time")
        letter = _letters.get(b.type)
        if letter is None:
            raise Invalid("Python has no view of elements of this type")
        size, raised = b.itemsize * width, []

        def call(acc, other, count, _):
            if raised:
                return
            try:
                combine(*(memoryview((ctypes.c_char * (count * size)).from_address(p)).cast("B").cast(letter) for p in (acc, other)))
            except BaseException as e:
                raised.append(e)

        function = _combine(call)
        rc = f(self._handle, b.pointer, b.count // width, size, ctypes.cast(function, ctypes.c_void_p), None, _local.ref)
        if raised:
            raise raised[0]
        self._check(rc)
        return x

    # ---- memory that the other ranks see ----

    def alloc(self, count, dtype="uint8"):
        """Memory that the other ranks see: count elements, all zero."""
        return Memory(self, count, type_of(dtype))

    def notices(self):
        """The numbers that ranks left here: (rank, value) of each."""
        got, room = [], 256
        ranks, values, n = (ctypes.c_int32 * room)(), (ctypes.c_uint32 * room)(), ctypes.c_int(room)
        while n.value == room:
            self._check(lib().weft_notices(self._handle, ranks, values, room, byref(n), _local.ref))
            got += list(zip(ranks[: n.value], values[: n.value]))
        return got

    def fetch_add(self, key, value, rank):
        """Adds to a word of a rank and gives what it held."""
        was = ctypes.c_uint64()
        self._run((_call(_lib.FETCH_ADD, key=key, operand=value, peer=rank, was=ctypes.pointer(was)), was))
        return was.value

    def compare_swap(self, key, old, new, rank):
        """Stores new in a word of a rank if it holds old, and gives what it held."""
        was = ctypes.c_uint64()
        self._run((_call(_lib.COMPARE_SWAP, key=key, compare=old, operand=new, peer=rank, was=ctypes.pointer(was)), was))
        return was.value

    # ---- messages ----

    def Probe(self, source=ANY_SOURCE, tag=ANY_TAG, status=None):
        """Waits for a message and leaves it where it is."""
        self._run((_call(_lib.PROBE, peer=source, tag=tag), None), status)
        return True

    def Iprobe(self, source=ANY_SOURCE, tag=ANY_TAG, status=None):
        """Whether there is such a message."""
        s = _lib.Status()
        rc = lib().weft_try_probe(self._handle, source, tag, byref(s), _local.ref)
        if rc == _lib.PENDING:
            return False
        self._check(rc)
        if status is not None:
            status._set(s)
        return True

    def Recv(self, buf, source=ANY_SOURCE, tag=ANY_TAG, status=None):
        """Receives the oldest message from a rank with a tag. It must have as many elements as buf: see Probe."""
        self._run(self.call.Recv(buf, source, tag), status)

    def Irecv(self, buf, source=ANY_SOURCE, tag=ANY_TAG, status=None):
        return self._start(self.call.Recv(buf, source, tag), status)


def _call(op, **fields):
    return Call(size=ctypes.sizeof(Call), op=op, **fields)


class Calls:
    """The calls of a communicator as values."""

    def __init__(self, comm):
        self._comm = comm

    def _make(self, op, dst, src, counts=None, sends=None, timeout=None, **fields):
        k = _call(op, **fields)
        for b in (src, dst):
            if b is not None:
                k.type, k.device, k.device_id, k.stream = b.type, b.device, b.device_id, b.stream
        if dst is not None and src is not None and (dst.type != src.type or dst.device != src.device or dst.device_id != src.device_id):
            raise Invalid("the two buffers differ in the type of their elements, or lie on different devices")
        k.dst, k.src = dst and dst.pointer, src and src.pointer
        if counts is not None:
            counts = _array(counts)
            k.counts = counts
        if sends is not None:
            sends = _array(sends)
            k.send_counts = sends
        if timeout is not None:
            k.timeout_ms = _ms(timeout)
        return k, (dst, src, counts, sends)

    def _lengths(self, what, counts, blocks, own=None):
        """Checks that a buffer has as many elements as its blocks together, and one that is a block as many as the own."""
        if len(counts) != self._comm.size:
            raise Invalid(f"{len(counts)} counts for {self._comm.size} ranks")
        if blocks is not None and blocks.count != sum(counts):
            raise Invalid(f"{what} has {blocks.count} elements, its counts are {sum(counts)} together")
        if own is not None and own.count != counts[self._comm.rank]:
            raise Invalid(f"the own block has {own.count} elements, its count is {counts[self._comm.rank]}")

    def _parts(self, what, b):
        if b.count % self._comm.size:
            raise Invalid(f"{what} has {b.count} elements, which {self._comm.size} ranks cannot share evenly")
        return b.count // self._comm.size

    def _pair(self, sendbuf, recvbuf):
        dst = _memory(recvbuf, True)
        return (dst if sendbuf is IN_PLACE else _memory(sendbuf, False)), dst

    def _block(self, b, n):
        """The own block of a buffer."""
        return Buffer((b.pointer or 0) + self._comm.rank * n * b.itemsize, n, b.type, b.device, b.device_id, b.stream, b)

    def Barrier(self, timeout=None):
        return self._make(_lib.BARRIER, None, None, timeout=timeout)

    def Allreduce(self, sendbuf, recvbuf, op=SUM, factor=1.0, timeout=None):
        src, dst = self._pair(sendbuf, recvbuf)
        if src.count != dst.count:
            raise Invalid(f"sendbuf has {src.count} elements, recvbuf {dst.count}")
        return self._make(_lib.ALL_REDUCE, dst, src, count=src.count, reduce=_op(op), factor=factor, timeout=timeout)

    def Reduce(self, sendbuf, recvbuf, op=SUM, root=0, factor=1.0, timeout=None):
        if self._comm.rank != root:
            src, dst = _memory(recvbuf if sendbuf is IN_PLACE else sendbuf, False), None
        else:
            src, dst = self._pair(sendbuf, recvbuf)
            if src.count != dst.count:
                raise Invalid(f"sendbuf has {src.count} elements, recvbuf {dst.count}")
        return self._make(_lib.REDUCE, dst, src, count=src.count, reduce=_op(op), root=root, factor=factor, timeout=timeout)

    def Bcast(self, buf, root=0, timeout=None):
        b = _memory(buf, self._comm.rank != root)
        return self._make(_lib.BROADCAST, b, None, count=b.count, root=root, timeout=timeout)

    def Scan(self, sendbuf, recvbuf, op=SUM, timeout=None):
        return self._scan(_lib.SCAN, sendbuf, recvbuf, op, timeout)

    def Exscan(self, sendbuf, recvbuf, op=SUM, timeout=None):
        return self._scan(_lib.EXSCAN, sendbuf, recvbuf, op, timeout)

    def _scan(self, kind, sendbuf, recvbuf, op, timeout):
        src, dst = self._pair(sendbuf, recvbuf)
        if src is not dst and src.pointer != dst.pointer:
            if src.count != dst.count or src.type != dst.type:
                raise Invalid(f"sendbuf has {src.count} elements, recvbuf {dst.count}")
            ctypes.memmove(dst.pointer, src.pointer, src.count * src.itemsize)
        return self._make(kind, dst, None, count=dst.count, reduce=_op(op), timeout=timeout)

    def Allgather(self, sendbuf, recvbuf, timeout=None):
        dst = _memory(recvbuf, True)
        n = self._parts("recvbuf", dst)
        src = self._block(dst, n) if sendbuf is IN_PLACE else _memory(sendbuf, False)
        if src.count != n:
            raise Invalid(f"sendbuf has {src.count} elements, and recvbuf room for {n} of each rank")
        return self._make(_lib.ALL_GATHER, dst, src, count=n, timeout=timeout)

    def Allgatherv(self, sendbuf, recvbuf, timeout=None):
        recvbuf, counts = _counted(recvbuf)
        src, dst = _memory(sendbuf, False), _memory(recvbuf, True)
        self._lengths("recvbuf", counts, dst, src)
        return self._make(_lib.ALL_GATHER, dst, src, counts, timeout=timeout)

    def Gather(self, sendbuf, recvbuf=None, root=0, timeout=None):
        dst = None
        if self._comm.rank == root:
            dst = _memory(recvbuf, True)
            n = self._parts("recvbuf", dst)
            src = self._block(dst, n) if sendbuf is IN_PLACE else _memory(sendbuf, False)
            if src.count != n:
                raise Invalid(f"sendbuf has {src.count} elements, and recvbuf room for {n} of each rank")
        else:
            src = _memory(sendbuf, False)
        return self._make(_lib.GATHER, dst, src, count=src.count, root=root, timeout=timeout)

    def Gatherv(self, sendbuf, recvbuf, root=0, timeout=None):
        """All ranks give the same counts; recvbuf is (buffer, counts), and (None, counts) on other ranks than the root."""
        recvbuf, counts = _counted(recvbuf)
        src, dst = _memory(sendbuf, False), _memory(recvbuf, True) if self._comm.rank == root else None
        self._lengths("recvbuf", counts, dst, src)
        return self._make(_lib.GATHER, dst, src, counts, root=root, timeout=timeout)

    def Scatter(self, sendbuf, recvbuf, root=0, timeout=None):
        src = None
        if self._comm.rank == root:
            src = _memory(sendbuf, False)
            n = self._parts("sendbuf", src)
            dst = self._block(src, n) if recvbuf is IN_PLACE else _memory(recvbuf, True)
            if dst.count != n:
                raise Invalid(f"recvbuf has {dst.count} elements, and sendbuf {n} for each rank")
        else:
            dst = _memory(recvbuf, True)
        return self._make(_lib.SCATTER, dst, src, count=dst.count, root=root, timeout=timeout)

    def Scatterv(self, sendbuf, recvbuf, root=0, timeout=None):
        """All ranks give the same counts; sendbuf is (buffer, counts), and (None, counts) on other ranks than the root."""
        sendbuf, counts = _counted(sendbuf)
        src, dst = _memory(sendbuf, False) if self._comm.rank == root else None, _memory(recvbuf, True)
        self._lengths("sendbuf", counts, src, dst)
        return self._make(_lib.SCATTER, dst, src, counts, root=root, timeout=timeout)

    def Reduce_scatter_block(self, sendbuf, recvbuf, op=SUM, factor=1.0, timeout=None):
        dst = _memory(recvbuf, True)
        src = _memory(sendbuf, False)
        if src.count != dst.count * self._comm.size:
            raise Invalid(f"sendbuf has {src.count} elements, want {dst.count} for each of {self._comm.size} ranks")
        return self._make(_lib.REDUCE_SCATTER, dst, src, count=dst.count, reduce=_op(op), factor=factor, timeout=timeout)

    def Reduce_scatter(self, sendbuf, recvbuf, recvcounts=None, op=SUM, factor=1.0, timeout=None):
        if recvcounts is None:
            return self.Reduce_scatter_block(sendbuf, recvbuf, op, factor, timeout)
        counts = [int(k) for k in recvcounts]
        src, dst = _memory(sendbuf, False), _memory(recvbuf, True)
        self._lengths("sendbuf", counts, src, dst)
        return self._make(_lib.REDUCE_SCATTER, dst, src, counts, reduce=_op(op), factor=factor, timeout=timeout)

    def Alltoall(self, sendbuf, recvbuf, timeout=None):
        src, dst = self._pair(sendbuf, recvbuf)
        if src.count != dst.count:
            raise Invalid(f"sendbuf has {src.count} elements, recvbuf {dst.count}")
        return self._make(_lib.ALL_TO_ALL, dst, src, count=self._parts("recvbuf", dst), timeout=timeout)

    def Alltoallv(self, sendbuf, recvbuf, timeout=None):
        sendbuf, sends = _counted(sendbuf)
        recvbuf, recvs = _counted(recvbuf)
        src, dst = _memory(sendbuf, False), _memory(recvbuf, True)
        self._lengths("sendbuf", sends, src)
        self._lengths("recvbuf", recvs, dst)
        return self._make(_lib.ALL_TO_ALL, dst, src, recvs, sends, timeout=timeout)

    def Send(self, buf, dest, tag=0, timeout=None):
        b = _memory(buf, False)
        return self._make(_lib.SEND, None, b, count=b.count, peer=dest, tag=tag, timeout=timeout)

    def Recv(self, buf, source=ANY_SOURCE, tag=ANY_TAG, timeout=None):
        b = _memory(buf, True)
        return self._make(_lib.RECV, b, None, count=b.count, peer=source, tag=tag, timeout=timeout)

    def Put(self, buf, key, rank, timeout=None):
        """Writes buf to memory of a rank."""
        b = _memory(buf, False)
        return self._make(_lib.PUT, None, b, count=b.count, key=key, peer=rank, timeout=timeout)

    def Put_notify(self, buf, key, rank, value, timeout=None):
        """Writes buf to memory of a rank and then leaves a number with it: see notices."""
        b = _memory(buf, False)
        return self._make(_lib.PUT_NOTIFY, None, b, count=b.count, key=key, peer=rank, value=value, timeout=timeout)

    def Get(self, buf, key, rank, timeout=None):
        """Reads memory of a rank into buf."""
        b = _memory(buf, True)
        return self._make(_lib.GET, b, None, count=b.count, key=key, peer=rank, timeout=timeout)

    def Notify(self, rank, value, timeout=None):
        """Leaves a number with a rank once everything posted to it before is there."""
        return self._make(_lib.NOTIFY, None, None, peer=rank, value=value, timeout=timeout)


def _forms(name):
    value = getattr(Calls, name)

    def now(self, *args, **kw):
        self._run(value(Calls(self), *args, **kw))

    def later(self, *args, **kw):
        return self._start(value(Calls(self), *args, **kw))

    now.__name__, later.__name__ = name, "I" + name.lower()
    now.__doc__ = value.__doc__ or f"{name}, as mpi4py has it; returns when it is over."
    later.__doc__ = f"Starts {name} and returns a Request."
    return now, later


for _name in ["Allreduce", "Reduce", "Bcast", "Scan", "Exscan", "Allgather", "Allgatherv", "Gather", "Gatherv", "Scatter", "Scatterv",
              "Reduce_scatter_block", "Reduce_scatter", "Alltoall", "Alltoallv", "Send", "Put", "Put_notify", "Get", "Notify"]:
    _now, _later = _forms(_name)
    setattr(Comm, _name, _now)
    if _name not in ("Scan", "Exscan"):  # these have no started form
        setattr(Comm, "I" + _name.lower(), _later)


def _ibarrier(self):
    """Starts a barrier and returns a Request."""
    return self._start(self.call.Barrier())


Comm.Ibarrier = _ibarrier


def _sendrecv(self, sendbuf, dest, sendtag=0, recvbuf=None, source=ANY_SOURCE, recvtag=ANY_TAG, status=None):
    """Sends and receives at once: neither waits for the other's end."""
    r = self.Irecv(recvbuf, source, recvtag, status)
    self.Send(sendbuf, dest, sendtag)
    r.wait()


Comm.Sendrecv = _sendrecv
