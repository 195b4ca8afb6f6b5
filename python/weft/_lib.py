"""The library libweft.so as ctypes sees it: structures, constants and functions of weft.h, nothing more.

The library is loaded when it is first used, so that a process may import weft, fork, and use it in its children. It is looked for at
WEFT_LIBRARY, then beside this file ("make lib" builds it there).
"""

import ctypes
import os
import threading
from ctypes import POINTER, byref, c_char, c_char_p, c_double, c_int, c_int32, c_int64, c_uint32, c_uint64, c_void_p

from ._version import __version__

ABI = 1

# Codes.
OK, DEAD, MISMATCH, TIMEOUT, ABORTED, CLOSED, BROKEN, LEFT, EXCLUDED, NO_QUORUM, INVALID, FORKED, INTERNAL, INTERRUPTED, NO_DEVICE = range(15)
PENDING = 100

# Operations of Call.
ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, REDUCE, ALL_TO_ALL, GATHER, SCATTER, BARRIER, SCAN, EXSCAN = range(1, 12)
SUM, PROD, MIN, MAX, AVG, PREMULSUM, BAND, BOR, BXOR = range(1, 10)
SEND, RECV, SEND_RECV, PROBE = range(20, 24)
PUT, GET, COMPARE_SWAP, FETCH_ADD, NOTIFY, PUT_NOTIFY = range(30, 36)
NO_TAG, ANY = -2, -1


def dtype(code, bits):
    """The number of an element type: DLPack's code and its bits."""
    return code | bits << 8


CULPRITS = 64


class Error(ctypes.Structure):
    _fields_ = [
        ("code", c_int32),
        ("rank", c_int32),
        ("operation", c_uint64),
        ("culprit_count", c_int32),
        ("culprits", c_int32 * CULPRITS),
        ("reserved", c_int32 * 11),
        ("text", c_char * 3776),
    ]


class Config(ctypes.Structure):
    _fields_ = [
        ("size", c_uint64),
        ("rank", c_int32),
        ("ranks", c_int32),
        ("local_rank", c_int32),
        ("reserved", c_int32),
        ("address", c_char_p),
        ("token", c_char_p),
        ("transport", c_char_p),
        ("timeout_ms", c_int64),
        ("settings", c_char_p),
        ("listener", c_int64),
    ]


class Info(ctypes.Structure):
    _fields_ = [
        ("size", c_uint64),
        ("rank", c_int32),
        ("ranks", c_int32),
        ("epoch", c_int32),
        ("reserved", c_int32),
        ("transport", c_char * 16),
    ]


class Status(ctypes.Structure):
    _fields_ = [("source", c_int32), ("tag", c_int32), ("count", c_int64)]


FORM, STEP, HALT = 1, 2, 3
FAILED, FAILED_ELSEWHERE = 1, 2


class ToldMove(ctypes.Structure):
    _fields_ = [
        ("local", c_int64),
        ("far", c_int64),
        ("index", c_int64),
        ("over", c_int64),
        ("limit_us", c_int64),
        ("notice", c_char_p),
        ("notice_bytes", c_int64),
        ("write", c_int32),
        ("reserved", c_int32),
    ]


class ToldState(ctypes.Structure):
    _fields_ = [
        ("request", c_int64),
        ("bytes", c_int64),
        ("took_us", c_int64),
        ("state", c_int32),
        ("path", c_char * 12),
    ]


class Task(ctypes.Structure):
    _fields_ = [
        ("size", c_uint64),
        ("kind", c_int32),
        ("final", c_int32),
        ("comm", c_int64),
        ("epoch", c_uint64),
        ("rank", c_int32),
        ("ranks", c_int32),
        ("reason", c_char * 256),
    ]


class Call(ctypes.Structure):
    _fields_ = [
        ("size", c_uint64),
        ("op", c_int32),
        ("type", c_uint32),
        ("reduce", c_int32),
        ("root", c_int32),
        ("peer", c_int32),
        ("source", c_int32),
        ("tag", c_int32),
        ("value", c_uint32),
        ("dst", c_void_p),
        ("src", c_void_p),
        ("count", c_int64),
        ("send_count", c_int64),
        ("counts", POINTER(c_int64)),
        ("send_counts", POINTER(c_int64)),
        ("factor", c_double),
        ("timeout_ms", c_int64),
        ("key", c_uint64),
        ("compare", c_uint64),
        ("operand", c_uint64),
        ("was", POINTER(c_uint64)),
        ("queue", c_int64),
        ("device", c_int32),
        ("device_id", c_int32),
        ("stream", c_void_p),
        ("cause", c_uint64),
    ]


_E, _H, _T = POINTER(Error), c_int64, c_uint32
_C = POINTER(c_int64)
_functions = {
    "weft_threads": [c_int, _E],
    "weft_on_wait": [c_void_p, c_void_p],
    "weft_python": [c_void_p] * 5,
    "weft_join": [POINTER(Config), POINTER(_H), _E],
    "weft_close": [_H, _E],
    "weft_abort": [_H, c_char_p, _E],
    "weft_split": [_H, c_int, c_int, POINTER(_H), _E],
    "weft_dup": [_H, POINTER(_H), _E],
    "weft_shrink": [_H, POINTER(_H), _E],
    "weft_rank": [_H],
    "weft_size": [_H],
    "weft_get_info": [_H, POINTER(Info), _E],
    "weft_check": [_H, _E],
    "weft_ended": [_H, _E],
    "weft_run": [_H, POINTER(Call), POINTER(Status), _E],
    "weft_run_all": [_H, POINTER(Call), c_int, _E],
    "weft_start": [_H, POINTER(Call), POINTER(_H), _E],
    "weft_try": [_H, POINTER(Call), POINTER(_H), _E],
    "weft_test": [_H, POINTER(Status), _E],
    "weft_wait": [_H, c_int64, POINTER(Status), _E],
    "weft_wait_any": [POINTER(_H), c_int, c_int64, POINTER(c_int), POINTER(Status), _E],
    "weft_cancel": [_H, _E],
    "weft_block": [_H, c_void_p, _E],
    "weft_enqueue": [_H, POINTER(Call), _E],
    "weft_prepare": [_H, POINTER(Call), POINTER(_H), _E],
    "weft_begin": [_H, POINTER(_H), _E],
    "weft_forget": [_H, _E],
    "weft_queue_new": [POINTER(_H), _E],
    "weft_next": [_H, c_int64, POINTER(_H), _E],
    "weft_queue_free": [_H, _E],
    "weft_tell": [_H, _H, _E],
    "weft_group": [_H, POINTER(c_int32), c_int, c_void_p, c_void_p, POINTER(_H), _E],
    "weft_listen": [c_char_p, c_void_p, c_int, POINTER(_H), _E],
    "weft_unlisten": [_H, _E],
    "weft_follow": [POINTER(_H), _E],
    "weft_follow_next": [_H, c_int64, POINTER(Task), _E],
    "weft_follow_done": [_H, c_int, c_int, c_char_p, _E],
    "weft_follow_leave": [_H, _E],
    "weft_follow_close": [_H, _E],
    "weft_barrier": [_H, _E],
    "weft_all_reduce": [_H, c_void_p, c_void_p, c_int64, _T, c_int, _E],
    "weft_reduce_scatter": [_H, c_void_p, c_void_p, c_int64, _T, c_int, _E],
    "weft_all_gather": [_H, c_void_p, c_void_p, c_int64, _T, _E],
    "weft_broadcast": [_H, c_void_p, c_int64, _T, c_int, _E],
    "weft_reduce": [_H, c_void_p, c_void_p, c_int64, _T, c_int, c_int, _E],
    "weft_all_to_all": [_H, c_void_p, c_void_p, c_int64, _T, _E],
    "weft_gather": [_H, c_void_p, c_void_p, c_int64, _T, c_int, _E],
    "weft_scatter": [_H, c_void_p, c_void_p, c_int64, _T, c_int, _E],
    "weft_scan": [_H, c_void_p, c_int64, _T, c_int, _E],
    "weft_exscan": [_H, c_void_p, c_int64, _T, c_int, _E],
    "weft_all_reduce_by": [_H, c_void_p, c_int64, c_int64, c_void_p, c_void_p, _E],
    "weft_scan_by": [_H, c_void_p, c_int64, c_int64, c_void_p, c_void_p, _E],
    "weft_reduce_scatter_v": [_H, c_void_p, c_void_p, _C, _T, c_int, _E],
    "weft_all_gather_v": [_H, c_void_p, c_void_p, _C, _T, _E],
    "weft_gather_v": [_H, c_void_p, c_void_p, _C, _T, c_int, _E],
    "weft_scatter_v": [_H, c_void_p, c_void_p, _C, _T, c_int, _E],
    "weft_all_to_all_v": [_H, c_void_p, _C, c_void_p, _C, _T, _E],
    "weft_send": [_H, c_void_p, c_int64, _T, c_int, c_int, _E],
    "weft_recv": [_H, c_void_p, c_int64, _T, c_int, c_int, POINTER(Status), _E],
    "weft_probe": [_H, c_int, c_int, POINTER(Status), _E],
    "weft_try_probe": [_H, c_int, c_int, POINTER(Status), _E],
    "weft_alloc": [_H, c_int64, POINTER(c_void_p), _E],
    "weft_free": [_H, c_void_p, _E],
    "weft_key_of": [_H, c_void_p, c_int64, POINTER(c_uint64), _E],
    "weft_notices": [_H, POINTER(c_int32), POINTER(c_uint32), c_int, POINTER(c_int), _E],
    "weft_way": [_H, c_void_p, c_int64, POINTER(c_int64), _E],
    "weft_explain": [_H, c_void_p, c_int64, POINTER(c_int64), _E],
    "weft_flight_json": [_H, c_void_p, c_int64, POINTER(c_int64), _E],
    "weft_counters_json": [_H, c_void_p, c_int64, POINTER(c_int64), _E],
    "weft_xfer_told_open": [POINTER(_H), _E],
    "weft_xfer_told": [_H, c_char_p, c_int64, c_void_p, c_int64, POINTER(c_int64), _E],
    "weft_xfer_told_post": [_H, POINTER(ToldMove), POINTER(ToldState), _E],
    "weft_xfer_told_look": [_H, _H, POINTER(ToldState), _E],
    "weft_xfer_told_close": [_H, _E],
}

_lock = threading.Lock()
_loaded = None
_restore = None


def path():
    """Where the library is looked for."""
    return os.environ.get("WEFT_LIBRARY") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "libweft.so")


def lib():
    """The library, loaded when it is first asked for."""
    return _loaded or _load()


def _load():
    global _loaded, _restore
    with _lock:
        if _loaded:
            return _loaded
        name = path()
        try:
            so = ctypes.CDLL(name)
        except OSError as e:
            raise ImportError(f"{name} cannot be loaded ({e}): build it with 'make lib', or set WEFT_LIBRARY to where it is; it needs Linux with glibc") from None
        _check(so, name)
        for f, args in _functions.items():
            g = getattr(so, f)
            g.argtypes, g.restype = args, c_int
        # A blocking call asks Python for signals about every 100 ms, on the thread that waits, so that Ctrl-C ends it.
        api = ctypes.pythonapi
        address = lambda f: ctypes.cast(f, c_void_p)
        so.weft_python(address(api.PyGILState_Ensure), address(api.PyGILState_Release), address(api.PyErr_CheckSignals), address(api.PyErr_Fetch), address(api.PyErr_Restore))
        _restore = ctypes.PyDLL(name).weft_python_restore
        _restore.restype = None
        _loaded = so
        return so


def _check(so, name):
    """Refuses a library that is not the one of this package, with what was found and what to do."""
    again = "build it again with 'make lib' in the package's repository, or set WEFT_LIBRARY to the right one"
    if not hasattr(so, "weft_abi") or not hasattr(so, "weft_version"):
        raise ImportError(f"{name} is no library of weft: it has no function weft_abi; weft {__version__} needs libweft.so with ABI {ABI}: {again}")
    so.weft_version.restype = c_char_p
    so.weft_abi.restype = c_int
    found = f"{name} is version {so.weft_version().decode(errors='replace') or 'unknown'} with ABI {so.weft_abi()}"
    if so.weft_abi() != ABI:
        raise ImportError(f"{found}; weft {__version__} needs ABI {ABI}: {again}")
    missing = [f for f in _functions if not hasattr(so, f)]
    if missing:
        raise ImportError(f"{found}, and older than the package weft {__version__}: it lacks {', '.join(missing[:4])}{' and more' if len(missing) > 4 else ''}: {again}")


def reraise():
    """Raises the exception that a signal handler raised while a call waited."""
    _restore()
    raise KeyboardInterrupt
