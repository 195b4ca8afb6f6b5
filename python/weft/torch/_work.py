"""Calls under way, as PyTorch sees them."""

import atexit
import ctypes
import threading

import torch
from torch._C._distributed_c10d import Work as _Base
from torch.futures import Future

import weft

from . import _native as native


class Error(getattr(torch.distributed, "DistBackendError", RuntimeError), weft.Error):
    """A call that failed: code, the ranks at fault (culprits) and a sentence.

    The words that PyTorch's own backends use for a time limit and for a closed connection stand in front of weft's."""


_WORDS = {
    native.TIMEOUT: "Timed out ",
    native.LEFT: "connection closed by peer: ",
    native.DEAD: "connection closed by peer: ",
    native.CLOSED: "the group is closed : ",
}


def failure(code, what):
    """The exception for a call of this thread that failed."""
    if code == native.INTERRUPTED:
        native.reraise()
    text, culprits = native.read()
    if code == native.INVALID:
        return ValueError(f"{what}: {text}")
    if code == native.NO_DEVICE:
        return TypeError(f"{what}: {text}")
    e = Error(f"weft: {what}: {_WORDS.get(code, '')}{text}")
    e.code, e.culprits = code, culprits
    return e


def _future(tensors):
    """A future for tensors: one of a GPU's must know its devices."""
    devices = sorted({t.device.index for t in tensors if t.is_cuda})
    return Future(devices=[torch.device("cuda", d) for d in devices]) if devices else Future()


class Done(_Base):
    """A call that is over."""

    def __init__(self, tensors=(), source=None):
        super().__init__()
        self._tensors, self._source = tensors, source

    def wait(self, timeout=None):
        return True

    synchronize = wait

    def is_completed(self):
        return True

    is_success = is_completed

    def exception(self):
        return None

    def result(self):
        return list(self._tensors)

    def get_future(self):
        f = _future(self._tensors)
        f.set_result(list(self._tensors))
        return f

    def _source_rank(self):
        if self._source is None:
            raise RuntimeError("only a receive from any rank has a source")
        return self._source

    source_rank = _source_rank


class Work(_Base):
    """Calls that were started. It is over when all of them are, and finish, which puts results where they belong, was called."""

    def __init__(self, group, what, requests, tensors, keep, finish):
        super().__init__()
        self._group, self._what, self._requests = group, what, requests
        self._tensors, self._keep, self._finish = tensors, keep, finish
        self._lock = threading.Lock()
        self._over, self._error, self._source = False, None, None
        self._future = self._told = None  # one that waits for the end, and after it
        group._live[id(self)] = self  # its buffers must stay until it is over, whoever forgets it

    def keep(self):
        """Keeps this object for its caller, which may be C++ and hold no more than the part of it that is of C++ (before PyTorch 2),
        until it has waited."""
        kept = self._group._kept
        kept[id(self)] = self
        while len(kept) > 10000:  # who has not waited for so long never will
            kept.pop(next(iter(kept)))

    def later(self):
        """A future that is completed by the one that waits."""
        self._future = _future(self._tensors)
        return self._future

    def _end(self, error):
        self._error = error
        if error is None and self._finish is not None:
            try:
                self._finish()
            except Exception as e:  # told to those that wait
                self._error = e
        self._over = True
        self._keep = self._finish = None
        self._group._live.pop(id(self), None)
        if self._future is not None:
            self._tell()

    def _tell(self):
        self._told = future = self._future
        self._future = None
        if self._error is None:
            future.set_result(list(self._tensors))
        else:
            future.set_exception(self._error)

    def _wait(self, ms):
        """Waits for a time, for ever if it is negative; the lock is held."""
        status, error = native.Status(), native.error()
        while self._requests:
            rc = native.wait(self._requests[0], ms, ctypes.addressof(status), error)
            if rc == native.PENDING:
                return
            if rc == native.INTERRUPTED:  # the wait was, the call goes on
                native.reraise()
            self._requests.pop(0)
            self._source = status.source
            if rc != native.OK and self._error is None:
                self._error = failure(rc, self._what)
        self._end(self._error)

    def wait(self, timeout=None):
        ms = -1
        if timeout is not None and timeout.total_seconds() > 0:
            ms = int(timeout.total_seconds() * 1000)
        if not self._over:
            with self._lock:
                if not self._over:
                    self._wait(ms)
        self._group._kept.pop(id(self), None)
        if not self._over:
            raise Error(f"weft: {self._what}: Timed out after {ms} ms of waiting; the call is still under way")
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self):
        self.wait()

    def is_completed(self):
        if not self._over and self._lock.acquire(blocking=False):
            try:
                if not self._over:
                    self._wait(0)
            finally:
                self._lock.release()
        return self._over

    def is_success(self):
        return self.is_completed() and self._error is None

    def exception(self):
        return self._error if self.is_completed() else None

    def result(self):
        if not self.is_completed():
            raise RuntimeError("Work needs to be completed before calling result")
        return list(self._tensors)

    def get_future(self):
        with self._lock:
            future = _future(self._tensors)
            if self._told is not None:
                return self._told
            if self._over:
                self._future = future
                self._tell()
                return future
            if self._future is None:
                self._future = future
                ends.watch(self)
            return self._future

    def _source_rank(self):
        if self._source is None or self._source < 0:
            raise RuntimeError("only a receive that is over has a source")
        return self._source

    source_rank = _source_rank


class Queued(Work):
    """Calls on tensors of a GPU. wait makes the current stream wait: what is launched after it finds the result. The host waits
    until all ranks have made the call, not for the GPU.

    An error that comes after that is raised by the group's next call."""

    def __init__(self, group, what, requests, tensors, keep, finish, device):
        super().__init__(group, what, requests, tensors, keep, finish)
        self._device, self._waited, self._copied = device, False, None

    def _end(self, error):
        super()._end(error)
        if self._error is not None and self._waited:
            self._group._late = self._error

    def _follow(self):
        """Makes the current stream wait; the lock is held."""
        stream = torch.cuda.current_stream(self._device)
        if self._over:
            if self._copied is not None:
                stream.wait_event(self._copied)
            return
        for request in self._requests:
            rc = native.block(request, stream.cuda_stream, native.error())
            if rc == native.INTERRUPTED:  # the wait was, the call goes on
                native.reraise()
            if rc:
                self._wait(-1)  # it has failed: this tells how
                return
        self._waited = True
        if self._finish is not None:
            finish, self._finish = self._finish, None
            finish()
            self._copied = torch.cuda.Event()
            self._copied.record(stream)
        elif self._copied is not None:
            stream.wait_event(self._copied)

    def wait(self, timeout=None):
        if timeout is not None and timeout.total_seconds() > 0:
            return super().wait(timeout)
        with self._lock:
            self._follow()
            if self._future is not None:
                self._tell()
        if self._error is not None:
            raise self._error
        return True

    def get_future(self):
        """A future that is complete at once: who waits for it lets his stream wait."""
        with self._lock:
            if self._told is None:
                self._future = _future(self._tensors)
                side = torch.cuda.current_stream(self._device) if self._finish is not None else self._group._side(self._device)
                with torch.cuda.stream(side):
                    self._follow()
                    if self._future is not None:
                        self._tell()
            return self._told


class _Ends:
    """One thread that completes futures when calls end."""

    def __init__(self):
        self._lock, self._thread, self._queue, self._works = threading.Lock(), None, None, {}

    def watch(self, work):
        with self._lock:
            if self._thread is None:
                self._queue = native.queue()
                self._thread = threading.Thread(target=self._run, name="weft futures", daemon=True)
                self._thread.start()
                atexit.register(self.stop)
        self._works[work._requests[-1]] = work
        native.tell(work._requests[-1], self._queue)

    def _run(self):
        while True:
            request = native.next(self._queue)
            if request is None:
                return
            work = self._works.pop(request, None)
            if work is not None:
                with work._lock:
                    if not work._over:
                        work._wait(-1)
            del work

    def stop(self):
        """Ends the thread: one that wakes while Python ends would end the process badly."""
        with self._lock:
            if self._thread is not None:
                native.queue_free(self._queue)
                self._thread.join(5)
                self._thread = None

    def forked(self):
        self.__init__()


ends = _Ends()
