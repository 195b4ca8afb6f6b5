"""Pages of KV caches in tensors: bytes of a block, in and out.

A tensor is torch's, on the CPU or a GPU, or anything contiguous with the buffer protocol and a shape. Where the blocks are is seen from
its shape: (2, blocks, ...) with keys and values apart, or (blocks, 2, ...) together, as vLLM's attention back ends have it.
"""


def block_axis(shape, blocks=None):
    """Which axis counts blocks."""
    if blocks is not None:
        for axis in (0, 1):
            if axis < len(shape) and shape[axis] == blocks:
                return axis
        raise ValueError("a cache of shape %s has no axis of %d blocks" % (tuple(shape), blocks))
    return 1 if len(shape) > 1 and shape[0] == 2 else 0


def _bytes_of(tensor):
    """The memory of a tensor on the CPU, to write to."""
    if hasattr(tensor, "data_ptr"):
        import ctypes

        if not tensor.is_contiguous():
            raise ValueError("a cache that is not contiguous")
        return memoryview((ctypes.c_char * (tensor.numel() * tensor.element_size())).from_address(tensor.data_ptr())).cast("B")
    return memoryview(tensor).cast("B")


def _on_gpu(tensor):
    return getattr(getattr(tensor, "device", None), "type", "cpu") != "cpu"


def _by_torch(tensor):
    """Whether torch has to move the bytes: out of a GPU, or of a tensor whose bytes do not follow one another (HND behind NHD)."""
    return _on_gpu(tensor) or hasattr(tensor, "data_ptr") and not tensor.is_contiguous()


def _spans(shape, size, axis, block):
    """Where a block's bytes are in a contiguous tensor of that size."""
    outer = 1
    for n in shape[:axis]:
        outer *= n
    step = size // outer
    run = step // shape[axis]
    return [(o * step + block * run, run) for o in range(outer)]


def read(tensor, block, axis):
    """The bytes of a block."""
    if _by_torch(tensor):
        return bytes(_bytes_of(tensor.select(axis, block).contiguous().cpu()))
    view = _bytes_of(tensor)
    return b"".join(view[at : at + n] for at, n in _spans(tensor.shape, len(view), axis, block))


def size(tensor, axis):
    """The number of bytes of a block."""
    n = tensor.numel() * tensor.element_size() if hasattr(tensor, "data_ptr") else memoryview(tensor).nbytes
    return n // tensor.shape[axis]


def write(tensor, block, axis, data):
    """Fills a block."""
    if _by_torch(tensor):
        import torch

        page = tensor.select(axis, block)
        page.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8).view(tensor.dtype).view(page.shape))
        return
    view = _bytes_of(tensor)
    done = 0
    for at, n in _spans(tensor.shape, len(view), axis, block):
        view[at : at + n] = data[done : done + n]
        done += n
