"""Calls on memory of GPUs that go wrong, with drivers that have no GPU below them: DRIVERS has a folder of libraries, and DRIVER the name of
this rank's, one for each rank. The arguments say what must be refused, on all ranks."""
import copy, ctypes, os, signal, sys, threading, time

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
name = os.environ["DRIVER"].split(",")[rank]
cuda = ctypes.CDLL(os.path.join(os.environ["DRIVERS"], name), ctypes.RTLD_GLOBAL) if name else None  # libcuda.so.1 is found by its own name
import weft
from weft import _lib


class Array:
    """Elements on a GPU."""
    def __init__(self, values, kind="<i4", device=0):
        self.n, self.kind, self.device, self.at = len(values), kind, device, ctypes.c_uint64(0x5500 << 32)
        if cuda is not None:
            cuda.cuCtxPushCurrent_v2(ctypes.c_void_p(1040))
            assert cuda.cuMemAlloc_v2(ctypes.byref(self.at), ctypes.c_size_t(max(256, 4 * self.n))) == 0
            cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
            ctypes.memmove(self.at.value, (ctypes.c_int32 * self.n)(*values), 4 * self.n)

    def free(self):
        assert cuda.cuMemFree_v2(self.at) == 0

    def read(self):
        return list((ctypes.c_int32 * self.n).from_address(self.at.value))

    @property
    def __cuda_array_interface__(self):
        return {"shape": (self.n,), "typestr": self.kind, "data": (self.at.value, False), "version": 3, "stream": None}


def refused(kind, words, call):
    try:
        call()
    except kind as e:
        missing = [w for w in words if w not in str(e)]
        assert not missing, f"{missing} is not in: {e}"
        return e
    raise AssertionError(f"nothing was raised; want {kind.__name__} with {words}")


def works(c):
    x = Array([rank + 1, 10])
    c.all_reduce(x)
    assert x.read() == [size * (size + 1) // 2, 10 * size], x.read()
    x.free()


def enqueue(c, x):
    """As weft.torch makes a call."""
    k = _lib.Call(ctypes.sizeof(_lib.Call), _lib.ALL_REDUCE, _lib.dtype(0, 32), 1)
    k.tag, k.dst, k.src, k.count, k.device = _lib.NO_TAG, x.at.value, x.at.value, x.n, 2
    e = _lib.Error()
    rc = _lib.lib().weft_enqueue(c.handle, ctypes.byref(k), ctypes.byref(e))
    if rc == _lib.INTERRUPTED:
        _lib.reraise()
    assert rc == 0, e.text.decode()


def interrupted(wait):
    """How long a wait goes on after a SIGINT."""
    sent = []

    def interrupt():
        time.sleep(0.15)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    try:
        threading.Thread(target=interrupt, daemon=True).start()
        wait()
        time.sleep(1)
    except KeyboardInterrupt:
        return time.monotonic() - sent[0]
    raise SystemExit("it ended without the interrupt")


c = weft.join()
if sys.argv[1] == "interrupts":
    for name, wait in {"allreduce": lambda d, x: d.all_reduce(x), "wait": lambda d, x: d.Iallreduce(weft.IN_PLACE, x).wait(),
                       "block": lambda d, x: d.Iallreduce(weft.IN_PLACE, x).block(0x55), "enqueue": enqueue,
                       "first": lambda d, x: d.all_reduce(x)}.items():
        d, x = c.dup(), Array([rank + 1])
        if name != "first":  # which opens the GPUs
            enqueue(d, x)
            assert x.read() == [size * (size + 1) // 2], x.read()
        if rank == 0:
            took = interrupted(lambda: wait(d, x))
            print(name, "%.3f" % took, file=sys.stderr)
            assert took < 20, took
        c.barrier()
        try:
            d.close()
        except weft.Error:
            pass
elif sys.argv[1] == "order":
    # Messages between two ranks do not overtake one another, however long each of them is on its way from the GPU.
    lengths = [1 if i % 3 else 50_000 for i in range(120)]
    mine, theirs = ([(r << 16 | i) for i, n in enumerate(lengths) for _ in range(n)] for r in (rank, 1 - rank))
    source, target = Array(mine), Array([-1] * len(mine))

    def part(whole, i):
        p = copy.copy(whole)
        p.n, p.at = lengths[i], ctypes.c_uint64(whole.at.value + 4 * sum(lengths[:i]))
        return p

    for tag in (0, 7):
        calls = [w for i in range(len(lengths)) for w in (c.Irecv(part(target, i), 1 - rank, tag), c.Isend(part(source, i), 1 - rank, tag))]
        for w in calls:
            w.wait()
        wrong = [i for i in range(len(lengths)) if part(target, i).read() != [(1 - rank) << 16 | i] * lengths[i]]
        assert not wrong, f"{len(wrong)} of {len(lengths)} messages hold another one, {wrong[0]} the first of them: {part(target, wrong[0]).read()[0] & 0xffff}"
        ctypes.memset(target.at.value, 255, 4 * len(mine))
elif sys.argv[1] != "values":
    for _ in range(2):  # the same again: nobody hangs on the second try
        e = refused(weft.NoDevice, sys.argv[1:], lambda: c.all_reduce(Array([1])))
else:
    works(c)
    assert "staged" in c.way(), c.way()
    # A buffer that was freed, on one rank: it is told what, the others who. The group goes on.
    x = Array([1, 2])
    if rank == 1:
        x.free()
        refused(weft.Error, ["no memory of this GPU", "freed"], lambda: c.all_reduce(x))
    else:
        refused(weft.Error, ["rank 1", "freed"], lambda: c.all_reduce(x))
    works(c)
    # More than there is.
    y = Array([0] * 64)
    y.n = 1 << 20
    refused(weft.Error, ["ends after" if rank == 0 else "rank 0"], lambda: c.all_reduce(y if rank == 0 else Array([0] * 64)))
    works(c)
    # Types that differ between ranks, in a group of their own.
    d = c.dup()
    e = refused(weft.Mismatch, ["int32", "float32"], lambda: d.all_reduce(Array([1], "<f4" if rank else "<i4")))
    assert sorted(e.culprits) == [0, 1], e.culprits
    # Memory of the host on one rank and of a GPU on the other.
    d = c.dup()
    d.all_reduce(Array([1]))
    refused(weft.Mismatch if rank else weft.Error, ["rank 0 calls all-reduce of 1 int32 sum on memory of the host, rank 1 all-reduce"], lambda: d.all_reduce(Array([1]) if rank else memoryview(bytearray(4)).cast("i")))
    # The host's memory and a GPU's in one call.
    refused(weft.Invalid, ["different devices"], lambda: c.Allreduce(memoryview(bytearray(8)).cast("i"), Array([1, 2])))
    works(c)
c.close()
print("well")
