"""Collectives that return new arrays, for arrays that cannot be written: JAX's, through DLPack. NumPy's and PyTorch's on CPUs work as well.

    import jax, weft, weft.functional as wf
    c = weft.join()
    grads = wf.all_reduce(c, grads, "avg")        # an array, or a tree of them
    y = wf.all_gather(c, x)                       # shape (c.size, *x.shape)

Inputs are read where they lie, results are written where the new array lies: nothing is copied. All ranks make the same calls in the same
order. Inside of jax.jit they have to be callbacks, in order:

    jax.experimental.io_callback(lambda x: wf.all_reduce(c, x), jax.ShapeDtypeStruct(x.shape, x.dtype), x, ordered=True)
"""

import sys
from typing import Any, Callable, Optional, Tuple

from . import SUM, Comm, Invalid
from ._buffer import CPU, Buffer, of

__all__ = ["all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "send", "recv"]


def _input(x: Any) -> Buffer:
    ready = getattr(x, "block_until_ready", None)  # JAX computes behind the caller's back
    if ready is not None:
        ready()
    b = of(x, writable=False)
    if b.device != CPU:
        raise TypeError(f"{type(x).__name__} lies on a device: weft.functional takes arrays of the CPU; jax.device_get copies one there")
    return b


def _output(like: Any, shape: Tuple[int, ...], kind: int) -> Tuple[Buffer, Callable[[], Any]]:
    """Memory for a result, and what makes an array of it, of the library that another array is of."""
    if type(like).__module__.split(".")[0] == "torch":
        torch = sys.modules["torch"]
        t = torch.empty(shape, dtype=like.dtype)
        return Buffer(t.data_ptr(), t.numel(), kind, keep=t), lambda: t
    import numpy
    a = numpy.empty(shape, like.dtype)
    jax = sys.modules.get("jax")
    done = (lambda: jax.numpy.asarray(a)) if jax is not None and isinstance(like, jax.Array) else lambda: a
    return Buffer(a.ctypes.data, a.size, kind, keep=a), done


def _each(f: Callable[[Any], Any], x: Any) -> Any:
    """f of an array, or of each array of a tree: in JAX's order where JAX is loaded, else in that of lists and of sorted keys."""
    if hasattr(x, "__dlpack__") or hasattr(x, "__array_interface__"):
        return f(x)
    jax = sys.modules.get("jax")
    if jax is not None:
        return jax.tree_util.tree_map(f, x)
    if isinstance(x, dict):
        done = {k: _each(f, x[k]) for k in sorted(x)}  # ranks may have put them in in another order
        return {k: done[k] for k in x}
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*(_each(f, v) for v in x))
    if isinstance(x, (list, tuple)):
        return type(x)(_each(f, v) for v in x)
    if x is None:
        return None
    raise TypeError(f"{type(x).__name__} is no array: it has neither __dlpack__ nor __array_interface__")


def _divided(what: str, c: Comm, x: Any) -> Tuple[int, ...]:
    if not x.shape or x.shape[0] % c.size:
        raise Invalid(f"{what}: the first axis of shape {tuple(x.shape)} is not divided by {c.size} ranks")
    return (x.shape[0] // c.size, *x.shape[1:])


def all_reduce(c: Comm, x: Any, op: Any = SUM) -> Any:
    """The reduction of all ranks' arrays; of each array of a tree (a dict of gradients)."""
    def one(x: Any) -> Any:
        src = _input(x)
        dst, done = _output(x, tuple(x.shape), src.type)
        c.Allreduce(src, dst, op)
        return done()
    return _each(one, x)


def broadcast(c: Comm, x: Any, root: int = 0) -> Any:
    """The array of rank root, or a tree of arrays. The others give one of the same shape and type."""
    def one(x: Any) -> Any:
        src = _input(x)
        if c.rank == root:
            c.Bcast(src, root)
            return x
        dst, done = _output(x, tuple(x.shape), src.type)
        c.Bcast(dst, root)
        return done()
    return _each(one, x)


def all_gather(c: Comm, x: Any) -> Any:
    """All ranks' arrays, in a new first axis."""
    src = _input(x)
    dst, done = _output(x, (c.size, *x.shape), src.type)
    c.Allgather(src, dst)
    return done()


def reduce_scatter(c: Comm, x: Any, op: Any = SUM) -> Any:
    """This rank's part of the reduction: the first axis is divided between the ranks."""
    shape, src = _divided("reduce_scatter", c, x), _input(x)
    dst, done = _output(x, shape, src.type)
    c.Reduce_scatter_block(src, dst, op)
    return done()


def all_to_all(c: Comm, x: Any) -> Any:
    """Part i of the first axis goes to rank i; what comes is in the order of the ranks."""
    _divided("all_to_all", c, x)
    src = _input(x)
    dst, done = _output(x, tuple(x.shape), src.type)
    c.Alltoall(src, dst)
    return done()


def send(c: Comm, x: Any, dest: int, tag: int = 0) -> None:
    c.Send(_input(x), dest, tag)


def recv(c: Comm, like: Any, source: int, tag: int = 0, status: Optional[Any] = None) -> Any:
    """The next array from a rank, of the shape and type of like."""
    dst, done = _output(like, tuple(like.shape), _input(like).type)
    c.Recv(dst, source, tag, status)
    return done()
