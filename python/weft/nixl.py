"""NIXL's Python API on weft: nixl_agent with the methods that serving engines call.

    from weft.nixl import nixl_agent, nixl_agent_config
    agent = nixl_agent("decode0")
    regs = agent.register_memory(agent.get_reg_descs([(address, length, 0, "")], "DRAM"))
    peer = agent.add_remote_agent(metadata)          # the bytes of the other's get_agent_metadata()
    local = agent.prep_xfer_dlist("", [(address, 4096, 0)], "DRAM")
    far = agent.prep_xfer_dlist(peer, [(their_address, 4096, 0)], "DRAM")
    handle = agent.make_prepped_xfer("READ", local, [0], far, [0], b"done")
    state = agent.transfer(handle)                   # DONE, PROC or ERR; then check_xfer_state(handle)

To let a program that imports nixl._api find it: weft.nixl.install(). The transfers are package xfer's: leases before reads, a checksum for
every slice, notices after the data has landed and exactly once, a deadline on every request (WEFT_XFER_TIMEOUT seconds, 30 without it).

The agent is in this process, through libweft.so. DRAM, VRAM (CUDA), FILE and OBJ are there. Memory must stay allocated while it is
registered, and what the GPU still writes must be waited for before a transfer is posted. Without libweft.so, or with WEFT_NIXL=process, the
agent runs in a process of its own ("weft xfer-agent", the program that WEFT_PROGRAM or PATH names) and reaches this process's memory through
the kernel; VRAM is refused then. The token of the cluster is WEFT_TOKEN, and WEFT_XFER_LISTEN an address that other hosts reach.

Metadata goes by any way the program has, by sockets (enable_listen_thread, send_local_metadata and its kin; both ends prove that they know the
token, and without one only the same host is heard), or by etcd (NIXL_ETCD_ENDPOINTS; an agent's entries go ten seconds after it died).

A program that was written for NIXL runs on it without a change:  python3 -m weft.nixl PROGRAM.py ARGUMENTS

Differences from NIXL: a request that a peer posted to us and that failed is told by get_failed_notifs(); a transfer ends in ERR at its
deadline instead of staying in PROC; get_xfer_telemetry needs no switch, though NIXL_TELEMETRY_ENABLE=no turns it off; sending and fetching
metadata is done when the call returns, and raises if the other is not there.
"""

import base64
import bisect
import ctypes
import enum
import json
import logging
import os
import pickle
import runpy
import shutil
import struct
import subprocess
import sys
import threading
import time
import types
import weakref

from weft import _lib, _meet

DEFAULT_TIMEOUT = 30.0
DEFAULT_COMM_PORT = 8888
NIXL_INIT_AGENT = "NIXL_INIT_AGENT"
HAVE_UCX_GPU_DEVICE_API = False
_INIT_AGENT = ("", NIXL_INIT_AGENT)

logger = logging.getLogger("weft.nixl")


class nixlError(RuntimeError):
    """What went wrong in a call."""


class nixlInvalidParamError(nixlError, ValueError):
    """A wrong argument."""


class nixlNotFoundError(nixlError, KeyError):
    """A region, agent or handle that is not there."""

    def __str__(self):
        return str(self.args[0]) if self.args else ""


class nixlMismatchError(nixlError):
    """Lists that do not fit together."""


class nixlNotAllowedError(nixlError, PermissionError):
    """Not allowed, or at the wrong time."""


class nixlNotPostedError(nixlNotAllowedError):
    """A transfer that was not posted yet."""


class nixlUnknownError(nixlError):
    """None of the others."""


class nixlNoTelemetryError(nixlError):
    """Figures of transfers are turned off, or the transfer is not done."""


class nixlRepostActiveError(nixlError):
    """A transfer that is still under way was posted again."""


class nixlNotSupportedError(nixlError, NotImplementedError):
    """Not possible here."""


class nixlRemoteDisconnectError(nixlError, ConnectionError):
    """The other agent is gone or of another life."""


class nixlCancelledError(nixlError):
    """Cancelled."""


class nixlBackendError(nixlError):
    """The transfer failed."""


_kinds = {
    "parameter": nixlInvalidParamError, "mismatch": nixlMismatchError, "not found": nixlNotFoundError, "not allowed": nixlNotAllowedError,
    "disconnected": nixlRemoteDisconnectError, "cancelled": nixlCancelledError, "unsupported": nixlNotSupportedError, "backend": nixlBackendError,
}



class nixl_mem_t(enum.Enum):
    """Kinds of memory."""

    DRAM_SEG = 0
    VRAM_SEG = 1
    BLK_SEG = 2
    OBJ_SEG = 3
    FILE_SEG = 4


DRAM_SEG, VRAM_SEG, BLK_SEG, OBJ_SEG, FILE_SEG = nixl_mem_t
_memory = {"DRAM": DRAM_SEG, "cpu": DRAM_SEG, "VRAM": VRAM_SEG, "cuda": VRAM_SEG, "FILE": FILE_SEG, "BLOCK": BLK_SEG, "OBJ": OBJ_SEG}
_words = {DRAM_SEG: "DRAM", VRAM_SEG: "VRAM", BLK_SEG: "BLOCK", OBJ_SEG: "OBJ", FILE_SEG: "FILE"}


class nixl_xfer_op_t(enum.Enum):
    """What a transfer does."""

    NIXL_READ = 0
    NIXL_WRITE = 1


NIXL_READ, NIXL_WRITE = nixl_xfer_op_t


class nixl_cost_t(enum.IntEnum):
    """How a cost was found. Here it is measured, which NIXL has no word for."""

    NIXL_COST_ANALYTICAL_BACKEND = 0


NIXL_COST_ANALYTICAL_BACKEND = nixl_cost_t.NIXL_COST_ANALYTICAL_BACKEND


class nixl_status_t(enum.IntEnum):
    """Answers of nixlAgent. Those below zero are raised as errors."""

    NIXL_IN_PROG = 1
    NIXL_SUCCESS = 0
    NIXL_ERR_NOT_POSTED = -1
    NIXL_ERR_INVALID_PARAM = -2
    NIXL_ERR_BACKEND = -3
    NIXL_ERR_NOT_FOUND = -4
    NIXL_ERR_MISMATCH = -5
    NIXL_ERR_NOT_ALLOWED = -6
    NIXL_ERR_REPOST_ACTIVE = -7
    NIXL_ERR_UNKNOWN = -8
    NIXL_ERR_NOT_SUPPORTED = -9


(
    NIXL_IN_PROG, NIXL_SUCCESS, NIXL_ERR_NOT_POSTED, NIXL_ERR_INVALID_PARAM, NIXL_ERR_BACKEND, NIXL_ERR_NOT_FOUND, NIXL_ERR_MISMATCH,
    NIXL_ERR_NOT_ALLOWED, NIXL_ERR_REPOST_ACTIVE, NIXL_ERR_UNKNOWN, NIXL_ERR_NOT_SUPPORTED,
) = nixl_status_t


class nixl_thread_sync_t(enum.Enum):
    """How calls of several threads are kept apart. Here they always are."""

    NIXL_THREAD_SYNC_NONE = 0
    NIXL_THREAD_SYNC_STRICT = 1
    NIXL_THREAD_SYNC_RW = 2
    NIXL_THREAD_SYNC_DEFAULT = 3


NIXL_THREAD_SYNC_NONE, NIXL_THREAD_SYNC_STRICT, NIXL_THREAD_SYNC_RW, NIXL_THREAD_SYNC_DEFAULT = nixl_thread_sync_t


def _reachable(kind):
    """The word for a kind of memory that can be reached from here."""
    if kind not in (DRAM_SEG, VRAM_SEG, FILE_SEG, OBJ_SEG):
        raise nixlNotSupportedError("%s: memory of this kind cannot be reached here; DRAM, VRAM, FILE and OBJ can" % _words[kind])
    return _words[kind]


class nixl_agent_config:
    """Settings of an agent. With enable_listen_thread it takes metadata of others at listen_port (0 for any; nixl_agent.listen_port says
    which). Numbers of threads have no meaning here."""

    def __init__(
        self, enable_prog_thread=True, enable_listen_thread=False, listen_port=DEFAULT_COMM_PORT, capture_telemetry=False, num_threads=0, backends=("UCX",), sync_mode=None
    ):
        if sync_mode is not None and not isinstance(sync_mode, nixl_thread_sync_t):
            raise TypeError("sync_mode must be a nixl_thread_sync_t (got %r)" % type(sync_mode).__name__)
        self.enable_pthread, self.enable_listen = enable_prog_thread, enable_listen_thread
        self.port, self.capture_telemetry, self.num_threads = listen_port, capture_telemetry, num_threads
        self.backends, self.sync_mode = list(backends or ()), sync_mode


class agent_name(str):
    """The name of an agent as add_remote_agent gives it. NIXL gives bytes, so it equals both, and can be decoded."""

    def __eq__(self, other):
        return str.__eq__(self, other.decode("utf-8", "replace") if isinstance(other, (bytes, bytearray)) else other)

    def __ne__(self, other):
        return not self == other

    __hash__ = str.__hash__

    def decode(self, encoding="utf-8", errors="strict"):
        return str(self)


def _name(agent):
    """A name of an agent that is given as text or bytes."""
    return agent.decode() if isinstance(agent, (bytes, bytearray)) else str(agent)


def _data(message):
    """A notice that is given as bytes or text."""
    return message.encode() if isinstance(message, str) else bytes(message)


class _Descs:
    """A list of descriptors of one kind."""

    fields = 3

    def __init__(self, type, descs=()):
        if not isinstance(type, nixl_mem_t):
            raise TypeError("a list of %r; want a nixl_mem_t such as DRAM_SEG" % (type,))
        self.kind, self.rows = type, []
        for d in () if isinstance(descs, int) else descs:
            self.addDesc(d)

    def _checked(self, d):
        if not isinstance(d, tuple):
            raise TypeError("descriptor %r; want a tuple" % (d,))
        if len(d) != self.fields:
            raise nixlInvalidParamError("descriptor %r; want %d values" % (d, self.fields))
        numbers = tuple(v if isinstance(v, bool) else getattr(v, "__index__", lambda v=v: v)() for v in d[:3])
        if any(not isinstance(v, int) or isinstance(v, bool) for v in numbers):
            raise TypeError("descriptor %r; want an address, a length and a device as numbers" % (d,))
        if any(v < 0 or v >= 1 << 64 for v in numbers) or numbers[1] > 1 << 46:
            raise nixlInvalidParamError("descriptor %r; want an address, a length of at most 2^46 bytes and a device" % (d,))
        return numbers + tuple(d[3:])

    def addDesc(self, desc):
        self.rows.append(self._checked(desc))

    append = addDesc

    def index(self, desc):
        try:
            return self.rows.index(self._checked(desc))
        except ValueError:
            raise nixlNotFoundError("descriptor %r is not in the list" % (desc,)) from None

    def remDesc(self, index):
        if not 0 <= index < len(self.rows):
            raise nixlInvalidParamError("descriptor %d of %d" % (index, len(self.rows)))
        del self.rows[index]

    def clear(self):
        self.rows.clear()

    def descCount(self):
        return len(self.rows)

    def isEmpty(self):
        return not self.rows

    def getType(self):
        return self.kind

    def print(self):
        print(self)

    def __repr__(self):
        return "%s(%s, %r)" % (type(self).__name__, self.kind.name, self.rows)

    def __len__(self):
        return len(self.rows)

    def __iter__(self):
        return iter(self.rows)

    def __getitem__(self, i):
        return self.rows[i]

    def __setitem__(self, i, desc):
        self.rows[i] = self._checked(desc)

    def __eq__(self, other):
        return type(self) is type(other) and (self.kind, self.rows) == (other.kind, other.rows)

    __hash__ = None


class nixlRegDList(_Descs):
    """Memory to register: (address, length, device, text)."""

    fields = 4

    def _checked(self, d):
        d = super()._checked(d)
        return d[:3] + (d[3].encode() if isinstance(d[3], str) else bytes(d[3]),)

    def trim(self):
        return nixlXferDList(self.kind, [d[:3] for d in self.rows])


class nixlXferDList(_Descs):
    """Memory to move: (address, length, device)."""


class nixlRemoteDList(_Descs):
    """Memory of other agents: (address, length, device, agent)."""

    fields = 4

    def _checked(self, d):
        d = super()._checked(d)
        if not isinstance(d[3], (str, bytes)):
            raise TypeError("descriptor %r; want the name of an agent at its end" % (d,))
        return d[:3] + (_name(d[3]),)


class nixlXferTelemetry:
    """Figures of a transfer: times in microseconds, bytes and descriptors. path is the way that the bytes took."""

    def __init__(self, startTime=0, postDuration=0, xferDuration=0, totalBytes=0, descCount=0, path=""):
        self.startTime, self.postDuration, self.xferDuration = startTime, postDuration, xferDuration
        self.totalBytes, self.descCount, self.path = totalBytes, descCount, path


def _tensors(descs):
    """A tensor, or a list of tensors, as a list; None for anything else."""
    if hasattr(descs, "data_ptr"):
        return [descs]
    if isinstance(descs, (list, tuple)) and descs and all(hasattr(d, "data_ptr") for d in descs):
        return list(descs)
    return None


def _descs(descs, mem_type, cls, other):
    """A list of descriptors from tuples, an (N, 3) array, a tensor or tensors. As in NIXL it is None, with a line in the log, for what is
    none of them, and a KeyError for a kind of memory that is not known."""

    def wrong(why, *args):
        logger.error(why, *args)

    if isinstance(descs, cls):
        return descs
    if isinstance(descs, other):
        return wrong("a %s is given where a %s is wanted", type(descs).__name__, cls.__name__)
    tail = ("",) * (cls.fields - 3)
    tensors = _tensors(descs)
    if tensors is not None:
        rows, device = [], tensors[0].get_device() if tensors[0].is_contiguous() else None
        for t in tensors:
            if not t.is_contiguous():
                return wrong("a tensor is not contiguous; call .contiguous() first")
            if t.get_device() != device:
                return wrong("tensors of several devices")
            rows.append((t.data_ptr(), t.numel() * t.element_size(), max(device, 0)) + tail)
        return cls(DRAM_SEG if device < 0 else VRAM_SEG, rows)
    array = hasattr(descs, "shape") and hasattr(descs, "tolist")
    if not array and not (isinstance(descs, (list, tuple)) and all(isinstance(d, tuple) for d in descs)):
        return wrong("%s is no list of descriptors; want tuples, an (N, 3) array or tensors", type(descs).__name__)
    if mem_type is None:
        return wrong("mem_type is missing: want DRAM, FILE or OBJ for tuples and arrays")
    if array:
        if len(descs.shape) != 2 or descs.shape[1] != 3:
            return wrong("an array of shape %s; want (N, 3): address, length, device", tuple(descs.shape))
        return cls(_memory[mem_type], [tuple(r) + tail for r in descs.tolist()])
    if descs and len(descs[0]) != cls.fields:
        return wrong("descriptors of %d values; want %d", len(descs[0]), cls.fields)
    return cls(_memory[mem_type], descs)


class _Talk:
    """What an agent is told, a line at a time: _say sends a line and gives the answer to it."""

    def __init__(self):
        self.lock = threading.Lock()
        self.next, self.later = 0, []

    def call(self, do, **what):
        with self.lock:
            while self.later:
                self._ask(*self.later.pop())
            answer = self._ask(do, what)
        if answer.get("error") and answer.get("state") != "ERR":
            raise _kinds.get(answer.get("kind"), nixlBackendError)(answer["error"])
        return answer

    def _ask(self, do, what):
        self.next += 1
        return self._say(json.dumps(dict(what, id=self.next, do=do)).encode() + b"\n")

    def post(self, h, limit, over):
        """Posts a transfer, after the request over was released: a number and how it stands."""
        if over:
            self.call("release", req=over)
        what = {"data": base64.b64encode(h.notice).decode()} if h.notice else {}
        answer = self.call("post", op=h.op, local=h.local.number, far=h.far.number, index=h.index, limit=limit, **what)
        return answer["number"], self._standing(answer)

    def look(self, request):
        """How a request stands: state, error, bytes that landed, microseconds, path."""
        return self._standing(self.call("poll", req=request))

    @staticmethod
    def _standing(a):
        return a["state"], a.get("error", ""), a.get("bytes", 0), int(a.get("took_us", 0)), a.get("path", "")

    def soon(self, do, **what):
        """Makes a call before the next one. Python may take an object away at any moment, also in the middle of a call."""
        self.later.append((do, what))


class _Inside(_Talk):
    """An agent in this process, in libweft."""

    def __init__(self):
        super().__init__()
        self.lib, self.error, self.handle = _lib.lib(), _lib.Error(), ctypes.c_int64()
        self.size, self.buffer, self.state = ctypes.c_int64(), ctypes.create_string_buffer(1 << 16), _lib.ToldState()
        self._check(self.lib.weft_xfer_told_open(ctypes.byref(self.handle), ctypes.byref(self.error)))

    def _check(self, code):
        if code:
            raise nixlBackendError(self.error.text.decode(errors="replace"))

    def _say(self, line):
        if not self.handle:
            raise nixlBackendError("the agent is closed")
        told = lambda text: self.lib.weft_xfer_told(self.handle, text, len(text), self.buffer, len(self.buffer), ctypes.byref(self.size), ctypes.byref(self.error))
        code = told(line)
        if self.size.value > len(self.buffer):  # the answer waits for a larger buffer
            self.buffer = ctypes.create_string_buffer(self.size.value)
            code = told(b"")
        self._check(code)
        return json.loads(self.buffer[: self.size.value])

    # Transfers are posted and looked at without lines of text, which would take longer than many a copy.

    def post(self, h, limit, over):
        m = h.move
        if m is None:
            m = h.move = _lib.ToldMove(h.local.number, h.far.number, h.index, write=h.op == "WRITE")
        m.over, m.limit_us, m.notice, m.notice_bytes = over, int(limit * 1e6), h.notice or None, len(h.notice)
        with self.lock:
            while self.later:
                self._ask(*self.later.pop())
            s = self.state
            if self.handle and self.lib.weft_xfer_told_post(self.handle, m, s, self.error) == 0:
                return s.request, self._stands(s)
        return super().post(h, limit, 0)  # says what is wrong

    def look(self, request):
        with self.lock:
            s = self.state
            if self.handle and self.lib.weft_xfer_told_look(self.handle, request, s, self.error) == 0 and s.state < 2:
                return self._stands(s)
        return super().look(request)

    def _stands(self, s):
        if s.state == 2:  # why is text
            return self._standing(self._ask("poll", {"req": s.request}))
        return "DONE" if s.state else "PROC", "", s.bytes, s.took_us, s.path.decode()

    def close(self):
        with self.lock:
            if self.handle:
                self.lib.weft_xfer_told_close(self.handle, ctypes.byref(self.error))
                self.handle = ctypes.c_int64()


class _Child(_Talk):
    """An agent in a process of its own."""

    def __init__(self, program):
        super().__init__()
        try:
            self.process = subprocess.Popen([program, "xfer-agent"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as e:
            raise nixlBackendError("%s does not start: %s; set WEFT_PROGRAM to the weft program" % (program, e)) from e
        if sys.platform == "linux":  # where the system asks for leave, the child may read and write our memory
            ctypes.CDLL(None, use_errno=True).prctl(0x59616D61, ctypes.c_ulong(self.process.pid), 0, 0, 0)

    def _say(self, line):
        try:
            self.process.stdin.write(line)
            self.process.stdin.flush()
            while text := self.process.stdout.readline():
                answer = json.loads(text)
                if answer["id"] == self.next:  # else of a call that was interrupted
                    return answer
        except (OSError, ValueError) as e:
            raise nixlBackendError("the agent's process is gone: %s" % e) from e
        raise nixlBackendError("the agent's process ended with %s" % self.process.poll())

    def close(self):
        with self.lock:
            if self.process.poll() is None:
                self.process.stdin.close()
                try:
                    self.process.wait(5)
                except subprocess.TimeoutExpired:
                    self.process.kill()
                    self.process.wait()
            for pipe in self.process.stdin, self.process.stdout:
                try:
                    pipe.close()
                except OSError:
                    pass  # what was not read by a process that died


def _talk():
    """An agent in this process where libweft is there, else in one of its own. WEFT_NIXL=library or process asks for one of them."""
    want = os.environ.get("WEFT_NIXL", "")
    if want not in ("", "library", "process"):
        raise nixlInvalidParamError("WEFT_NIXL is %r; want library or process" % want)
    if want == "library" or not want and os.path.exists(_lib.path()):
        try:
            return _Inside()
        except ImportError as e:
            raise nixlBackendError("%s; or set WEFT_NIXL=process" % e) from e
    program = os.environ.get("WEFT_PROGRAM") or shutil.which("weft")
    if not program:
        raise nixlBackendError("neither %s nor a weft program is there: run 'make lib', put weft on PATH, or set WEFT_PROGRAM" % _lib.path())
    return _Child(program)


class _Regions:
    """Which region of an agent holds an address."""

    def __init__(self):
        self.by = {}  # (kind, device): sorted [(address, length, name)]; the device of memory is 0

    @staticmethod
    def key(kind, device):
        return (kind, 0 if kind == "DRAM" else device)

    def add(self, kind, address, length, device, name):
        bisect.insort(self.by.setdefault(self.key(kind, device), []), (address, length, name))

    def remove(self, kind, address, length, device):
        rows = self.by.get(self.key(kind, device), [])
        for i, r in enumerate(rows):
            if r[:2] == (address, length):
                return rows.pop(i)[2]
        raise nixlNotFoundError("%d bytes at %#x are not registered" % (length, address))

    def name(self, kind, address, length, device):
        for a, n, name in self.by.get(self.key(kind, device), []):
            if (a, n) == (address, length):
                return name
        raise nixlNotFoundError("%d bytes at %#x are not registered" % (length, address))

    def find(self, kind, address, length, device):
        if length < 1:
            raise nixlInvalidParamError("a descriptor of %d bytes at %#x" % (length, address))
        rows = self.by.get(self.key(kind, device), [])
        i = bisect.bisect_right(rows, (address, float("inf"))) - 1
        while i >= 0:
            a, n, name = rows[i]
            if address + length <= a + n:
                return {"r": name, "o": address - a, "n": length}
            i -= 1
        raise nixlNotFoundError("%d bytes at %#x (%s, device %d) are in no registered region" % (length, address, kind, device))


class nixl_prepped_dlist_handle:
    """Descriptors that were checked; make_prepped_xfer takes some of them by index."""

    def __init__(self, agent, number, agent_name, descs):
        self.agent, self.number, self.agent_name, self.kind, self.rows = agent, number, agent_name, descs.kind, list(descs.rows)
        self.count, self.sizes = len(self.rows), [d[1] for d in self.rows]
        self.ends = (agent_name, self.kind)

    def release(self):
        if self.number:
            number, self.number, self.count = self.number, 0, 0
            self.agent._child.call("drop", list=number)

    def __del__(self):
        if self.number:
            self.agent._child.soon("drop", list=self.number)


class nixl_xfer_handle:
    """A transfer: posted by transfer(), watched by check_xfer_state()."""

    def __init__(self, agent, op, local, li, far, fi, notice):
        self.agent, self.op, self.local, self.li, self.far, self.fi, self.index = agent, op, local, li, far, fi, 0
        self.notice, self.request, self.state, self.error, self.move = notice, 0, "NEW", "", None
        self.began = self.posted = self.bytes = self.took = 0
        self.path = ""

    @property
    def telemetry(self):
        posted = max(1, (self.posted - self.began) // 1000)
        return nixlXferTelemetry(self.began // 1000, posted, max(posted, self.took), self.bytes, len(self.li), self.path)

    def release(self):
        """Frees the transfer. One that is under way is cancelled: when this returns no byte lands any more."""
        self.state = "RELEASED"
        if self.request:
            request, self.request = self.request, 0
            self.agent._child.call("release", req=request)
        if self.index:
            index, self.index = self.index, 0
            self.agent._child.call("unindex", index=index)

    def __del__(self):
        if self.request:
            self.agent._child.soon("release", req=self.request)
        if self.index:
            self.agent._child.soon("unindex", index=self.index)


nixl_backend_handle = int

# Settings of plug-ins, with what they are without being given.
_plugins = {
    "WEFT": {}, "UCX": {}, "POSIX": {},
    "OBJ": {"bucket": "", "endpoint_override": "", "scheme": "https", "region": "us-east-1", "access_key": "", "secret_key": "", "session_token": ""},
}  # fmt: skip

_PIECE, _PROBE = 4096, 1 << 20  # bytes of a small read and of a large one, of which a cost is made


def _kinds_of(plugin, talk):
    if plugin == "OBJ":
        return ["DRAM_SEG", "OBJ_SEG"]
    return ["DRAM_SEG", "FILE_SEG"] + (["VRAM_SEG"] if isinstance(talk, _Inside) else [])


class nixl_agent:
    """One end of transfers, under a name that other agents know."""

    def __init__(self, agent_name, nixl_conf=None, instantiate_all=False):
        if nixl_conf and instantiate_all:
            logger.warning("instantiate_all is left out: the configuration names the backends")
        conf = nixl_conf or nixl_agent_config()
        low = nixlAgentConfig(conf.enable_pthread, conf.enable_listen, conf.port)
        low.syncMode = (conf.sync_mode or (NIXL_THREAD_SYNC_STRICT if conf.enable_listen else NIXL_THREAD_SYNC_NONE)).value
        low.captureTelemetry = conf.capture_telemetry
        self._on(nixlAgent(agent_name, low), conf)
        self.agent._api = weakref.proxy(self)
        try:
            for name in self.plugin_list if instantiate_all and nixl_conf is None else conf.backends:
                if name in self.plugin_list:
                    self.create_backend(name)
                else:
                    logger.warning("backend %s is left out: there is no such plug-in here", name)
        except Exception:
            self.close()
            raise

    def _on(self, agent, conf):
        """Takes over a nixlAgent, whose process moves the bytes."""
        self.agent, self.name, self.config, self._child, self._token = agent, agent.name, conf, agent._child, agent._token
        self._timeout = float(os.environ.get("WEFT_XFER_TIMEOUT", DEFAULT_TIMEOUT))
        self._regions, self._peers, self._count, self._failed, self.notifs = _Regions(), {}, 0, [], {}
        self._costs, self._probe, self._listener = {}, None, None
        self.plugin_list, self.backends, self.backend_mems, self.backend_options = list(_plugins), {}, {}, {}
        self.nixl_mems, self.nixl_ops = dict(_memory), {"WRITE": NIXL_WRITE, "READ": NIXL_READ}
        if agent.config.useListenThread:
            me = weakref.ref(self)
            try:
                self._listener = _meet.Listener(agent.config.listenPort, self._token, lambda do, name, data: _heard(me(), do, name, data))
            except (OSError, OverflowError) as e:
                self._child.close()
                raise nixlBackendError("port %d cannot be listened at: %s; choose another listen_port, or 0 for any" % (agent.config.listenPort, e)) from e

    @property
    def listen_port(self):
        """The port at which metadata of others is taken; None without enable_listen_thread."""
        return self._listener.port if self._listener else None

    # Plug-ins: there is one, under the names that programs ask for. OBJ has settings: the store.

    def get_plugin_list(self):
        return self.plugin_list

    def get_plugin_mem_types(self, backend):
        return self._known(backend, self.plugin_list, _kinds_of(backend, self._child))

    def get_plugin_params(self, backend):
        return self._known(backend, self.plugin_list, dict(_plugins.get(backend, {})))

    def get_backend_mem_types(self, backend):
        return self._known(backend, self.backends, _kinds_of(backend, self._child))

    def get_backend_params(self, backend):
        return self._known(backend, self.backends, self.backend_options.get(backend, {}))

    @staticmethod
    def _known(backend, names, answer):
        if backend in names:
            return answer
        logger.warning("backend %s is not there; known: %s", backend, ", ".join(names))
        return type(answer)()

    def create_backend(self, backend, initParams=None):
        if backend not in self.plugin_list:
            raise nixlNotFoundError("plug-in %r; known: %s" % (backend, ", ".join(self.plugin_list)))
        if backend == "OBJ":
            given = {k: str(v) for k, v in (initParams or {}).items() if v}
            bucket = given.get("bucket") or os.environ.get("AWS_DEFAULT_BUCKET")
            if not bucket:
                raise nixlInvalidParamError("OBJ: no bucket; give it as parameter bucket or in AWS_DEFAULT_BUCKET")
            endpoint = given.get("endpoint_override") or os.environ.get("AWS_ENDPOINT_OVERRIDE", "")
            if endpoint and "://" not in endpoint:
                endpoint = given.get("scheme", "https") + "://" + endpoint
            env = {"AWS_ENDPOINT_URL_S3": endpoint, "AWS_REGION": given.get("region"), "AWS_ACCESS_KEY_ID": given.get("access_key")}
            env.update({"AWS_SECRET_ACCESS_KEY": given.get("secret_key"), "AWS_SESSION_TOKEN": given.get("session_token")})
            self._child.call("store", name="s3://" + bucket, env={k: v for k, v in env.items() if v})
        self.backends.setdefault(backend, len(self.backends) + 1)
        self.backend_mems[backend], self.backend_options[backend] = _kinds_of(backend, self._child), dict(initParams or {})

    def _use(self, backends):
        for name in backends:
            if name not in self.backends:
                raise KeyError(name)

    # Memory.

    def get_reg_descs(self, descs, mem_type=None):
        return _descs(descs, mem_type, nixlRegDList, nixlXferDList)

    def get_xfer_descs(self, descs, mem_type=None):
        return _descs(descs, mem_type, nixlXferDList, nixlRegDList)

    def get_remote_descs(self, descs, mem_type=None):
        return _descs(descs, mem_type, nixlRemoteDList, (nixlXferDList, nixlRegDList))

    def get_serialized_descs(self, descs):
        return pickle.dumps(descs)

    def deserialize_descs(self, serialized_descs):
        return pickle.loads(serialized_descs)

    def register_memory(self, reg_list, mem_type=None, backends=()):
        self._use(backends)
        descs = self.get_reg_descs(reg_list, mem_type)
        if descs is None or descs.isEmpty():
            raise nixlInvalidParamError("nothing to register: want tuples (address, length, device, text) with mem_type, an (N, 3) array, tensors or a nixlRegDList")
        kind, done = _reachable(descs.kind), []
        try:
            for address, length, device, text in descs.rows:
                self._count += 1
                name = "%s %d" % (kind, self._count)
                if kind == "FILE":
                    self._child.call("register", name=name, fd=device, len=address + length)
                    address, length = 0, address + length
                elif kind == "OBJ":
                    self._child.call("register", name=name, key=text.decode(), len=address + length)
                    address, length = 0, address + length
                elif kind == "VRAM":
                    self._child.call("register", name=name, addr=address, len=length, gpu=device)
                else:
                    self._child.call("register", name=name, addr=address, len=length)
                self._regions.add(kind, address, length, device, name)
                done.append((address, length, device))
        except Exception:
            for address, length, device in done:
                self._deregister(kind, address, length, device)
            raise
        return descs

    def deregister_memory(self, dereg_list, backends=()):
        self._use(backends)
        kind = _reachable(dereg_list.kind)
        for address, length, device, _ in dereg_list.rows:
            at = (address, length) if kind in ("DRAM", "VRAM") else (0, address + length)
            self._deregister(kind, *at, device)

    def _deregister(self, kind, address, length, device):
        # The region stays until nobody reads it: after an error it can be deregistered again.
        self._child.call("deregister", name=self._regions.name(kind, address, length, device))
        self._regions.remove(kind, address, length, device)

    def query_memory(self, reg_list, backend, mem_type=None):
        """What is known of files by their paths and of objects by their keys (the text of a descriptor): None for one that is not there."""
        descs = self.get_reg_descs(reg_list, mem_type)
        if backend not in self.backends:
            raise ValueError("backend %r is not there; known: %s" % (backend, list(self.backends)))
        if descs is None:
            raise nixlInvalidParamError("nothing to query: want tuples (address, length, device, text) with mem_type, or a nixlRegDList")
        if descs.kind is OBJ_SEG:
            found = [self._child.call("query", key=text.decode()) for _, _, _, text in descs.rows]
            return [{"size": str(f.get("bytes", 0))} if f.get("state") else None for f in found]
        if descs.kind is not FILE_SEG:
            raise nixlNotSupportedError("%s cannot be queried; FILE and OBJ can" % _words[descs.kind])
        found = []
        for _, _, device, text in descs.rows:
            try:
                f = os.stat(text.decode() or device)
                found.append({"size": str(f.st_size), "mode": oct(f.st_mode & 0o7777)[2:], "mtime": str(int(f.st_mtime))})
            except OSError:
                found.append(None)
        return found

    # Other agents.

    def get_agent_metadata(self):
        return self._metadata([[kind, a, n, device, name] for (kind, device), rows in sorted(self._regions.by.items()) for a, n, name in rows])

    def get_partial_agent_metadata(self, descs, inc_conn_info=False, backends=()):
        """Metadata of some of the registered memory. It adds to what the other knows already; how to connect is always part of it."""
        self._use(backends)
        kind, rows = _reachable(descs.kind), []
        for address, length, device, _ in descs:
            at = (address, length) if kind in ("DRAM", "VRAM") else (0, address + length)
            rows.append([kind, *at, device, self._regions.name(kind, *at, device)])
        return self._metadata(rows, partial=True)

    def _metadata(self, regions, **more):
        return json.dumps({"weft nixl": 1, "name": self.name, "blob": self._child.call("describe")["blob"], "regions": regions, **more}).encode()

    def add_remote_agent(self, metadata):
        try:
            d = json.loads(metadata)
            blob, rows = d["blob"], d["regions"]
        except (ValueError, KeyError, TypeError) as e:
            raise nixlInvalidParamError("these %d bytes are no agent's metadata" % len(metadata)) from e
        name = self._child.call("open", blob=blob)["name"]
        regions = self._peers.get(name) if d.get("partial") else None
        if regions is None:
            regions = _Regions()
        for kind, address, length, device, region in rows:
            regions.add(kind, address, length, device, region)
        self._peers[name] = regions
        return agent_name(name)

    # Metadata by sockets, to ip_addr and port, or by etcd without them.

    def _meet(self, ip_addr, port, do, data=b"", wait=True):
        try:
            return _meet.call(ip_addr, port, self._token, do, self.name, data, wait)
        except PermissionError as e:
            raise nixlNotAllowedError("%s:%d: %s" % (ip_addr, port, e)) from e
        except ValueError as e:
            raise nixlInvalidParamError("%s:%d: %s" % (ip_addr, port, e)) from e
        except OSError as e:
            raise nixlRemoteDisconnectError("no agent takes metadata at %s:%d: %s; start it with enable_listen_thread" % (ip_addr, port, e)) from e

    def _etcd(self, do, agent, label, **what):
        endpoints = [e.strip() for e in os.environ.get("NIXL_ETCD_ENDPOINTS", "").split(",") if e.strip()]
        if not endpoints:
            raise nixlInvalidParamError("no ip_addr and no NIXL_ETCD_ENDPOINTS: say where metadata goes")
        key = os.environ.get("NIXL_ETCD_NAMESPACE", "/nixl/agents/").rstrip("/") + "/" + agent + "/" + label
        return self._child.call("etcd " + do, etcd=endpoints, key=key, **what)

    def _give(self, metadata, ip_addr, port, label):
        if ip_addr:
            self._meet(ip_addr, port, "send", metadata)
        else:
            self._etcd("put", self.name, label or "metadata", data=base64.b64encode(metadata).decode())

    def send_local_metadata(self, ip_addr="", port=DEFAULT_COMM_PORT):
        """Gives the metadata to the agent that listens there, or to etcd."""
        self._give(self.get_agent_metadata(), ip_addr, port, "")

    def send_partial_agent_metadata(self, descs, inc_conn_info=False, backends=(), ip_addr="", port=DEFAULT_COMM_PORT, label=""):
        """The same with some of the memory; in etcd under a label of its own."""
        self._give(self.get_partial_agent_metadata(descs, inc_conn_info, backends), ip_addr, port, label)

    def fetch_remote_metadata(self, remote_agent, ip_addr="", port=DEFAULT_COMM_PORT, label=""):
        """Asks the agent that listens there, or etcd, for metadata and adds it. What is not in etcd yet is waited for, five seconds."""
        name = _name(remote_agent)
        if ip_addr:
            metadata = self._meet(ip_addr, port, "fetch")
            if (found := json.loads(metadata).get("name")) != name:
                raise nixlNotFoundError("at %s:%d is agent %r, not %r" % (ip_addr, port, found, name))
        else:
            end = time.monotonic() + _meet.PATIENCE
            while not (metadata := base64.b64decode(self._etcd("get", name, label or "metadata").get("blob", ""))):
                if time.monotonic() > end:
                    raise nixlNotFoundError("etcd has no metadata of agent %r (label %r)" % (name, label or "metadata"))
                time.sleep(0.05)
        self.add_remote_agent(metadata)

    def invalidate_local_metadata(self, ip_addr="", port=DEFAULT_COMM_PORT):
        """Tells the agent that listens there to forget this one, or takes everything of it out of etcd. An agent that is gone needs not be told."""
        if ip_addr:
            try:
                self._meet(ip_addr, port, "invalidate", wait=False)
            except nixlRemoteDisconnectError as e:
                logger.info("%s", e)
        else:
            self._etcd("delete", self.name, "")

    def check_remote_metadata(self, agent, descs=None):
        """Whether an agent is known, and all of these descriptors lie in its registered memory."""
        regions = self._peers.get(_name(agent))
        if regions is None:
            return False
        try:
            for address, length, device in () if descs is None else descs:
                regions.find(_words[descs.kind], address, length, device)
        except nixlError:
            return False
        return True

    def make_connection(self, remote_agent, backends=()):
        """Nothing is to be done before the first transfer, which connects."""
        self._use(backends)
        if _name(remote_agent) not in self._peers:
            raise nixlNotFoundError("agent %r is not known" % (remote_agent,))

    def remove_remote_agent(self, agent):
        if self._peers.pop(_name(agent), None) is None:
            logger.warning("agent %r is not known: nothing to remove", agent)
            return
        self._child.call("forget", name=_name(agent))

    # Transfers.

    def prep_xfer_dlist(self, agent_name, xfer_list, mem_type=None, backends=()):
        self._use(backends)
        descs, agent = self.get_xfer_descs(xfer_list, mem_type), _name(agent_name)
        if descs is None or descs.isEmpty():
            raise nixlInvalidParamError("nothing to prepare: want tuples (address, length, device) with mem_type, an (N, 3) array, tensors or a nixlXferDList")
        own = agent in _INIT_AGENT or agent == self.name
        regions = self._regions if own else self._peers.get(agent)
        if regions is None:
            raise nixlNotFoundError("agent %r is not known; add_remote_agent first" % (agent,))
        kind = _reachable(descs.kind)
        rows = [regions.find(kind, *d) for d in descs.rows]
        number = self._child.call("prepare", peer="" if own else agent, descs=rows)["number"]
        return nixl_prepped_dlist_handle(self, number, "" if own else agent, descs)

    def make_prepped_xfer(self, operation, local_xfer_side, local_indices, remote_xfer_side, remote_indices, notif_msg=b"", backends=(), skip_desc_merge=False):
        op = "READ" if self.nixl_ops[operation] is NIXL_READ else "WRITE"
        self._use(backends)
        li, fi = [int(i) for i in local_indices], [int(i) for i in remote_indices]
        if len(li) != len(fi) or not li:
            raise nixlInvalidParamError("%d local and %d remote indices; want as many, at least one" % (len(li), len(fi)))
        for side, indices in (local_xfer_side, li), (remote_xfer_side, fi):
            if not side.number:
                raise nixlInvalidParamError("a list of descriptors was released")
            if min(indices) < 0 or max(indices) >= side.count:
                raise nixlInvalidParamError("indices from %d to %d of %d descriptors" % (min(indices), max(indices), side.count))
        handle = nixl_xfer_handle(self, op, local_xfer_side, li, remote_xfer_side, fi, _data(notif_msg))
        if not _all(li, local_xfer_side) or not _all(fi, remote_xfer_side):
            handle.index = self._child.call("index", li=_packed(li), fi=_packed(fi))["number"]
        return handle

    def initialize_xfer(self, operation, local_descs, remote_descs, remote_agent, notif_msg=b"", backends=()):
        self.nixl_ops[operation]
        if local_descs.descCount() != remote_descs.descCount():
            raise nixlInvalidParamError("%d local and %d remote descriptors" % (local_descs.descCount(), remote_descs.descCount()))
        local, far = self.prep_xfer_dlist("", local_descs), self.prep_xfer_dlist(remote_agent, remote_descs)
        every = list(range(local.count))
        return self.make_prepped_xfer(operation, local, every, far, every, notif_msg, backends)  # which holds both lists

    def transfer(self, handle, notif_msg=b""):
        if handle.state == "PROC":
            self.check_xfer_state(handle)  # it may be done meanwhile
        if handle.state == "PROC":
            raise nixlRepostActiveError("the transfer is under way; post it again when it is done")
        if handle.state == "RELEASED":
            raise nixlInvalidParamError("the transfer was released")
        if notif_msg:
            handle.notice = _data(notif_msg)
        over, handle.request = handle.request, 0
        handle.state, handle.error, handle.began = "ERR", "", time.time_ns()
        handle.request, standing = self._child.post(handle, self._timeout, over)
        handle.posted = time.time_ns()
        handle.state, handle.error, handle.bytes, handle.took, handle.path = standing
        return handle.state

    def check_xfer_state(self, handle):
        if handle.state == "NEW":
            raise nixlNotPostedError("the transfer was not posted")
        if handle.state == "RELEASED":
            raise nixlInvalidParamError("the transfer was released")
        if handle.state == "PROC":
            handle.state, handle.error, handle.bytes, handle.took, handle.path = self._child.look(handle.request)
        return handle.state

    def estimate_xfer_cost(self, req_handle):
        """How long a transfer will take: microseconds, how far off that may be, and how it was found ("UNKNOWN": NIXL has no word for
        measured). The first time some of its bytes are read into memory of our own; the same two ends are not measured twice."""
        if req_handle.state == "RELEASED":
            raise nixlInvalidParamError("the transfer was released")
        far, count = req_handle.far, sum(req_handle.far.sizes[i] for i in req_handle.fi)
        if far.ends not in self._costs or min(count, _PROBE) > 4 * self._costs[far.ends][3]:  # few bytes say little of many
            self._costs[far.ends] = self._measure(req_handle)
        first, rate, spread, _ = self._costs[far.ends]
        took = first + max(0, count - _PIECE) * rate
        return max(1, round(took)), max(1, round(spread * took)), "UNKNOWN"

    def _measure(self, handle):
        """Time of a small read in microseconds, of each further byte, how much repeats differ, and of how many bytes that was made: from reads of
        what the transfer names."""
        if self._probe is None:
            memory = ctypes.create_string_buffer(_PROBE)
            self.register_memory([(ctypes.addressof(memory), _PROBE, 0, "")], "DRAM")
            self._probe = memory
        at, rows, total = ctypes.addressof(self._probe), [], 0
        for i in handle.fi:
            if total < _PROBE:
                address, length, device = handle.far.rows[i]
                rows.append((address, min(length, _PROBE - total), device))
                total += rows[-1][1]
        address, length, device = rows[0]
        small = [self._timed(handle.far, at, [(address, min(length, _PIECE), device)]) for _ in range(4)][1:]  # the first connects
        large = [self._timed(handle.far, at, rows) for _ in range(3)]
        first, whole, more = sorted(small)[1], sorted(large)[1], total - min(length, _PIECE)
        rate = max(0.0, whole - first) / more if more >= _PIECE else first / _PIECE  # too few bytes for a rate: as if all were such small reads
        return first, rate, max((max(t) - min(t)) / sorted(t)[1] for t in (small, large)), total

    def _timed(self, far, at, rows):
        """Microseconds that reads of far's memory into ours take."""
        local = []
        for _, length, _ in rows:
            local.append((at, length, 0))
            at += length
        h = self.initialize_xfer("READ", nixlXferDList(DRAM_SEG, local), nixlXferDList(far.kind, rows), far.agent_name or self.name)
        try:
            began, state = time.perf_counter(), self.transfer(h)
            while state == "PROC":
                state = self.check_xfer_state(h)
            if state != "DONE":
                raise nixlBackendError("the cost cannot be measured: %s" % h.error)
            return (time.perf_counter() - began) * 1e6
        finally:
            h.release()

    def get_xfer_error(self, handle):
        """Why a transfer is in ERR: who is at fault, and what landed."""
        return handle.error

    def get_xfer_telemetry(self, handle):
        if os.environ.get("NIXL_TELEMETRY_ENABLE", "y").lower() in ("n", "no", "0", "off", "false"):
            raise nixlNoTelemetryError("NIXL_TELEMETRY_ENABLE turns it off")
        if handle.state != "DONE":
            raise nixlNoTelemetryError("the transfer is not done")
        return handle.telemetry

    def query_xfer_backend(self, handle):
        return next(iter(self.backends), "WEFT")

    def release_xfer_handle(self, handle):
        handle.release()

    def release_dlist_handle(self, handle):
        handle.release()

    def prep_mem_view(self, dlist, *, backends=None):
        """A view of memory that kernels of a GPU use. There is none here, as in a NIXL without HAVE_UCX_GPU_DEVICE_API."""
        self._use(backends or ())
        raise nixlBackendError("memory views are for kernels of a GPU; HAVE_UCX_GPU_DEVICE_API is false here")

    def release_mem_view(self, mvh):
        raise nixlInvalidParamError("memory view %r is not there" % (mvh,))

    # Notices.

    def get_new_notifs(self, backends=()):
        answer = self._child.call("notices")
        self._failed += answer.get("failed", [])
        return {name: [base64.b64decode(x) if x else b"" for x in many] for name, many in answer.get("notices", {}).items()}

    def update_notifs(self, backends=()):
        """Takes what came; get_new_notifs would give it away."""
        for name, many in self.get_new_notifs().items():
            self.notifs.setdefault(name, []).extend(many)
        return self.notifs

    def check_remote_xfer_done(self, remote_agent_name, lookup_tag, backends=(), tag_is_prefix=True):
        """Whether a notice that begins with a tag, or has it anywhere, came of an agent. One is taken."""
        many, tag = self.update_notifs().get(_name(remote_agent_name), []), _data(lookup_tag)
        for i, text in enumerate(many):
            if text.startswith(tag) if tag_is_prefix else tag in text:
                del many[i]
                return True
        return False

    def get_failed_notifs(self):
        """Transfers that others posted to this agent and that failed, in words; NIXL does not tell of them."""
        failed, self._failed = self._failed, []
        return failed

    def send_notif(self, remote_agent_name, notif_msg, backend=None):
        self._use([backend] if backend is not None else ())
        self._child.call("notify", peer=_name(remote_agent_name), data=base64.b64encode(_data(notif_msg)).decode())

    def close(self):
        if self._listener is not None:
            self._listener.close()
        self._child.close()

    def __del__(self):
        if getattr(self, "_child", None) is not None:
            self.close()


def _all(indices, side):
    """Whether indices are all descriptors of a list, in order."""
    return len(indices) == side.count and all(i == k for k, i in enumerate(indices))


def _packed(indices):
    return base64.b64encode(struct.pack("<%dI" % len(indices), *indices)).decode()


def _heard(agent, do, name, metadata):
    """Answers another agent's call at the listener."""
    if agent is None:
        raise nixlRemoteDisconnectError("the agent is gone")
    if do == "fetch":
        return agent.get_agent_metadata()
    if do == "send":
        agent.add_remote_agent(metadata)
    elif do == "invalidate":
        if name in agent._peers:
            agent.remove_remote_agent(name)
    else:
        raise nixlInvalidParamError("%r is no call; known: send, fetch, invalidate" % do)


class nixlAgentConfig:
    """Settings of nixlAgent. The listener's are used; calls of several threads are always kept apart."""

    def __init__(
        self, useProgThread=False, useListenThread=False, listenPort=0, syncMode=None, numWorkers=1, pthrDelay=0, lthrDelay=100000, captureTelemetry=False
    ):
        self.useProgThread, self.useListenThread, self.listenPort, self.syncMode = useProgThread, useListenThread, listenPort, syncMode
        self.pthrDelay, self.lthrDelay, self.captureTelemetry, self.etcdWatchTimeout = pthrDelay, lthrDelay, captureTelemetry, 5000000


class nixlAgent:
    """NIXL's agent as its bindings have it: handles are numbers, states are nixl_status_t. Each call is made by nixl_agent's."""

    def __init__(self, name, config=None):
        if not name:
            raise nixlInvalidParamError("an agent needs a name")
        self.name, self.config, self._token = name, config or nixlAgentConfig(), os.environ.get("WEFT_TOKEN", "")
        self._child = _talk()
        listen = os.environ.get("WEFT_XFER_LISTEN")
        try:
            self._child.call("new", name=name, token=self._token, listen=[listen] if listen else [])
        except Exception:
            self._child.close()
            raise
        self._api, self._objects, self._number = None, {}, 0

    @property
    def _up(self):
        if self._api is None:
            api = nixl_agent.__new__(nixl_agent)
            api._on(self, nixl_agent_config(backends=[]))
            self._api = api
        return self._api

    def _keep(self, thing):
        self._number += 1
        self._objects[self._number] = thing
        return self._number

    def _at(self, number):
        if number not in self._objects:
            raise nixlInvalidParamError("handle %r is not there, or was released" % (number,))
        return self._objects[number]

    def _names(self, backends):
        """Backends that are given by their handles."""
        have = {h: name for name, h in self._up.backends.items()}
        for h in [backends] if isinstance(backends, int) else backends:
            if h not in have:
                raise nixlInvalidParamError("backend %r is not there" % (h,))
        return [have[h] for h in ([backends] if isinstance(backends, int) else backends)]

    def getAvailPlugins(self):
        return self._up.get_plugin_list()

    def getPluginParams(self, type):
        if type not in self._up.plugin_list:
            raise nixlNotFoundError("plug-in %r; known: %s" % (type, ", ".join(self._up.plugin_list)))
        return self._up.get_plugin_params(type), self._up.get_plugin_mem_types(type)

    def getBackendParams(self, backend):
        (name,) = self._names(backend)
        return self._up.get_backend_params(name), self._up.get_backend_mem_types(name)

    def createBackend(self, type, initParams=None):
        self._up.create_backend(type, initParams)
        return self._up.backends[type]

    def registerMem(self, descs, backends=()):
        self._up.register_memory(descs, backends=self._names(backends))
        return NIXL_SUCCESS

    def deregisterMem(self, descs, backends=()):
        self._up.deregister_memory(descs, backends=self._names(backends))
        return NIXL_SUCCESS

    def queryMem(self, descs, backend):
        return self._up.query_memory(descs, *self._names(backend))

    def makeConnection(self, remote_agent, backends=()):
        self._up.make_connection(remote_agent, self._names(backends))
        return NIXL_SUCCESS

    def prepXferDlist(self, *args, **named):
        """(descs, backend) for memory of this agent, (agent_name, descs, backend) for that of another."""
        args = list(args)
        agent = args.pop(0) if args and isinstance(args[0], (str, bytes)) else named.get("agent_name", "")
        descs = args.pop(0) if args else named["descs"]
        return self._keep(self._up.prep_xfer_dlist(agent, descs, backends=self._names(args[0] if args else named.get("backend", ()))))

    def makeXferReq(self, operation, local_side, local_indices, remote_side, remote_indices, notif_msg="", backend=(), skip_desc_merg=False):
        sides = self._at(local_side), local_indices, self._at(remote_side), remote_indices
        return self._keep(self._up.make_prepped_xfer(_operation(operation), *sides, notif_msg, self._names(backend)))

    def createXferReq(self, operation, local_descs, remote_descs, remote_agent, notif_msg="", backend=()):
        return self._keep(self._up.initialize_xfer(_operation(operation), local_descs, remote_descs, remote_agent, notif_msg, self._names(backend)))

    def estimateXferCost(self, req_handle):
        return self._up.estimate_xfer_cost(self._at(req_handle))[:2] + (-1,)

    def _status(self, state, handle):
        if state == "ERR":
            raise nixlBackendError(self._at(handle).error)
        return NIXL_SUCCESS if state == "DONE" else NIXL_IN_PROG

    def postXferReq(self, reqh, notif_msg=""):
        return self._status(self._up.transfer(self._at(reqh), notif_msg), reqh)

    def getXferStatus(self, reqh):
        return self._status(self._up.check_xfer_state(self._at(reqh)), reqh)

    def getXferTelemetry(self, reqh):
        return self._up.get_xfer_telemetry(self._at(reqh))

    def queryXferBackend(self, reqh):
        return self._up.backends[self._up.query_xfer_backend(self._at(reqh))]

    def releaseXferReq(self, reqh):
        self._at(reqh).release()
        del self._objects[reqh]
        return NIXL_SUCCESS

    releasedDlistH = releaseXferReq

    def getNotifs(self, notif_map, backends=()):
        for name, many in self._up.get_new_notifs(self._names(backends)).items():
            notif_map.setdefault(name, []).extend(many)
        return notif_map

    def genNotif(self, remote_agent, msg, backends=()):
        self._up.send_notif(remote_agent, msg, *self._names(backends)[:1])
        return NIXL_SUCCESS

    def getLocalMD(self):
        return self._up.get_agent_metadata()

    def getLocalPartialMD(self, descs, inc_conn_info=False, backends=()):
        return self._up.get_partial_agent_metadata(descs, inc_conn_info, self._names(backends))

    def loadRemoteMD(self, metadata):
        return self._up.add_remote_agent(metadata)

    def invalidateRemoteMD(self, agent):
        if _name(agent) not in self._up._peers:
            raise nixlNotFoundError("agent %r is not known" % (agent,))
        self._up.remove_remote_agent(agent)
        return NIXL_SUCCESS

    def sendLocalMD(self, ip_addr="", port=0):
        self._up.send_local_metadata(ip_addr, port)

    def sendLocalPartialMD(self, descs, inc_conn_info=False, backends=(), ip_addr="", port=0, label=""):
        self._up.send_partial_agent_metadata(descs, inc_conn_info, self._names(backends), ip_addr, port, label)

    def fetchRemoteMD(self, remote_agent, ip_addr="", port=0, label=""):
        self._up.fetch_remote_metadata(remote_agent, ip_addr, port, label)

    def invalidateLocalMD(self, ip_addr="", port=0):
        self._up.invalidate_local_metadata(ip_addr, port)

    def checkRemoteMD(self, agent, descs):
        return NIXL_SUCCESS if self._up.check_remote_metadata(agent, descs) else NIXL_ERR_NOT_FOUND

    def prepMemView(self, dlist, backends=()):
        return self._up.prep_mem_view(dlist, backends=self._names(backends))

    def releaseMemView(self, mvh):
        self._up.release_mem_view(mvh)


def _operation(op):
    if not isinstance(op, nixl_xfer_op_t):
        raise TypeError("operation %r; want NIXL_READ or NIXL_WRITE" % (op,))
    return "READ" if op is NIXL_READ else "WRITE"


def malloc_passthru(size):
    """Memory for tests of NIXL, as nixl._utils has it: its address."""
    at = ctypes.c_void_p()
    if ctypes.CDLL(None).posix_memalign(ctypes.byref(at), ctypes.c_size_t(4096), ctypes.c_size_t(size)):
        raise MemoryError(size)
    return at.value


def free_passthru(address):
    ctypes.CDLL(None).free(ctypes.c_void_p(address))


def ba_buf(address, size):
    ctypes.memset(address, 0xBA, size)


def verify_transfer(address1, address2, size):
    assert ctypes.string_at(address1, size) == ctypes.string_at(address2, size)


def get_logger(name):
    """A logger below "nixl", as nixl.logging has it; NIXL_LOG_LEVEL sets how much it says."""
    top, level = logging.getLogger("nixl"), os.environ.get("NIXL_LOG_LEVEL", "INFO").upper()
    if not top.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s NIXL %(levelname)-8s %(filename)s:%(lineno)d %(message)s", "%Y-%m-%d %H:%M:%S"))
        top.addHandler(handler)
        top.setLevel({"TRACE": "DEBUG", "FATAL": "CRITICAL", "WARN": "WARNING"}.get(level, level))
    return top.getChild(name.lstrip("_"))


def install():
    """Makes this module what "import nixl" and its parts (nixl._api, nixl._bindings, nixl._utils, nixl.logging) find."""
    package, api = types.ModuleType("nixl"), sys.modules[__name__]
    package.__path__ = []
    package._api = package._bindings = package._utils = api
    for name in "DEFAULT_COMM_PORT nixl_agent nixl_agent_config nixl_backend_handle nixl_prepped_dlist_handle nixl_thread_sync_t nixl_xfer_handle".split():
        setattr(package, name, getattr(api, name))
    package.logging = types.ModuleType("nixl.logging")
    package.logging.get_logger = get_logger
    sys.modules.update({"nixl": package, "nixl.logging": package.logging, "nixl._api": api, "nixl._bindings": api, "nixl._utils": api})


nixlBind = sys.modules[__name__]  # what nixl._api calls its bindings


def main(args):
    """Runs a program, or with -m a module, that imports nixl."""
    if not args or args[0] in ("-h", "--help") or args == ["-m"]:
        print("want: python3 -m weft.nixl PROGRAM.py ARGUMENTS, or -m MODULE ARGUMENTS", file=sys.stderr)
        sys.exit(2)
    install()
    if args[0] == "-m":
        sys.argv = args[1:]
        runpy.run_module(args[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = args
        sys.path[0] = os.path.dirname(os.path.abspath(args[0]))  # as if it were started alone
        runpy.run_path(args[0], run_name="__main__")


if __name__ == "__main__":
    from weft import nixl

    nixl.main(sys.argv[1:])
