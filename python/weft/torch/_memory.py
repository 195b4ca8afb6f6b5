"""Tensors in memory that the other ranks see, so that collectives need no copy.

empty makes one. The buckets in which DistributedDataParallel gathers gradients are brought there without being asked for: they
belong to C++, which allocates them, so adopt exchanges the memory below a tensor for some of weft's, in place. All views of the
tensor follow, as they do when PyTorch itself moves a tensor to shared memory (share_memory_).

    tensor, views ──► StorageImpl ──► { data, deleter, owner }  ◄── these three words are exchanged with those of another storage

When the group ends, what is still in use goes back into plain memory by the same exchange."""

import ctypes
import sys
import warnings
import weakref

import torch
import torch.distributed.distributed_c10d as c10d

from . import _native as native

LEAST = 64 << 10  # bytes: below, a copy takes less than it is worth
_WORD = ctypes.sizeof(ctypes.c_void_p)
_blocks = {}  # address of the memory to _Block
_seen = {}    # address and size of tensors that were reduced, to how often


class _Block:
    """A piece of weft's memory that a storage of PyTorch owns."""

    def __init__(self, root, pointer, size):
        self.root, self.pointer, self.size, self.storage = root, pointer, size, 0


def _storage(t):
    return t.untyped_storage() if hasattr(t, "untyped_storage") else t.storage()._storage


def _words(storage):
    """The three words of a storage that say where its memory is; None if they are not where they are expected.

    They are found by what they hold: the address, a function, the owner, a device and the length."""
    at, size = storage.data_ptr(), storage.nbytes()
    head = (ctypes.c_uint64 * 10).from_address(storage._cdata)
    for i in range(1, 5):
        if head[i] == at and head[i + 4] == size:
            return (ctypes.c_uint64 * 3).from_address(storage._cdata + i * _WORD)
    return None


def _exchange(a, b):
    x, y = list(a), list(b)
    a[:], b[:] = y, x


def _take(root, size):
    """A tensor of bytes over memory of weft, and its block."""
    pointer = native.alloc(root._comm, size)
    buffer = (ctypes.c_char * size).from_address(pointer)  # what PyTorch holds: when it lets go, the piece is freed
    block = _Block(root, pointer, size)
    _blocks[pointer] = block
    weakref.finalize(buffer, _give_back, pointer).atexit = False
    t = torch.frombuffer(buffer, dtype=torch.uint8)
    block.storage = _storage(t)._cdata
    return t, block


def _give_back(pointer):
    block = _blocks.pop(pointer, None)
    if block is not None and block.root._comm:
        try:
            native.free(block.root._comm, pointer)
        except native.Refused:
            pass  # the group has ended: so has the memory


def _asker():
    """A function that says whether this thread is in a backward pass, by asking PyTorch."""
    task = getattr(torch._C, "_current_graph_task_id", None)
    if task is not None:
        return lambda: task() != -1
    try:  # PyTorch 1 tells C++ alone
        with open("/proc/self/maps") as f:
            path = next(line.split()[-1] for line in f if "libtorch_cpu" in line)
        info = ctypes.PyDLL(path)["_ZN5torch8autograd32get_current_graph_task_exec_infoEv"]
    except (OSError, StopIteration, AttributeError) as e:
        warnings.warn(f"weft.torch cannot ask this PyTorch whether a backward pass is under way ({e}); calls without gradients take a millisecond more")
        return _can_queue
    info.argtypes, info.restype = (), ctypes.c_void_p
    return lambda: info() is not None


def _can_queue():
    """The same by trying what is allowed in a backward pass alone."""
    if torch.is_grad_enabled():
        return False
    try:
        torch.autograd.Variable._execution_engine.queue_callback(lambda: None)
    except RuntimeError:
        return False
    return True


in_backward = _asker()


def of_cpp(tensors):
    """Whether Python holds the tensor of a list there alone: C++ made the list."""
    return sys.getrefcount(tensors[0]) <= 2


def adopt(group, t):
    """Brings the memory of a bucket of gradients where the other ranks see it, once it has been seen before: buckets are made anew
    after the first step. A tensor that Python holds is none: an array of NumPy may lie in its memory."""
    size = t.numel() * t.element_size()
    if size < LEAST or not group._shared or not in_backward():
        return
    at = t.data_ptr()
    if at in _blocks:
        return
    if _seen.get((at, size)) is None:
        if len(_seen) > 1000:
            _seen.clear()
        _seen[at, size] = True
        return
    del _seen[at, size]
    storage = _storage(t)
    if storage.nbytes() != size or storage.data_ptr() != at:
        return
    mine = _words(storage)
    if mine is None or mine[2] != at:  # its owner is another than PyTorch's plain allocator
        return
    try:
        other, block = _take(group._root(), size)
    except native.Refused:
        return  # no more room: it stays where it is
    theirs = _words(_storage(other))
    if theirs is None:
        return
    ctypes.memmove(block.pointer, at, size)
    _exchange(mine, theirs)
    block.storage = storage._cdata


def leave(group):
    """Brings what is still used of a group's memory back into plain memory: the group ends."""
    for block in [b for b in _blocks.values() if b.root is group]:
        plain = torch.empty(block.size, dtype=torch.uint8)
        storage = _storage(plain)
        mine = _words(storage)
        head = (ctypes.c_uint64 * 10).from_address(block.storage)
        at = next((i for i in range(1, 5) if head[i] == block.pointer), None)
        if mine is None or at is None:
            continue
        ctypes.memmove(plain.data_ptr(), block.pointer, block.size)
        _exchange(mine, (ctypes.c_uint64 * 3).from_address(block.storage + at * _WORD))
        del plain, storage


def empty(*size, dtype=None, group=None):
    """A tensor in memory that the other ranks of a group see. Collectives on it take no copy between processes of a host.

    An array of NumPy that shares it must not be used once the group has ended; the tensor itself may."""
    group = c10d._get_default_group() if group is None else group
    dtype = torch.get_default_dtype() if dtype is None else dtype
    shape = torch.Size(size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
    n = shape.numel()
    if n == 0:
        return torch.empty(shape, dtype=dtype)
    t, _ = _take(group._root(), n * torch.empty(0, dtype=dtype).element_size())
    return t.view(dtype).view(shape)


def is_registered(t):
    """Whether a tensor lies in memory that the other ranks see."""
    at = t.data_ptr()
    return any(b.pointer <= at < b.pointer + b.size for b in list(_blocks.values()))
