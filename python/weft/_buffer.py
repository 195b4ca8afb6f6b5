"""Where the memory of a buffer lies: anything with __array_interface__, __cuda_array_interface__, __dlpack__, or Python's own buffer
protocol."""

import ctypes
import struct

from ._lib import dtype

CPU, CUDA, PINNED = 1, 2, 3

_names = {
    "int8": dtype(0, 8), "int16": dtype(0, 16), "int32": dtype(0, 32), "int64": dtype(0, 64),
    "uint8": dtype(1, 8), "uint16": dtype(1, 16), "uint32": dtype(1, 32), "uint64": dtype(1, 64),
    "float16": dtype(2, 16), "float32": dtype(2, 32), "float64": dtype(2, 64), "bfloat16": dtype(4, 16),
    "complex64": dtype(5, 64), "complex128": dtype(5, 128), "bool": dtype(6, 8),
    "float8_e4m3": dtype(10, 8), "float8_e4m3fn": dtype(10, 8), "float8_e5m2": dtype(12, 8),
}
_kinds = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_formats = {"?": 6, "b": 0, "h": 0, "i": 0, "l": 0, "q": 0, "n": 0, "B": 1, "H": 1, "I": 1, "L": 1, "Q": 1, "N": 1, "c": 1, "e": 2, "f": 2, "d": 2}


class Buffer:
    """Memory of elements in a row."""

    __slots__ = ("pointer", "count", "type", "device", "device_id", "stream", "keep")

    def __init__(self, pointer, count, type, device=CPU, device_id=0, stream=None, keep=None):
        self.pointer, self.count, self.type, self.device, self.device_id, self.stream, self.keep = pointer, count, type, device, device_id, stream, keep

    @property
    def itemsize(self):
        return max(1, (self.type >> 8) // 8)


def type_of(name):
    """The number of an element type, from its name, such as float32, or from a numpy or torch dtype."""
    if isinstance(name, int):
        return name
    text = str(getattr(name, "name", name)).removeprefix("torch.")
    try:
        return _names[text]
    except KeyError:
        raise TypeError(f"element type {text!r} is none that weft has; known: {', '.join(sorted(_names))}") from None


def of(x, writable=True):
    """The memory of x. The elements must lie in a row; nothing is copied."""
    if isinstance(x, Buffer):
        return x
    a = getattr(x, "__array_interface__", None)
    if a is not None:
        return _interface(x, a, CPU, writable)
    try:
        a = getattr(x, "__cuda_array_interface__", None)
    except Exception:  # JAX up to 0.4.24 raises a RuntimeError for arrays of the CPU
        a = None
    if a is not None:
        return _interface(x, a, CUDA, writable)
    if hasattr(x, "__dlpack__"):
        return _dlpack(x, writable)
    try:
        m = memoryview(x)
    except TypeError:
        raise TypeError(f"{type(x).__name__} is no buffer: it has none of __array_interface__, __cuda_array_interface__, __dlpack__ and the buffer protocol") from None
    return _view(x, m, writable)


def _interface(x, a, device, writable):
    kind, size = a["typestr"][1], int(a["typestr"][2:])
    if kind not in _kinds or a["typestr"][0] == ">":
        raise TypeError(f"elements of type {a['typestr']!r} cannot be sent: weft has integers, floats, complex numbers and truth values in the machine's byte order")
    count = 1
    for n in a["shape"]:
        count *= n
    strides = a.get("strides")
    if strides is not None and count > 1:
        want = size
        for n, s in zip(reversed(a["shape"]), reversed(strides)):
            if n != 1 and s != want:
                raise ValueError("the elements of the buffer do not lie in a row: make a contiguous copy first")
            want *= n
    pointer, readonly = a["data"] if a.get("data") else (None, False)
    if pointer is None and count:
        return _view(x, memoryview(x), writable)
    if readonly and writable and count:
        raise ValueError("the buffer is read-only")
    return Buffer(pointer, count, dtype(_kinds[kind], size * 8), device, 0, a.get("stream"), x)


def _view(x, m, writable):
    if not m.c_contiguous:
        raise ValueError("the elements of the buffer do not lie in a row: make a contiguous copy first")
    if writable and m.readonly:
        raise ValueError("the buffer is read-only")
    code = _formats.get(m.format.lstrip("@=<"))
    if code is None or m.format[0] in ">!":
        raise TypeError(f"elements of format {m.format!r} cannot be sent")
    n = m.nbytes
    if n == 0:
        return Buffer(None, 0, dtype(code, m.itemsize * 8), keep=x)
    if m.readonly:
        # ctypes gives no address of read-only memory; the bytes object itself is where they lie.
        data = m.obj if isinstance(m.obj, bytes) and len(m.obj) == n else bytes(m)
        p = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value
        return Buffer(p, n // m.itemsize, dtype(code, m.itemsize * 8), keep=(x, data))
    hold = (ctypes.c_char * n).from_buffer(m.cast("B"))
    return Buffer(ctypes.addressof(hold), n // m.itemsize, dtype(code, m.itemsize * 8), keep=(x, hold))


# DLPack: the structure DLTensor, behind a header or before a trailer.
_api = ctypes.pythonapi
_api.PyCapsule_IsValid.argtypes, _api.PyCapsule_IsValid.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int
_api.PyCapsule_GetPointer.argtypes, _api.PyCapsule_GetPointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
_api.PyCapsule_SetName.argtypes, _api.PyCapsule_SetName.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int
_deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_used = {b"dltensor": b"used_dltensor", b"dltensor_versioned": b"used_dltensor_versioned"}


class _Managed:
    """A tensor that was taken over: it is given back once."""

    def __init__(self, pointer, deleter):
        self.pointer, self.deleter = pointer, deleter

    def __del__(self):
        if self.deleter:
            _deleter(self.deleter)(self.pointer)
            self.deleter = None


def _dlpack(x, writable):
    device, device_id = x.__dlpack_device__() if hasattr(x, "__dlpack_device__") else (CPU, 0)
    device = int(device)
    stream = {"stream": 1} if device == CUDA else {}
    try:
        capsule = x.__dlpack__(max_version=(1, 0), **stream)  # that says whether it may be written
    except TypeError:  # it knows no versions
        capsule = x.__dlpack__(**stream)
    for name in _used:
        if _api.PyCapsule_IsValid(capsule, name):
            break
    else:
        raise TypeError(f"__dlpack__ of {type(x).__name__} gave no tensor that was not taken already")
    p = _api.PyCapsule_GetPointer(capsule, name)
    if name == b"dltensor":
        tensor = p
        (deleter,) = struct.unpack("P", ctypes.string_at(p + 56, 8))
    else:
        major, minor, _, deleter, flags = struct.unpack("IIPPQ", ctypes.string_at(p, 32))
        if major > 1:
            raise TypeError(f"DLPack version {major}.{minor} of {type(x).__name__}: this package knows version 1")
        if writable and flags & 1:
            raise ValueError("the buffer is read-only")
        tensor = p + 32
    _api.PyCapsule_SetName(capsule, _used[name])
    keep = (x, _Managed(p, deleter))
    data, kind, device_id, ndim, code, bits, lanes, shape, strides, offset = struct.unpack("PiiiBBHPPQ", ctypes.string_at(tensor, 48))
    if lanes != 1:
        raise TypeError(f"elements of {lanes} lanes cannot be sent")
    shape = struct.unpack(f"{ndim}q", ctypes.string_at(shape, 8 * ndim)) if ndim else ()
    count = 1
    for n in shape:
        count *= n
    if strides and count > 1:
        want = 1
        for n, s in zip(reversed(shape), reversed(struct.unpack(f"{ndim}q", ctypes.string_at(strides, 8 * ndim)))):
            if n != 1 and s != want:
                raise ValueError("the elements of the buffer do not lie in a row: make a contiguous copy first")
            want *= n
    return Buffer((data or 0) + offset, count, dtype(code, bits), kind, device_id, None, keep)
