"""Parts of a block that engines of any tensor-parallel width name alike.

A rank's block is runs of its heads: (..., heads, bytes of a head). Each head of the model is a part, and a part has one name, whoever stores
it: two ranks of four heads store eight parts, four ranks load two each. Which bytes of which rank a part is, kv.Moves says in Go: its tests hold
these against it.

    8 heads, TP 2    rank 0: 0 1 2 3       rank 1: 4 5 6 7
             TP 4    rank 0: 0 1   rank 1: 2 3   rank 2: 4 5   rank 3: 6 7

Where there are more ranks than heads, several ranks have the same head; the first of them stores it.
"""

try:
    import numpy
except ImportError:
    numpy = None


class Shards:
    """The parts that a rank has: parts[first:first + count] of the block of all ranks."""

    def __init__(self, heads, rank, ranks):
        if max(heads, ranks) % min(heads, ranks):
            raise ValueError("%d heads on %d ranks: neither divides the other" % (heads, ranks))
        self.parts = heads
        self.count = max(1, self.parts // ranks)
        self.first = rank * self.parts // ranks
        self.stores = ranks <= heads or rank % (ranks // heads) == 0
        self.mine = range(self.first, self.first + self.count)

    def cut(self, data, width):
        """The parts of a rank's bytes, of which width are one run of all its heads."""
        if self.count == 1:
            return [data]
        self._check(len(data), width)
        n = width // self.count
        if numpy is not None:
            rows = numpy.frombuffer(data, numpy.uint8).reshape(-1, self.count, n)
            return [rows[:, i].tobytes() for i in range(self.count)]
        view = memoryview(data).cast("B")
        return [b"".join(view[at : at + n] for at in range(i * n, len(view), width)) for i in range(self.count)]

    def join(self, parts, width):
        """A rank's bytes of its parts."""
        if self.count == 1:
            return parts[0]
        n, total = width // self.count, sum(len(p) for p in parts)
        self._check(total, width)
        if numpy is not None:
            return numpy.stack([numpy.frombuffer(p, numpy.uint8).reshape(-1, n) for p in parts], axis=1).tobytes()
        views = [memoryview(p).cast("B") for p in parts]
        return b"".join(v[at : at + n] for at in range(0, total // self.count, n) for v in views)

    def _check(self, size, width):
        if width % self.count or size % width:
            raise ValueError("%d bytes in runs of %d are not %d equal parts" % (size, width, self.count))
