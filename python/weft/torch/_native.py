"""The library's functions as the process group calls them.

It is loaded with the first group, so that a program may import weft.torch, fork, and make groups in its children. A call is handed
over as bytes that struct packed: that takes a fraction of the time of filling a ctypes structure."""

import ctypes
import threading
from ctypes import byref, c_char_p, c_int, c_int32, c_int64, c_void_p

from .. import _lib
from .._lib import (ABORTED, ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BARRIER, BROADCAST, BROKEN, CLOSED, DEAD, GATHER, INTERRUPTED, INVALID, LEFT,  # noqa: F401
                    MISMATCH, NO_DEVICE, OK, PENDING, RECV, REDUCE, REDUCE_SCATTER, SCATTER, SEND, TIMEOUT, Status)

Request = c_int64
reraise = _lib.reraise


class _Local(threading.local):
    def __init__(self):
        self.error = _lib.Error()
        self.address = ctypes.addressof(self.error)
        self.status, self.request = Status(), Request()
        self.status_address, self.request_address = ctypes.addressof(self.status), ctypes.addressof(self.request)


local = _local = _Local()


def error():
    """The address of this thread's error."""
    return _local.address


def status():
    """The address of this thread's status of a call."""
    return _local.status_address


def request():
    """The address of the number of a request that this thread starts."""
    return _local.request_address


def started():
    """The number of the request that this thread started last."""
    return _local.request.value


def read():
    """The sentence and the ranks at fault of this thread's error."""
    e = _local.error
    return e.text.decode(errors="replace"), list(e.culprits[:min(e.culprit_count, _lib.CULPRITS)])


class Refused(Exception):
    """A function of the library failed; the code is that of weft.h."""

    def __init__(self, code, text, culprits):
        super().__init__(text)
        self.code, self.culprits = code, culprits


def check(code):
    if code == INTERRUPTED:
        _lib.reraise()
    if code:
        raise Refused(code, *read())


def _bind(name, *args):
    f = _lib.lib()[name]  # an object of its own: its types are not those of the package
    f.argtypes, f.restype = args, c_int
    return f


def run(comm, call, status, error):
    _load()
    return run(comm, call, status, error)


def start(comm, call, request, error):
    """Starts a call. The number of one that ended well already is 0."""
    _load()
    return start(comm, call, request, error)


def wait(request, ms, status, error):
    _load()
    return wait(request, ms, status, error)


def block(request, stream, error):
    _load()
    return block(request, stream, error)


def enqueue(comm, call, error):
    _load()
    return enqueue(comm, call, error)


def _load():
    """Binds the functions that are called often. They stand in for those above."""
    global run, start, wait, block, enqueue
    enqueue = _bind("weft_enqueue", c_int64, c_char_p, c_void_p)
    block = _bind("weft_block", c_int64, c_void_p, c_void_p)
    run = _bind("weft_run", c_int64, c_char_p, c_void_p, c_void_p)
    start = _bind("weft_try", c_int64, c_char_p, c_void_p, c_void_p)
    wait = _bind("weft_wait", c_int64, c_int64, c_void_p, c_void_p)


def join(rank, ranks, address, token, timeout, settings, listener=0):
    cfg = _lib.Config(ctypes.sizeof(_lib.Config), rank, ranks, 0, 0, address.encode() or None, token.encode() or None, None,
                      max(1, int(timeout.total_seconds() * 1000)), settings.encode() or None)
    cfg.listener = listener
    comm = c_int64()
    check(_lib.lib().weft_join(byref(cfg), byref(comm), _local.error))
    return comm.value


def listen(address):
    """Listens there; port 0 is any. Gives the listener and where it listens."""
    out, text = c_int64(), ctypes.create_string_buffer(256)
    check(_lib.lib().weft_listen(address.encode(), text, len(text), byref(out), _local.error))
    return out.value, text.value.decode()


def unlisten(listener):
    _lib.lib().weft_unlisten(listener, None)


GATHER_FUNCTION = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_int64, c_void_p)


def group(comm, ranks, gather):
    """A communicator of some ranks of another. gather(mine) gives what all said, one behind another."""
    failed = []

    def exchange(_, mine, size, everything):
        try:
            all_ = gather(ctypes.string_at(mine, size) if size else b"")
            if len(all_) != size * len(ranks):
                raise RuntimeError(f"{len(all_)} bytes came of {len(ranks)} ranks, {size} of each were expected")
            if size:
                ctypes.memmove(everything, all_, len(all_))
        except BaseException as e:
            failed.append(e)
            return 1
        return 0

    callback = GATHER_FUNCTION(exchange)
    out = c_int64()
    rc = _lib.lib().weft_group(comm, (c_int32 * len(ranks))(*ranks), len(ranks), callback, None, byref(out), _local.error)
    if failed:
        raise failed[0]
    check(rc)
    return out.value


def close(comm):
    rc = _lib.lib().weft_close(comm, _local.error)
    if rc not in (OK, _lib.FORKED):
        check(rc)


def abort(comm, why):
    check(_lib.lib().weft_abort(comm, why.encode(), _local.error))


def alive(comm):
    return bool(comm) and _lib.lib().weft_check(comm, None) == OK


def ended(comm):
    """The ranks that are known to have died, without a call; none if the communicator is closed."""
    return read()[1] if comm and _lib.lib().weft_ended(comm, _local.error) == DEAD else []


def transport(comm):
    i = _lib.Info(ctypes.sizeof(_lib.Info))
    check(_lib.lib().weft_get_info(comm, byref(i), _local.error))
    return i.transport.decode()


def queue():
    q = c_int64()
    check(_lib.lib().weft_queue_new(byref(q), _local.error))
    return q.value


def queue_free(q):
    _lib.lib().weft_queue_free(q, None)


def next(q):
    """The next request that ended; None if the queue was freed."""
    r = c_int64()
    while True:
        rc = _lib.lib().weft_next(q, -1, byref(r), _local.error)
        if rc == OK:
            return r.value
        if rc != PENDING:
            return None


def tell(request, q):
    check(_lib.lib().weft_tell(request, q, _local.error))


def alloc(comm, size):
    p = c_void_p()
    check(_lib.lib().weft_alloc(comm, size, byref(p), _local.error))
    return p.value


def free(comm, p):
    check(_lib.lib().weft_free(comm, p, _local.error))
