"""Every call of the package on n ranks, on everything that has memory."""
import array
import ctypes
import gc
import os
import sys
import threading

import weft

gc.set_threshold(1)  # collect as often as possible: nothing may go that a call still uses
c = weft.join(transport=os.environ.get("TRANSPORT") or None)
r, n = c.rank, c.size
total = n * (n - 1) // 2


def same(a, b):
    assert list(a) == list(b), (list(a)[:10], list(b)[:10])


# buffers of Python itself
a = array.array("d", [r, 1])
c.all_reduce(a)
same(a, [total, n])
b = bytearray([r, 7])
c.all_reduce(b, "max")
same(b, [n - 1, 7])
x = (ctypes.c_int32 * 3)(r, r, 1)
c.all_reduce(x, weft.MIN)
same(x, [0, 0, 1])
got = bytearray(4 * n)
c.Allgather(bytes([r] * 4), got)  # read-only memory may be sent
same(got, [i for i in range(n) for _ in range(4)])
for bad, error in [(b"read-only", ValueError), (object(), TypeError), (memoryview(bytearray(8))[::2], ValueError), ("text", TypeError)]:
    try:
        c.all_reduce(bad)
        raise SystemExit(f"{bad!r} was taken")
    except error:
        pass


# the three interfaces, by hand: no numpy is needed for them
class Interface:
    def __init__(self, typestr, values, **more):
        self.values = values
        self.__array_interface__ = dict(shape=(len(values),), typestr=typestr, data=(ctypes.addressof(values), False), version=3, **more)


y = Interface("<f4", (ctypes.c_float * 4)(*[r] * 4))
c.all_reduce(y)
same(y.values, [total] * 4)
for wrong in [Interface(">f4", y.values), Interface("<V4", y.values), Interface("<f4", y.values, strides=(8,))]:
    try:
        c.all_reduce(wrong)
        raise SystemExit("taken")
    except (TypeError, ValueError):
        pass


class Cuda:
    __cuda_array_interface__ = dict(shape=(4,), typestr="<f4", data=(4096, False), version=3, stream=1)


class DL:
    """A tensor of DLPack, old or new form, that counts how often it is given back."""

    def __init__(self, values, versioned, device=1, code=2, bits=32, flags=0):
        self.values, self.versioned, self.device, self.deleted = values, versioned, device, 0
        self.shape = (ctypes.c_int64 * 2)(2, len(values) // 2)
        self.tensor = ctypes.create_string_buffer(128)

        def delete(p):
            self.deleted += 1

        self.delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(delete)
        import struct

        t = struct.pack("PiiiBBHPPQ", ctypes.addressof(values), device, 0, 2, code, bits, 1, ctypes.addressof(self.shape), 0, 0)
        d = ctypes.cast(self.delete, ctypes.c_void_p).value
        head = struct.pack("IIPPQ", 1, 0, 0, d, flags) + t if versioned else t + struct.pack("PP", 0, d)
        ctypes.memmove(self.tensor, head, len(head))

    def __dlpack_device__(self):
        return self.device, 0

    def __dlpack__(self, stream=None):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        self.name = b"dltensor_versioned" if self.versioned else b"dltensor"
        return new(ctypes.addressof(self.tensor), self.name, None)


for versioned in (False, True):
    z = DL((ctypes.c_float * 4)(*[r] * 4), versioned)
    c.all_reduce(z)
    same(z.values, [total] * 4)
    gc.collect()
    assert z.deleted == 1, z.deleted
fixed = DL((ctypes.c_float * 4)(), True, flags=1)
c.Allreduce(fixed, array.array("f", [0] * 4))
try:
    c.all_reduce(fixed)
    raise SystemExit("read-only memory was taken")
except ValueError as e:
    assert "read-only" in str(e), e
by_name = array.array("d", [r + 1.0])
c.all_reduce(by_name, "premulsum")  # by 1, as nothing else is said
same(by_name, [n * (n + 1) / 2])
h = DL((ctypes.c_uint16 * 4)(*[0x3F80] * 4), False, code=4, bits=16)  # bfloat16: 1.0
c.all_reduce(h, weft.AVG)
same(h.values, [0x3F80] * 4)
for device in (Cuda(), DL((ctypes.c_float * 4)(), False, device=2)):  # addresses that are no GPU's, where there is one
    d = c.dup()
    try:
        d.all_reduce(device)
        raise SystemExit("taken")
    except weft.Error as e:
        assert "GPU" in str(e) or "CUDA" in str(e), e
    d.close()

# started calls, messages, one-sided memory
reqs = [c.Iallreduce(weft.IN_PLACE, array.array("i", [i] * 100)) for i in range(20)]  # nobody else holds these buffers
weft.Request.Waitall(reqs)
for i in range(20):
    c.Iallreduce(weft.IN_PLACE, array.array("i", [i] * 10000))  # nor waits for these
c.barrier()
right, left = (r + 1) % n, (r - 1) % n
into = array.array("q", [0] * 5)
s = weft.Status()
c.Sendrecv(array.array("q", [r] * 5), right, 4, into, left, 4, s)
same(into, [left] * 5)
assert (s.source, s.tag, s.count) == (left, 4, 5), s
q = c.Irecv(into, weft.ANY_SOURCE, 9, s)
c.Isend(array.array("q", [r + 1] * 5), right, 9).wait()
assert q.wait(timeout=30) and s.source == left
same(into, [left + 1] * 5)
c.together(c.call.Send(array.array("q", [r]), right, 1), c.call.Recv(one := array.array("q", [0]), left, 1))
same(one, [left])
p = c.prepare(c.call.Allreduce(weft.IN_PLACE, acc := array.array("q", [1])))
for _ in range(3):
    p.start().wait()
same(acc, [n**3])
assert not c.Iprobe()
m = c.alloc(8, "uint64")
keys = array.array("Q", [0] * n)
c.Allgather(array.array("Q", [m.key()]), keys)
c.Put_notify(array.array("Q", [r + 100]), keys[right] + 8, right, 5)
assert c.fetch_add(keys[0], 1, 0) < n
c.barrier()
w = (ctypes.c_uint64 * 8).from_address(m.pointer)
assert w[1] == left + 100 and (r or w[0] == n)
seen = []
while not seen:
    seen = c.notices()
assert seen == [(left, 5)], seen
back = array.array("Q", [0])
c.Get(back, keys[right] + 8, right)
same(back, [r + 100])
c.barrier()  # the owner has looked
assert c.compare_swap(keys[right] + 8, r + 100, 1, right) == r + 100
c.barrier()  # a sum in place may begin before all ranks are there
c.all_reduce(m)
c.barrier()
m.free()

# blocks of different lengths
counts = [i + 1 for i in range(n)]
v = array.array("i", [0] * sum(counts))
c.Allgatherv(array.array("i", [r] * (r + 1)), (v, counts))
same(v, [i for i in range(n) for _ in range(i + 1)])
d = array.array("i", [0] * n * (r + 1))
c.Alltoallv((array.array("i", [10 * r + i for i in range(n) for _ in range(i + 1)]), counts), (d, [r + 1] * n))
same(d, [10 * i + r for i in range(n) for _ in range(r + 1)])
o = array.array("i", [0] * (r + 1))
c.Scatterv((v if r == 0 else None, counts), o)
same(o, [r] * (r + 1))
g = array.array("i", [0] * sum(counts)) if r == 1 else None
c.Gatherv(o, (g, counts), root=1)
if r == 1:
    same(g, v)
c.Reduce_scatter(array.array("i", range(sum(counts))), o, counts)
assert o[0] == n * (r * (r + 1) // 2)

# groups, texts, errors
sub = c.split(r % 2, -r)
assert sub.size == (n + 1 - r % 2) // 2 and sub.Get_rank() == sub.size - 1 - r // 2
sub.all_reduce(e := array.array("i", [1]))
same(e, [sub.size])
sub.barrier()
sub.close()
assert c.split(-1) is None
assert "all-reduce" in c.explain() and c.flight() and isinstance(c.counters(), dict)
assert c.info()["transport"] == c.transport
for call in (lambda: c.Allreduce(array.array("i", [1]), array.array("i", [1, 2])), lambda: c.all_reduce(a, "mean"), lambda: c.Bcast(a, n), lambda: c.Send(a, n),
             lambda: c.Allreduce(array.array("i", [1]), array.array("d", [1])), lambda: weft.join(rank=1), lambda: weft.join(rank=0, size=1, colour="red"), lambda: c.alloc(0)):
    try:
        call()
        raise SystemExit("taken")
    except weft.Invalid:
        pass

# reductions by a function: pairs of a value and where it is
def least(acc, x):
    for i in range(0, len(acc), 2):
        if (x[i], x[i + 1]) < (acc[i], acc[i + 1]):
            acc[i : i + 2] = x[i : i + 2]


pairs = array.array("d", [v for i in range(7) for v in ((r * 3 + i * 5) % 4, r)])
want = [v for i in range(7) for v in min(((q * 3 + i * 5) % 4, q) for q in range(n))]
c.all_reduce_by(pairs, least, 2)
same(pairs, want)
join = array.array("q", [r + 1])  # associative, not commutative: digits in the order of the ranks
c.all_reduce_by(join, lambda acc, x: acc.__setitem__(0, acc[0] * 10 ** len(str(x[0])) + x[0]))
same(join, [int("".join(str(q + 1) for q in range(n)))])
sums = array.array("q", [r + 1])
c.scan_by(sums, lambda acc, x: acc.__setitem__(0, acc[0] + x[0]))
same(sums, [(r + 1) * (r + 2) // 2])
try:
    c.all_reduce_by(array.array("q", [1] * n), lambda acc, x: 1 / 0)  # every rank has a share
    raise SystemExit("taken")
except ZeroDivisionError:
    pass
c.barrier()

# threads: each has errors of its own
other = c.dup()
bad = []


def work():
    for _ in range(200):
        k = array.array("i", [1])
        other.all_reduce(k)
        if k[0] != n:
            bad.append(k[0])


t = threading.Thread(target=work)
t.start()
for _ in range(200):
    k = array.array("i", [2])
    c.all_reduce(k)
    assert k[0] == 2 * n
t.join()
assert not bad
other.close()

# a mistake of one rank is told to all
deep = c.dup()
try:
    deep.all_reduce(array.array("i", [1] * (2 if r == 0 else 3)))
    raise SystemExit("ranks called different things")
except weft.Mismatch as e:
    assert e.culprits and e.code == 2, e
deep.close()
c.barrier()
c.close()
try:
    c.barrier()
    raise SystemExit("closed")
except weft.Invalid:
    pass
print("well")
