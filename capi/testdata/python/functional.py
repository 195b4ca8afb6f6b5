"""Calls that return new arrays, against NumPy, on NumPy's arrays, PyTorch's, and ones that only DLPack reads."""
import numpy as np
import weft
import weft.functional as wf


class Sealed:
    """An array as JAX's: nobody may write it, it is read by DLPack alone, and asked for a GPU's memory it raises what JAX 0.4.23 does."""

    def __init__(self, a, versions=True):
        self._a, self._versions = a, versions
        self.shape, self.dtype = a.shape, a.dtype

    def __dlpack__(self, **how):
        if how and not self._versions:
            raise TypeError("unexpected keyword argument 'max_version'")
        return self._a.__dlpack__()

    def __dlpack_device__(self):
        return self._a.__dlpack_device__()

    @property
    def __cuda_array_interface__(self):
        raise RuntimeError("INVALID_ARGUMENT: __cuda_array_interface__ is only defined for NVidia GPU buffers.")


makes = {"numpy": lambda a: a, "sealed": Sealed, "sealed, old": lambda a: Sealed(a, False)}
try:
    import torch
    makes["torch"] = torch.from_numpy
except ImportError:
    pass

c = weft.join()
r, n = c.rank, c.size
for name, make in makes.items():
    for dtype in ("float32", "float64", "int32", "uint8", "complex64"):
        all = [np.random.default_rng(i).integers(0, 9, (2 * n, 3)).astype(dtype) for i in range(n)]
        mine, before = make(all[r]), all[r].copy()

        def same(what, got, want):
            kind = "torch" if name == "torch" else "numpy"
            assert type(got).__module__.split(".")[0] == kind, (what, type(got))
            got = np.asarray(got)
            assert got.dtype == want.dtype and got.shape == want.shape and (got == want).all(), (name, dtype, what, got, want)
            assert (all[r] == before).all(), what

        total = sum(all[1:], all[0])
        same("all_reduce", wf.all_reduce(c, mine), total)
        same("all_gather", wf.all_gather(c, mine), np.stack(all))
        same("reduce_scatter", wf.reduce_scatter(c, mine), total[2 * r:2 * r + 2])
        same("all_to_all", wf.all_to_all(c, mine), np.concatenate([a[2 * r:2 * r + 2] for a in all]))
        if r != n - 1:
            same("broadcast", wf.broadcast(c, mine, n - 1), all[n - 1])
        else:
            assert wf.broadcast(c, mine, n - 1) is mine
        wf.send(c, mine, (r + 1) % n, 5)
        same("recv", wf.recv(c, mine, (r - 1) % n, 5), all[(r - 1) % n])
    # A tree, whose keys every rank has put in in another order.
    keys = ["b", "a", "c"][r % 3:] + ["b", "a", "c"][:r % 3]
    tree = {k: make(np.full(3, ord(k) + r, "float32")) for k in keys}
    tree["list"] = [make(np.full((), 1 + r, "float32")), None, (make(np.zeros((0, 2), "float32")),)]
    got = wf.all_reduce(c, tree, "avg")
    assert list(got) == list(tree), (list(got), list(tree))
    for k in "abc":
        assert np.allclose(np.asarray(got[k]), ord(k) + (n - 1) / 2), (k, got[k])
    assert float(got["list"][0]) == 1 + (n - 1) / 2 and got["list"][1] is None and tuple(got["list"][2][0].shape) == (0, 2), got
    for bad, why in ((lambda: wf.reduce_scatter(c, make(np.zeros(n + 1))), "divided"), (lambda: wf.all_to_all(c, make(np.zeros(()))), "divided")):
        try:
            bad()
            raise SystemExit("taken")
        except weft.Invalid as e:
            assert why in str(e), e
try:
    wf.all_reduce(c, "text")
    raise SystemExit("taken")
except TypeError as e:
    assert "no array" in str(e), e
c.close()
print("well")
