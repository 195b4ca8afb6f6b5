"""Every type and reduction on arrays of numpy, against numpy."""
import numpy as np
import weft

c = weft.join()
r, n = c.rank, c.size
random = [np.random.default_rng(100 + i) for i in range(n)]  # every rank knows what all have
for t in ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "complex64", "complex128", "bool"]:
    for op in ["sum", "prod", "min", "max", "avg", "band", "bor", "bxor"]:
        for count in (0, 7, 5000):
            all = [np.asarray(g.integers(0, 3, count)).astype(t) for g in random]
            kind = all[0].dtype.kind
            if kind == "c" and op not in ("sum", "avg") or kind == "f" and op[0] == "b" or kind == "b" and op in ("avg",):
                try:
                    c.all_reduce(all[r].copy(), op)
                    raise SystemExit(f"{op} of {t} was taken")
                except weft.Invalid:
                    continue
            f = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum, "avg": np.add, "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}[op]
            if kind == "b":
                f = {"sum": np.logical_or, "max": np.logical_or, "bor": np.logical_or, "prod": np.logical_and, "min": np.logical_and, "band": np.logical_and, "bxor": np.logical_xor}[op]
            want = all[0]
            for x in all[1:]:
                want = f(want, x)
            if op == "avg":
                want = want // n if kind in "iu" else want / n
            got = all[r].copy()
            c.all_reduce(got, op)
            assert np.allclose(got.astype("complex128"), want.astype("complex128"), rtol=1e-2 if t == "float16" else 1e-6), (t, op, count, got[:5], want[:5])
x = np.arange(24, dtype="float32").reshape(2, 3, 4)
c.all_reduce(x)
assert (x == n * np.arange(24).reshape(2, 3, 4)).all()
try:
    c.all_reduce(x[:, 1])
    raise SystemExit("taken")
except ValueError:
    pass
try:
    x.flags.writeable = False
    c.all_reduce(x)
    raise SystemExit("taken")
except ValueError:
    pass
m = c.alloc(10, "float32")
v = np.asarray(m)
v[:] = r
c.all_reduce(v)  # registered memory by way of numpy
assert (v == n * (n - 1) / 2).all()
c.barrier()
c.close()
print("well")
