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

The agent runs in a process of its own ("weft xfer-agent", the program that WEFT_PROGRAM or PATH names) and reaches this process's memory
through the kernel, so no extension is built. DRAM and FILE are there; VRAM is refused. The token of the cluster is WEFT_TOKEN, and
WEFT_XFER_LISTEN an address that other hosts reach.

Differences from NIXL: a request that a peer posted to us and that failed is told by get_failed_notifs(); a transfer ends in ERR at its
deadline instead of staying in PROC.
"""

import base64
import bisect
import ctypes
import json
import os
import shutil
import subprocess
import sys
import threading
import types

DEFAULT_TIMEOUT = 30.0
_INIT_AGENT = ("", "NIXL_INIT_AGENT")


class nixlError(Exception):
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

_memory = {"DRAM": "DRAM", "cpu": "DRAM", "VRAM": "VRAM", "cuda": "VRAM", "FILE": "FILE", "BLOCK": "BLK", "BLK": "BLK", "OBJ": "OBJ"}


def _kind(mem_type):
    if mem_type is None:
        raise nixlInvalidParamError("mem_type is missing: want DRAM or FILE for lists of tuples and arrays")
    name = _memory.get(mem_type)
    if name is None:
        raise nixlInvalidParamError("mem_type %r; known: DRAM, VRAM, FILE, OBJ, BLK" % (mem_type,))
    if name not in ("DRAM", "FILE"):
        raise nixlNotSupportedError("%s: memory of this kind cannot be reached here; DRAM and FILE can" % name)
    return name


class nixl_agent_config:
    """Settings of an agent. What has no meaning here is taken and ignored: threads, progress and plug-ins."""

    def __init__(self, enable_prog_thread=True, enable_listen_thread=False, listen_port=0, capture_telemetry=False, num_threads=0, backends=None, **_):
        self.enable_pthread, self.enable_listen = enable_prog_thread, enable_listen_thread
        self.port, self.capture_telemetry, self.num_threads = listen_port, capture_telemetry, num_threads
        self.backends = list(backends) if backends is not None else ["UCX"]


class _Descs:
    """A list of descriptors of one kind."""

    def __init__(self, kind, rows):
        self.kind, self.rows = kind, rows

    def descCount(self):
        return len(self.rows)

    def isEmpty(self):
        return not self.rows

    def getType(self):
        return self.kind

    def trim(self):
        return self

    def __len__(self):
        return len(self.rows)

    def __iter__(self):
        return iter(self.rows)

    def __getitem__(self, i):
        return self.rows[i]

    def __eq__(self, other):
        return isinstance(other, _Descs) and (self.kind, self.rows) == (other.kind, other.rows)

    __hash__ = None


class nixlRegDList(_Descs):
    """Memory to register: (address, length, device, text)."""


class nixlXferDList(_Descs):
    """Memory to move: (address, length, device)."""


def _rows(descs, mem_type, register):
    """Descriptors from tuples, an (N, 3) array, a tensor or tensors; and their kind."""
    if isinstance(descs, _Descs):
        return descs.kind, list(descs.rows)
    tensors = descs if isinstance(descs, (list, tuple)) and descs and all(hasattr(d, "data_ptr") for d in descs) else [descs] if hasattr(descs, "data_ptr") else None
    if tensors is not None:
        rows = []
        for t in tensors:
            if not t.is_contiguous():
                raise nixlInvalidParamError("a tensor is not contiguous; call .contiguous() first")
            device = t.get_device()
            rows.append((t.data_ptr(), t.numel() * t.element_size(), max(device, 0)) + (("",) if register else ()))
            if device >= 0:
                mem_type = "cuda"
        return _kind(mem_type or "cpu"), rows
    if hasattr(descs, "shape") and hasattr(descs, "tolist"):
        if len(descs.shape) != 2 or descs.shape[1] != 3:
            raise nixlInvalidParamError("an array of shape %s; want (N, 3): address, length, device" % (tuple(descs.shape),))
        descs = [tuple(r) for r in descs.tolist()]
    kind = _kind(mem_type)
    rows = []
    for i, d in enumerate(descs):
        if not isinstance(d, tuple) or not (len(d) == 3 or register and len(d) == 4):
            raise nixlInvalidParamError("descriptor %d is %r; want (address, length, device%s)" % (i, d, ", text" if register else ""))
        if any(not isinstance(v, int) or isinstance(v, bool) or v < 0 for v in d[:3]) or d[1] == 0 or d[1] > 1 << 46:
            raise nixlInvalidParamError("descriptor %d is %r; want an address, a length from 1 on and a device" % (i, d))
        rows.append(d[:3] + ((d[3] if len(d) == 4 else ""),) if register else d)
    return kind, rows


class _Child:
    """The process that moves the bytes, and the talk with it."""

    def __init__(self, program):
        self.lock = threading.Lock()
        self.next = 0
        try:
            self.process = subprocess.Popen([program, "xfer-agent"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as e:
            raise nixlBackendError("%s does not start: %s; set WEFT_PROGRAM to the weft program" % (program, e)) from e
        if sys.platform == "linux":  # where the system asks for leave, the child may read and write our memory
            ctypes.CDLL(None, use_errno=True).prctl(0x59616D61, ctypes.c_ulong(self.process.pid), 0, 0, 0)

    def call(self, do, **what):
        with self.lock:
            self.next += 1
            number = self.next
            try:
                self.process.stdin.write(json.dumps(dict(what, id=number, do=do)).encode() + b"\n")
                self.process.stdin.flush()
                line = self.process.stdout.readline()
            except (OSError, ValueError) as e:
                raise nixlBackendError("the agent's process is gone: %s" % e) from e
        if not line:
            raise nixlBackendError("the agent's process ended with %s" % self.process.poll())
        answer = json.loads(line)
        if answer["id"] != number:
            raise nixlBackendError("the agent answered call %d with %d" % (number, answer["id"]))
        if answer.get("error") and answer.get("state") != "ERR":
            raise _kinds.get(answer.get("kind"), nixlBackendError)(answer["error"])
        return answer

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


class _Regions:
    """Which region of an agent holds an address."""

    def __init__(self):
        self.by = {}  # (kind, device): sorted [(address, length, name)]; the device of memory is 0

    @staticmethod
    def key(kind, device):
        return (kind, device if kind == "FILE" else 0)

    def add(self, kind, address, length, device, name):
        bisect.insort(self.by.setdefault(self.key(kind, device), []), (address, length, name))

    def remove(self, kind, address, length, device):
        rows = self.by.get(self.key(kind, device), [])
        for i, r in enumerate(rows):
            if r[:2] == (address, length):
                return rows.pop(i)[2]
        raise nixlNotFoundError("%d bytes at %#x are not registered" % (length, address))

    def find(self, kind, address, length, device):
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

    def __init__(self, agent, number, count):
        self.agent, self.number, self.count = agent, number, count


class nixl_xfer_handle:
    """A transfer: posted by transfer(), watched by check_xfer_state()."""

    def __init__(self, agent, op, local, li, far, fi, notice, own=()):
        self.agent, self.op, self.local, self.li, self.far, self.fi = agent, op, local, li, far, fi
        self.notice, self.own, self.request, self.state, self.error, self.telemetry = notice, own, 0, "NEW", "", None


class nixl_agent:
    """One end of transfers, under a name that other agents know."""

    def __init__(self, agent_name, nixl_conf=None, instantiate_all=False):
        if not agent_name:
            raise nixlInvalidParamError("an agent needs a name")
        self.name, self.config = agent_name, nixl_conf or nixl_agent_config()
        program = os.environ.get("WEFT_PROGRAM") or shutil.which("weft")
        if not program:
            raise nixlBackendError("no weft program: put it on PATH or set WEFT_PROGRAM")
        self._child = _Child(program)
        self._timeout = float(os.environ.get("WEFT_XFER_TIMEOUT", DEFAULT_TIMEOUT))
        listen = os.environ.get("WEFT_XFER_LISTEN")
        self._regions, self._peers, self._count, self._failed, self.notifs = _Regions(), {}, 0, [], {}
        try:
            self._child.call("new", name=agent_name, token=os.environ.get("WEFT_TOKEN", ""), listen=[listen] if listen else [])
        except Exception:
            self._child.close()
            raise

    # Plug-ins: there is one.

    def get_plugin_list(self):
        return ["WEFT", "UCX", "POSIX"]

    def get_plugin_mem_types(self, backend):
        self._backend(backend)
        return ["DRAM", "FILE"]

    def get_plugin_params(self, backend):
        self._backend(backend)
        return {}

    get_backend_mem_types = get_plugin_mem_types
    get_backend_params = get_plugin_params

    def create_backend(self, backend, initParams=None):
        self._backend(backend)

    def _backend(self, name):
        if name not in self.get_plugin_list():
            raise nixlNotFoundError("plug-in %r; known: %s" % (name, ", ".join(self.get_plugin_list())))

    # Memory.

    def get_reg_descs(self, descs, mem_type=None):
        return nixlRegDList(*_rows(descs, mem_type, True))

    def get_xfer_descs(self, descs, mem_type=None):
        return nixlXferDList(*_rows(descs, mem_type, False))

    def register_memory(self, reg_list, mem_type=None, backends=()):
        descs = self.get_reg_descs(reg_list, mem_type)
        if descs.isEmpty():
            raise nixlInvalidParamError("nothing to register")
        done = []
        try:
            for address, length, device, _ in descs.rows:
                self._count += 1
                name = "%s %d" % (descs.kind, self._count)
                if descs.kind == "FILE":
                    self._child.call("register", name=name, fd=device, len=address + length)
                    self._regions.add("FILE", 0, address + length, device, name)
                    done.append((0, address + length, device))
                else:
                    self._child.call("register", name=name, addr=address, len=length)
                    self._regions.add("DRAM", address, length, device, name)
                    done.append((address, length, device))
        except Exception:
            for address, length, device in done:
                self._child.call("deregister", name=self._regions.remove(descs.kind, address, length, device))
            raise
        return descs

    def deregister_memory(self, dereg_list, backends=()):
        for address, length, device, _ in dereg_list.rows:
            at = (0, address + length) if dereg_list.kind == "FILE" else (address, length)
            self._child.call("deregister", name=self._regions.remove(dereg_list.kind, *at, device))

    # Other agents.

    def get_agent_metadata(self):
        blob = self._child.call("describe")["blob"]
        regions = [[kind, a, n, device, name] for (kind, device), rows in sorted(self._regions.by.items()) for a, n, name in rows]
        return json.dumps({"weft nixl": 1, "name": self.name, "blob": blob, "regions": regions}).encode()

    def add_remote_agent(self, metadata):
        try:
            d = json.loads(metadata)
            blob, rows = d["blob"], d["regions"]
        except (ValueError, KeyError, TypeError) as e:
            raise nixlInvalidParamError("these %d bytes are no agent's metadata" % len(metadata)) from e
        name = self._child.call("open", blob=blob)["name"]
        regions = _Regions()
        for kind, address, length, device, region in rows:
            regions.add(kind, address, length, device, region)
        self._peers[name] = regions
        return name

    def check_remote_metadata(self, agent, descs=None):
        """Whether an agent is known, and all of these descriptors lie in its registered memory."""
        regions = self._peers.get(agent)
        if regions is None:
            return False
        try:
            for address, length, device in descs or ():
                regions.find(descs.kind, address, length, device)
        except nixlError:
            return False
        return True

    def make_connection(self, remote_agent, backends=()):
        """Nothing is to be done before the first transfer, which connects."""
        if remote_agent not in self._peers:
            raise nixlNotFoundError("agent %r is not known" % (remote_agent,))

    def remove_remote_agent(self, agent):
        if self._peers.pop(agent, None) is None:
            raise nixlNotFoundError("agent %r is not known" % (agent,))
        self._child.call("forget", name=agent)

    # Transfers.

    def prep_xfer_dlist(self, agent_name, xfer_list, mem_type=None, backends=()):
        descs = self.get_xfer_descs(xfer_list, mem_type)
        own = agent_name in _INIT_AGENT or agent_name == self.name
        regions = self._regions if own else self._peers.get(agent_name)
        if regions is None:
            raise nixlNotFoundError("agent %r is not known; add_remote_agent first" % (agent_name,))
        rows = [regions.find(descs.kind, *d) for d in descs.rows]
        number = self._child.call("prepare", peer="" if own else agent_name, descs=rows)["number"]
        return nixl_prepped_dlist_handle(self, number, len(rows))

    def make_prepped_xfer(self, operation, local_xfer_side, local_indices, remote_xfer_side, remote_indices, notif_msg=b"", backends=(), skip_desc_merge=False):
        if operation not in ("READ", "WRITE"):
            raise nixlInvalidParamError("operation %r; want READ or WRITE" % (operation,))
        li, fi = [int(i) for i in local_indices], [int(i) for i in remote_indices]
        if len(li) != len(fi) or not li:
            raise nixlInvalidParamError("%d local and %d remote indices; want as many, at least one" % (len(li), len(fi)))
        for side, indices in (local_xfer_side, li), (remote_xfer_side, fi):
            if min(indices) < 0 or max(indices) >= side.count:
                raise nixlInvalidParamError("indices from %d to %d of %d descriptors" % (min(indices), max(indices), side.count))
        return nixl_xfer_handle(self, operation, local_xfer_side, li, remote_xfer_side, fi, notif_msg)

    def initialize_xfer(self, operation, local_descs, remote_descs, remote_agent, notif_msg=b"", backends=()):
        if local_descs.descCount() != remote_descs.descCount():
            raise nixlInvalidParamError("%d local and %d remote descriptors" % (local_descs.descCount(), remote_descs.descCount()))
        local = self.prep_xfer_dlist("", local_descs)
        try:
            far = self.prep_xfer_dlist(remote_agent, remote_descs)
        except Exception:
            self.release_dlist_handle(local)
            raise
        every = list(range(local.count))
        handle = self.make_prepped_xfer(operation, local, every, far, every, notif_msg)
        handle.own = (local, far)
        return handle

    def transfer(self, handle, notif_msg=b""):
        if handle.state == "PROC":
            raise nixlRepostActiveError("the transfer is under way; post it again when it is done")
        if handle.request:
            self._child.call("release", req=handle.request)
            handle.request = 0
        notice = notif_msg or handle.notice
        what = {"data": base64.b64encode(notice).decode()} if notice else {}
        handle.state, handle.error = "ERR", ""
        answer = self._child.call("post", op=handle.op, local=handle.local.number, li=handle.li, far=handle.far.number, fi=handle.fi, limit=self._timeout, **what)
        handle.request = answer["number"]
        return self._state(handle, answer)

    def check_xfer_state(self, handle):
        if handle.state == "NEW":
            raise nixlNotAllowedError("the transfer was not posted")
        if handle.state == "PROC":
            return self._state(handle, self._child.call("poll", req=handle.request))
        return handle.state

    @staticmethod
    def _state(handle, answer):
        handle.state, handle.error = answer["state"], answer.get("error", "")
        handle.telemetry = types.SimpleNamespace(
            startTime=0, postDuration=0, xferDuration=answer.get("took_us", 0), totalBytes=answer.get("bytes", 0), descCount=len(handle.li), path=answer.get("path", ""))
        return handle.state

    def get_xfer_error(self, handle):
        """Why a transfer is in ERR: who is at fault, and what landed."""
        return handle.error

    def get_xfer_telemetry(self, handle):
        if handle.state != "DONE":
            raise nixlNotAllowedError("the transfer is not done")
        return handle.telemetry

    def release_xfer_handle(self, handle):
        if handle.request:
            request, handle.request = handle.request, 0
            self._child.call("release", req=request)
        for d in handle.own:
            self.release_dlist_handle(d)
        handle.own, handle.state = (), "NEW"

    def release_dlist_handle(self, handle):
        if handle.number:
            number, handle.number, handle.count = handle.number, 0, 0
            self._child.call("drop", list=number)

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
        """Whether a notice of this text, or with this beginning, came of an agent. One is taken."""
        many = self.update_notifs().get(remote_agent_name, [])
        for i, text in enumerate(many):
            if text.startswith(lookup_tag) if tag_is_prefix else text == lookup_tag:
                del many[i]
                return True
        return False

    def get_failed_notifs(self):
        """Transfers that others posted to this agent and that failed, in words; NIXL does not tell of them."""
        failed, self._failed = self._failed, []
        return failed

    def send_notif(self, remote_agent_name, notif_msg, backend=None):
        self._child.call("notify", peer=remote_agent_name, data=base64.b64encode(notif_msg).decode())

    def close(self):
        self._child.close()

    def __del__(self):
        child = getattr(self, "_child", None)
        if child is not None:
            child.close()


def install():
    """Makes this module what "import nixl._api" and "from nixl._bindings import ..." find."""
    package = types.ModuleType("nixl")
    api = sys.modules[__name__]
    package._api, package.__path__ = api, []
    sys.modules["nixl"], sys.modules["nixl._api"], sys.modules["nixl._bindings"] = package, api, api
