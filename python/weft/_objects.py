"""The lower-case calls of mpi4py: any object that can be pickled, and results are returned."""

import functools
import operator
import pickle

from ._lib import BAND, BOR, BXOR, MAX, MIN, PROD, SUM

_functions = {SUM: operator.add, PROD: operator.mul, MIN: min, MAX: max, BAND: operator.and_, BOR: operator.or_, BXOR: operator.xor}


def _function(op, number):
    """What an operation does to two objects; a function of two objects is one."""
    if callable(op):
        return op
    try:
        return _functions[number(op)]
    except KeyError:
        raise ValueError(f"operation {op!r} has no meaning for objects; give a function of two objects") from None


class Later:
    """An object that a rank sends, when it is asked for."""

    def __init__(self, comm, source, tag):
        self._ask, self._got = (comm, source, tag), None

    def wait(self, status=None):
        if self._got is None:
            comm, source, tag = self._ask
            self._got = (comm.recv(None, source, tag, status),)
        return self._got[0]

    def test(self, status=None):
        """Whether it has come, and the object."""
        comm, source, tag = self._ask
        if self._got is None and not comm.Iprobe(source, tag):
            return False, None
        return True, self.wait(status)


def _pickled(make):
    """What make gives, or why it cannot: the other ranks must learn of that, too, and do not wait."""
    try:
        return make(), None
    except Exception as e:
        return None, e


def _raise(why, ranks):
    if why is not None:
        raise why
    raise ValueError(f"rank {', '.join(map(str, ranks))} could not send its object; its own error says why")


class Objects:
    """Calls on objects, in terms of those on buffers. A rank whose object cannot be sent tells so with a length below 0."""

    def _lengths_of(self, data, why):
        """How many bytes each rank has."""
        lengths = memoryview(bytearray(8 * self.size)).cast("q")
        self.Allgather(_numbers([-1 if why else len(data)]), lengths)
        if bad := [r for r, n in enumerate(lengths) if n < 0]:
            _raise(why, bad)
        return list(lengths)

    def _read(self, data, lengths):
        at, objects = 0, []
        for n in lengths:
            objects.append(pickle.loads(data[at:at + n]))
            at += n
        return objects

    def bcast(self, obj, root=0):
        """The root's object, on every rank."""
        data, why = _pickled(lambda: pickle.dumps(obj)) if self.rank == root else (b"", None)
        length = _numbers([-1 if why else len(data)])
        self.Bcast(length, root)
        if length[0] < 0:
            _raise(why, [root])
        buffer = bytearray(data if self.rank == root else length[0])
        self.Bcast(buffer, root)
        return obj if self.rank == root else pickle.loads(buffer)

    def allgather(self, sendobj):
        """The objects of all ranks, in their order."""
        data, why = _pickled(lambda: pickle.dumps(sendobj))
        lengths = self._lengths_of(data, why)
        buffer = bytearray(sum(lengths))
        self.Allgatherv(data, (buffer, lengths))
        return self._read(buffer, lengths)

    def gather(self, sendobj, root=0):
        """The objects of all ranks on the root, None elsewhere."""
        data, why = _pickled(lambda: pickle.dumps(sendobj))
        lengths = self._lengths_of(data, why)
        buffer = bytearray(sum(lengths)) if self.rank == root else None
        self.Gatherv(data, (buffer, lengths), root)
        return self._read(buffer, lengths) if self.rank == root else None

    def scatter(self, sendobj, root=0):
        """The root's list, an object for each rank."""
        parts, why = _pickled(lambda: self._parts_of(sendobj)) if self.rank == root else ([], None)
        lengths = _numbers([len(p) for p in parts or []] or [-1] * self.size)
        self.Bcast(lengths, root)
        if lengths[0] < 0:
            _raise(why, [root])
        counts, mine = list(lengths), bytearray(lengths[self.rank])
        self.Scatterv((b"".join(parts) if parts else None, counts), mine, root)
        return pickle.loads(mine)

    def alltoall(self, sendobj):
        """Object i of rank r becomes object r of rank i."""
        parts, why = _pickled(lambda: self._parts_of(sendobj))
        sends, recvs = _numbers([-1] * self.size if why else [len(p) for p in parts]), memoryview(bytearray(8 * self.size)).cast("q")
        self.Alltoall(sends, recvs)
        if bad := [r for r, n in enumerate(recvs) if n < 0]:
            _raise(why, bad)
        buffer = bytearray(sum(recvs))
        self.Alltoallv((b"".join(parts), list(sends)), (buffer, list(recvs)))
        return self._read(buffer, list(recvs))

    def _parts_of(self, objects):
        objects = list(objects)
        if len(objects) != self.size:
            raise ValueError(f"{len(objects)} objects for {self.size} ranks; give one for each")
        return [pickle.dumps(x) for x in objects]

    def allreduce(self, sendobj, op=SUM):
        """The objects of all ranks, combined in the order of the ranks. Use all_reduce for arrays: it is in place and does not pickle."""
        return functools.reduce(_function(op, self._number), self.allgather(sendobj))

    def reduce(self, sendobj, op=SUM, root=0):
        """allreduce, on the root; None elsewhere."""
        f, objects = _function(op, self._number), self.gather(sendobj, root)
        return functools.reduce(f, objects) if self.rank == root else None

    def scan(self, sendobj, op=SUM):
        """The objects of ranks 0 to this one, combined."""
        return functools.reduce(_function(op, self._number), self.allgather(sendobj)[:self.rank + 1])

    def exscan(self, sendobj, op=SUM):
        """The objects of the ranks before this one, combined; None on rank 0."""
        f, before = _function(op, self._number), self.allgather(sendobj)[:self.rank]
        return functools.reduce(f, before) if before else None

    def send(self, obj, dest, tag=0):
        self.Send(pickle.dumps(obj), dest, tag)

    def isend(self, obj, dest, tag=0):
        return self.Isend(pickle.dumps(obj), dest, tag)

    def recv(self, buf=None, source=-1, tag=-1, status=None):
        """The oldest object from a rank with a tag. buf is mpi4py's, and not used."""
        status = status if status is not None else self._status()
        self.Probe(source, tag, status)
        buffer = bytearray(status.Get_count())
        self.Recv(buffer, status.Get_source(), status.Get_tag(), status)
        return pickle.loads(buffer)

    def irecv(self, buf=None, source=-1, tag=-1):
        """A request whose wait gives the object."""
        return Later(self, source, tag)

    def sendrecv(self, sendobj, dest, sendtag=0, recvbuf=None, source=-1, recvtag=-1, status=None):
        request = self.isend(sendobj, dest, sendtag)
        obj = self.recv(recvbuf, source, recvtag, status)
        request.wait()
        return obj


def _numbers(values):
    m = memoryview(bytearray(8 * len(values))).cast("q")
    for i, v in enumerate(values):
        m[i] = v
    return m
