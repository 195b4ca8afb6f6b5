"""Pages of KV caches in tensors: bytes of a block, in and out.

A tensor is torch's, on the CPU or a GPU, or anything contiguous with the buffer protocol and a shape. The engine says what its axes are, or
the shape shows it: (2, pages, ...) with keys and values apart, or (pages, 2, ...) together, as earlier attention back ends of vLLM have it.
"""

import math


class Layout:
    """Where the blocks of a cache are.

    A kernel may take smaller blocks than the scheduler counts: then the tensor has ratio pages for each block, and block b is the pages from
    b * ratio on. The bytes of a block are those of its keys, then those of its values, each in the order of pages, so that engines whose kernels
    take different blocks read one another's. Where tokens are not the outermost of a page that cannot be, and odd says what the order is.

    With order "BHNC", which is vLLM's since it names its layouts, a tensor is (pages, heads, tokens, content) whatever its strides are, and a
    block's bytes are those of its tokens, each with all heads: (tokens, heads, content).
    """

    ORDERS = ("", "NHD", "HND", "BHNC")

    def __init__(self, shape, blocks, tokens, heads=0, order=""):
        """heads: how many the rank has, 0 if that is not known. order: what the engine says of the axes, one of ORDERS."""
        if order not in self.ORDERS:
            raise ValueError("layout %r; known: %s" % (order, ", ".join(self.ORDERS[1:])))
        self.shape, self.tokens, self.named = tuple(shape), tokens, order == "BHNC"
        if self.named:
            self._by_name(blocks, heads)
        else:
            self._by_shape(blocks, heads, order)

    def _by_name(self, blocks, heads):
        n = self.shape[0] // (blocks or self.shape[0]) if len(self.shape) == 4 else 0
        if not n or blocks and self.shape[0] % blocks or self.tokens % n or self.shape[2] != self.tokens // n:
            raise ValueError(
                "a cache of shape %s: want (pages, heads, tokens, content) with a whole number of pages for each of %s blocks of %d tokens"
                % (self.shape, "its" if blocks is None else blocks, self.tokens)
            )
        self.axis, self.ratio, self.paired, self.odd = 0, n, False, "nhc"
        self.whole, self.run = self.shape[1] == heads, self.shape[1] * self.shape[3]

    def _by_shape(self, blocks, heads, order):
        tokens = self.tokens
        fits = [f for f in (self._fit(axis, blocks) for axis in (0, 1)) if f]
        if len(fits) != 1:
            raise ValueError(
                "a cache of shape %s: %s for %s blocks of %d tokens; want (pages, ...) or (2, pages, ...) with a whole number of pages for each block and the tokens of a page behind them"
                % (self.shape, "two axes could count pages" if fits else "no axis counts pages", "an unknown number of" if blocks is None else blocks, tokens)
            )
        self.axis, self.ratio = fits[0]
        page = tokens // self.ratio
        rest = self.shape[self.axis + 1 :]
        # Keys and values of a page beside each other.
        self.paired = self.axis == 0 and len(rest) > 2 and rest[0] == 2 and page in rest[1:]
        if self.paired:
            rest = rest[1:]
        both = self.paired or self.axis == 1
        first = bool(rest) and rest[0] == page
        if first and len(rest) > 2 and rest[1] == page:
            if not order:
                raise ValueError(
                    "a cache of shape %s: %d tokens and %d heads in a page could be in either order; say which by \"layout\": \"NHD\" or \"HND\" in the connector's extra configuration"
                    % (self.shape, page, page)
                )
            first = order == "NHD"
        # Where the heads are: behind the tokens of a page, or before them.
        inner = rest[1:] if first else rest
        self.whole = bool(heads and inner) and inner[0] in (heads, math.prod(inner)) and (first or page in inner)
        self.run = math.prod(inner)
        names = ["heads" if self.whole and len(inner) > 1 and i == len(rest) - len(inner) else str(n) for i, n in enumerate(rest)]
        self.odd = "" if first and (both or len(rest) == 2) else "%s%dx%s" % ("2x" if both else "", self.ratio, "x".join(names))

    def width(self, tensor):
        """The bytes of one run of all heads, as Shards cuts it."""
        return self.run * (tensor.element_size() if hasattr(tensor, "data_ptr") else memoryview(tensor).itemsize)

    def _fit(self, axis, blocks):
        """The axis and its pages of a block, if that axis can be the one that counts pages."""
        if axis >= len(self.shape) or axis == 1 and self.shape[0] != 2:
            return None
        rest = self.shape[axis + 1 :]
        if blocks is None:  # one page for each, if all tokens of a block are in it; keys and values come first
            return (axis, 1) if self.tokens in rest and (axis == 1) == (self.shape[0] == 2) else None
        if blocks < 1 or self.shape[axis] % blocks:
            return None
        ratio = self.shape[axis] // blocks
        if ratio == 1 or ratio > 1 and self.tokens % ratio == 0 and self.tokens // ratio in rest:
            return axis, ratio
        return None

    def blocks(self):
        return self.shape[self.axis] // self.ratio

    def size(self, tensor):
        """The number of bytes of a block."""
        n = tensor.numel() * tensor.element_size() if hasattr(tensor, "data_ptr") else memoryview(tensor).nbytes
        return n // self.blocks()

    def _view(self, tensor, block):
        """The pages of a block as torch has them, in the order of the bytes."""
        pages = tensor.narrow(self.axis, block * self.ratio, self.ratio)
        if self.named:
            return pages.transpose(1, 2)
        return pages.transpose(0, 1) if self.paired else pages

    def _spans(self, size, block):
        """Where the bytes of a block are in a contiguous tensor of that size."""
        pages, first = self.shape[self.axis], block * self.ratio
        if self.named:
            _, heads, tokens, _ = self.shape
            n = size // pages // heads // tokens
            return [((p * heads + h) * tokens * n + t * n, n) for p in range(first, first + self.ratio) for t in range(tokens) for h in range(heads)]
        if self.paired:
            half = size // pages // 2
            return [((first + p) * 2 * half + k * half, half) for k in range(2) for p in range(self.ratio)]
        outer = self.shape[0] if self.axis else 1
        step, run = size // outer, size // outer // pages
        return [(o * step + first * run, run * self.ratio) for o in range(outer)]

    def _by_torch(self, tensor):
        """Whether torch has to move the bytes: out of a GPU, or of a tensor whose bytes do not follow one another (HND behind NHD)."""
        return _on_gpu(tensor) or hasattr(tensor, "data_ptr") and (self.named or not tensor.is_contiguous())

    def read(self, tensor, block):
        """The bytes of a block."""
        if self._by_torch(tensor):
            return bytes(_bytes_of(self._view(tensor, block).contiguous().cpu()))
        view = _bytes_of(tensor)
        return b"".join(view[at : at + n] for at, n in self._spans(len(view), block))

    def write(self, tensor, block, data):
        """Fills a block."""
        if self._by_torch(tensor):
            import torch

            pages = self._view(tensor, block)
            pages.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8).view(tensor.dtype).view(pages.shape))
            return
        view = _bytes_of(tensor)
        done = 0
        for at, n in self._spans(len(view), block):
            view[at : at + n] = data[done : done + n]
            done += n


class Copies:
    """Copies of some of a tensor's blocks.

    On a GPU they are made by a stream of their own, behind what was queued before, so that nothing waits for them: neither the host nor the next
    layer. What is queued after order begins when they are done, so the blocks may be overwritten then. Elsewhere they are made at once.
    """

    _streams = {}

    def __init__(self, layout, tensor, blocks):
        self.done = None
        if not _on_gpu(tensor):
            self.pages = {b: layout.read(tensor, b) for b in blocks}
            return
        import torch

        self.device = tensor.device
        if self.device not in self._streams:
            self._streams[self.device] = torch.cuda.Stream(self.device)
        side = self._streams[self.device]
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            self.pages = {}
            for b in blocks:
                page = layout._view(tensor, b).contiguous()
                self.pages[b] = torch.empty(page.shape, dtype=page.dtype, pin_memory=True)
                self.pages[b].copy_(page, non_blocking=True)
            self.done = side.record_event()

    def order(self):
        """Lets the device's current stream wait for the copies."""
        if self.done is not None:
            import torch

            torch.cuda.current_stream(self.device).wait_event(self.done)

    def bytes(self, block):
        """The bytes of a block; it waits until they are there."""
        if self.done is None:
            return self.pages[block]
        self.done.synchronize()
        return bytes(_bytes_of(self.pages[block]))


def _bytes_of(tensor):
    """The memory of a tensor on the CPU, to write to."""
    if hasattr(tensor, "data_ptr"):
        import ctypes

        if not tensor.is_contiguous():
            raise ValueError("a cache that is not contiguous")
        memory = (ctypes.c_char * (tensor.numel() * tensor.element_size())).from_address(tensor.data_ptr())
        memory.tensor = tensor  # which stays as long as somebody looks at its bytes
        return memoryview(memory).cast("B")
    return memoryview(tensor).cast("B")


def _on_gpu(tensor):
    return getattr(getattr(tensor, "device", None), "type", "cpu") != "cpu"
