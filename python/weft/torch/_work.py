"""Calls under way, as PyTorch sees them."""

import atexit
import collections
import threading
import time
import weakref

import torch
from torch._C._distributed_c10d import Work as _Base
from torch.futures import Future

import weft

from . import _native as native
from ._memory import in_backward


_new_lock = threading.Lock


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
    """Calls that were started, without those that are over already. It is over when all of them are, and finish, which puts results
    where they belong, was called."""

    _over, _error, _source = False, None, None
    _record = None  # of the profiler
    _came = False  # whether the watching thread knows that it is over
    _watched = False  # whether that thread completes the future
    number = 0     # among the group's collectives, from 1; 0 for a message
    _future = _told = None  # one that waits for the end, and after it

    def __init__(self, group, what, requests, tensors, keep, finish):
        _Base.__init__(self)
        self._group, self._what, self._requests = group, what, requests
        self._tensors, self._keep, self._finish = tensors, keep, finish
        if finish is not None and torch.is_inference_mode_enabled():  # the thread that ends it may have another mode
            self._finish = torch.inference_mode()(finish)
        self._lock = _new_lock()
        if requests:
            group._live[id(self)] = self  # its buffers must stay until it is over, whoever forgets it
        else:
            self._end(None)

    def keep(self):
        """Keeps this object for its caller, which may be C++ and hold no more than the part of it that is of C++ (before PyTorch 2),
        until it has waited."""
        kept = self._group._kept
        kept[id(self)] = self
        while len(kept) > 1000:  # who has not waited for so long never will
            kept.pop(next(iter(kept)))

    def half(self):
        """An object of C++ that stands for this one, for a caller in a backward pass with PyTorch 1: it may be C++, which finds no future
        in an object of Python. What Python asks it is asked of this one."""
        half = torch._C._distributed_c10d._create_work_from_future(self.get_future())
        _halves[half] = self
        _ask_whole()
        return half

    def _at_end(self):
        """Completes the future at the end of a backward pass."""
        if not self._watched:
            self.wait()

    def wanted(self):
        """Sees to it that the future is completed, whether somebody waits for this or not."""
        with self._lock:
            if self._future is not None and not self._watched:
                self._watched = ends.watch(self)
            future = self._future
        if future is not None and not self._watched and self._over:
            self._tell()

    def record(self, record):
        """Lets the profiler's record last until this is over. Who waits finds it ended."""
        with self._lock:
            if not self._over:
                self._record, record.run_callbacks_on_exit = record, False

    def _end(self, error):
        self._error = error
        if self._record is not None:
            self._record.run_callbacks_on_exit = True
            self._record.__exit__(None, None, None)
        if error is None and self._finish is not None:
            try:
                self._finish()
            except Exception as e:  # told to those that wait
                self._error = e
        self._over = True
        self._keep = self._finish = None
        self._group._live.pop(id(self), None)

    def _tell(self):
        """Completes the future of a work that is over. The lock is not held: callbacks run here, and may wait."""
        with self._lock:
            future, self._future = self._future, None
            if future is None:
                return
            self._told = future
        if self._error is None:
            future.set_result(list(self._tensors))
        else:
            future.set_exception(self._error)

    def _wait(self, ms):
        """Waits for a time, for ever if it is negative; the lock is held."""
        local = native.local
        while self._requests:
            rc = native.wait(self._requests[0], ms, None if self.number else local.status_address, local.address)
            if rc == native.PENDING:
                return
            if rc == native.INTERRUPTED:  # the wait was, the call goes on
                native.reraise()
            self._requests = self._requests[1:]
            if not self.number:
                self._source = local.status.source
            if rc != native.OK and self._error is None:
                self._error = failure(rc, self._what)
        self._end(self._error)

    def _finish_here(self):
        """Waits for the end, and completes the future."""
        with self._lock:
            if not self._over:
                self._wait(-1)
        self._tell()

    def _wait_aside(self):
        """Waits in a callback as the wait for a future does: other callbacks run meanwhile. On another rank that of another group may have
        the turn and wait for one here."""
        with self._lock:
            future = self._told or self._future
            if future is None:
                future = self._future = _future(self._tensors)
                if self.number:
                    _causes[future] = (self._group.token, self.number)
        self.wanted()
        if not future.done():
            ends.aside(future)

    def wait(self, timeout=None):
        ms = -1
        if timeout is not None and timeout.total_seconds() > 0:
            ms = int(timeout.total_seconds() * 1000)
        if not self._over and ms < 0 and ends.has_turn():
            self._wait_aside()
        elif not self._over:
            with self._lock:
                if not self._over:
                    self._wait(ms)
        if self._over and (self._watched or self._future is not None):
            ends.told(self)
        if self._group._kept:
            self._group._kept.pop(id(self), None)
        if not self._over:
            raise Error(f"weft: {self._what}: Timed out after {ms} ms of waiting; the call is still in progress")
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
        if self._over and self._future is not None and not self._watched:
            self._tell()
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
            future = self._told or self._future
            if future is not None:
                return future
            future = self._future = _future(self._tensors)
            if self.number:
                _causes[future] = (self._group.token, self.number)
        # DDP asks for the futures of its buckets and waits for them at the end of the backward pass. A future of C++ cannot be given an
        # error from here, so the pass itself waits first, and raises. Who does something with the future in Python has it at once.
        if not self._over and in_backward():
            _held[future] = self
            _replace_methods()
            torch.autograd.Variable._execution_engine.queue_callback(self._at_end)
        else:
            self.wanted()
        return future

    def _source_rank(self):
        if self._source is None or self._source < 0:
            raise RuntimeError("only a receive that is over has a source")
        return self._source

    source_rank = _source_rank


class Over(Work):
    """A call that was over when it was started. Making this takes a third of the time of a Work."""

    _over, _requests, _keep, _finish = True, (), None, None
    _lock = threading.RLock()  # of all of them: it is held for a moment, by those who ask for futures

    def __init__(self, group, what, tensors, number):
        _Base.__init__(self)
        self._group, self._what, self._tensors, self.number = group, what, tensors, number

    def wait(self, timeout=None):
        if self._future is None and not self._watched:
            if self._group._kept:
                self._group._kept.pop(id(self), None)
            return True
        return super().wait(timeout)


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

    def record(self, record):
        record._call_end_callbacks_on_future(self._future or self.get_future())

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

    def wanted(self):
        """Completes the future at once: who waits for it lets his stream wait."""
        with self._lock:
            side = torch.cuda.current_stream(self._device) if self._finish is not None else self._group._side(self._device)
            with torch.cuda.stream(side):
                self._follow()
        with torch.cuda.stream(side):
            self._tell()


class _Ends:
    """Threads that complete futures when calls end: those of a group's collectives in the order in which they began, which is the
    same on all ranks.

    What a program hangs on a future runs here, one after another, so that callbacks that start calls do so in the same order on every
    rank. One that waits for a future steps aside until that one is complete, and another thread goes on. Once it is complete, the one
    that waited is the next to run, before any other future is completed: which of them have ended by then differs between ranks.

    A callback that is added to a complete future runs in the thread that adds it, as PyTorch has it, when it is its turn."""

    def __init__(self):
        self._lock, self._queue, self._works = threading.Lock(), None, {}
        self._threads = set()
        self._idle = 0                         # threads that complete nothing at the moment
        self._listen = threading.Lock()        # held by the one that waits for the next call to end
        self._turn = threading.Condition(self._lock)
        self._running, self._back = False, []  # whether somebody has the turn, and those whose wait is over
        self._ready = collections.deque()      # works that ended, in the order of their completion
        self._mine = threading.local()         # turn: whether this thread has it; cause: see cause

    def watch(self, work):
        """Lets the threads complete a work's future. False if there is no need: it is over, and so are those before it."""
        watched = work._group._watched
        with self._lock:
            if self._queue is None:
                self._queue = native.queue()
                atexit.register(self.stop)
                _replace_methods()
            if not self._threads:
                self._add()
            if work._over and not (work.number and watched):
                return False
            if work.number:
                watched.append(work)
            if work._over:
                work._came = True
                return True
        self._works[work._requests[-1]] = work
        native.tell(work._requests[-1], self._queue)
        return True

    def told(self, work):
        """Sees to it that the future of a work that is over is complete."""
        if not work._watched or self._queue is None or self.has_turn():
            if work._future is not None:
                work._tell()
            return
        future = work._future or work._told
        if not future.done():
            self.aside(future)

    def cause(self, group):
        """The number of the group's collective in whose callback this thread is; 0 outside of callbacks. Ranks compare it when they
        make a call: two calls of one size that are paired wrongly differ in it."""
        if self._queue is None:  # no future was asked for yet
            return 0
        cause = getattr(self._mine, "cause", None)
        return cause[1] if cause is not None and cause[0] is group.token else 0

    def has_turn(self):
        """Whether this thread runs a callback, and others wait until it has ended."""
        return self._queue is not None and getattr(self._mine, "turn", False)

    def call(self, callback, cause, future):
        """Runs a callback of a future when it is its turn."""
        before, taken = getattr(self._mine, "cause", None), not self.has_turn()
        if taken:
            self._take(idle=False)
            self._mine.turn = True
            self._complete()
        self._mine.cause = cause
        try:
            return callback(future)
        finally:
            self._mine.cause = before
            if taken and self.has_turn():
                self._mine.turn = False
                self._leave()

    def _add(self):
        """Starts a thread; the lock is held."""
        t = threading.Thread(target=self._run, args=(self._queue,), name="weft futures", daemon=True)
        self._threads.add(t)
        self._idle += 1
        t.start()

    def _run(self, queue):
        self._take()
        self._mine.turn = True
        self._complete()  # what the one that stepped aside has left
        while self._give(idle=True):
            self._mine.turn = False
            with self._listen:
                request = native.next(queue)
                if request is None:
                    return
                self._take()
                self._mine.turn = True
            self._came(self._works.pop(request, None))
            self._complete()

    def _came(self, work):
        """Notes that a call ended. Its future is completed behind those of its group's collectives that began before."""
        if work is None:
            return
        if not work.number:
            self._ready.append(work)
            return
        watched = work._group._watched
        with self._lock:
            work._came = True
            while watched and watched[0]._came:
                self._ready.append(watched.popleft())

    def _complete(self):
        """Completes the futures of works that ended, each when those that waited for the one before have gone on."""
        while self._ready:
            with self._turn:
                if self._back:
                    self._running = False
                    self._turn.notify_all()
                    self._until_free()
                    continue  # another may have completed the rest
            self._ready.popleft()._finish_here()

    def _until_free(self):
        """Waits for the turn; the lock is held."""
        while self._running or self._back:
            self._turn.wait()
        self._running = True

    def _take(self, idle=True):
        """Waits until no other runs."""
        with self._turn:
            self._until_free()
            self._idle -= idle

    def _leave(self):
        """Ends a turn."""
        with self._turn:
            self._running = False
            self._turn.notify_all()

    def _give(self, idle):
        """Lets the next run. False if there are threads enough without this one, which has nothing to do."""
        with self._turn:
            self._running = False
            self._turn.notify_all()
            if not idle:
                if self._idle == 0 or self._ready:
                    self._add()
                return True
            if self._idle >= _SPARE:
                self._threads.discard(threading.current_thread())
                return False
            self._idle += 1
            return True

    def aside(self, future):
        """Waits until a future is complete. If it is this thread's turn, others run meanwhile."""
        over = threading.Event()
        if not self.has_turn():
            _add_done_callback(future, lambda _: over.set())
            over.wait()  # unlike PyTorch's own wait it ends with Ctrl-C
            return

        def back(_):
            with self._turn:
                if not over.is_set():
                    self._back.append(over)
                    self._turn.notify_all()

        _add_done_callback(future, back)
        self._mine.turn = False
        self._give(idle=False)
        with self._turn:
            try:
                while self._running or not self._back or self._back[0] is not over:
                    self._turn.wait()
                self._running = self._mine.turn = True
            finally:  # Ctrl-C also gives up the turn
                over.set()
                if over in self._back:
                    self._back.remove(over)
                    self._turn.notify_all()

    def stop(self):
        """Ends the threads: one that wakes while Python ends would end the process badly."""
        with self._lock:
            threads, queue = list(self._threads), self._queue
            self._threads, self._queue = set(), None
        if queue is not None:
            native.queue_free(queue)
        end = time.monotonic() + 5
        for t in threads:
            t.join(max(0, end - time.monotonic()))

    def forked(self):
        self.__init__()


_SPARE = 8  # threads that stay when they have nothing to do


# What led to a future: the group and the number of its collective. Futures of callbacks have that of theirs.
_causes = weakref.WeakKeyDictionary()

# Works whose futures are complete at the end of the backward pass, unless Python wants them before.
_held = weakref.WeakKeyDictionary()

# Objects of C++ that stand for works: see Work.half.
_halves = weakref.WeakKeyDictionary()


def _want(future):
    work = _held.pop(future, None)
    if work is not None:
        work.wanted()


def _ask_whole():
    """Lets what Python asks half of a work be asked of all of it."""
    if getattr(_Base.wait, "whole", False):
        return

    def asking(name, plain):
        def ask(self, *args):
            work = _halves.get(self)
            return plain(self, *args) if work is None else getattr(work, name)(*args)

        ask.whole = True
        return ask

    for name in ("wait", "synchronize", "is_completed", "is_success", "exception", "result", "get_future"):
        if hasattr(_Base, name):
            setattr(_Base, name, asking(name, getattr(_Base, name)))



_add_done_callback = torch._C.Future.add_done_callback  # runs at once on whichever thread


def _replace_methods():
    """Lets every wait for a future of PyTorch's go through aside, and callbacks of weft's futures through call. Futures that then and
    collect_all make are objects of C++, of which no class of ours can be the type, so their methods themselves are replaced; on futures
    that are complete wait is what it was, and callbacks of futures that weft knows nothing of run as they did."""
    kind = torch._C.Future
    if getattr(kind.wait, "aside", False):
        return
    wait_, then_, done_, collect_ = kind.wait, kind.then, kind.done, torch._C._collect_all

    def wait(self):
        _want(self)
        if not done_(self):
            ends.aside(self)
        return wait_(self)

    def done(self):
        _want(self)
        return done_(self)

    def then(self, callback):
        _want(self)
        cause = _causes.get(self)
        if cause is None:
            return then_(self, callback)
        future = then_(self, lambda f: ends.call(callback, cause, f))
        _causes[future] = cause
        return future

    def add_done_callback(self, callback):
        _want(self)
        cause = _causes.get(self)
        _add_done_callback(self, callback if cause is None else lambda f: ends.call(callback, cause, f))

    def collect_all(futures):
        for f in futures:
            _want(f)
        return collect_(futures)

    wait.aside = True
    kind.wait, kind.then, kind.done, kind.add_done_callback = wait, then, done, add_done_callback
    torch._C._collect_all = collect_all


ends = _Ends()
