"""Which type, reduction and device of weft stands for which of PyTorch."""

import torch
from torch.distributed import ReduceOp


def _type(code, bits):
    return code | bits << 8


_NAMES = {
    "int8": (0, 8), "int16": (0, 16), "int32": (0, 32), "int64": (0, 64),
    "uint8": (1, 8), "uint16": (1, 16), "uint32": (1, 32), "uint64": (1, 64),
    "float16": (2, 16), "float32": (2, 32), "float64": (2, 64), "bfloat16": (4, 16),
    "complex64": (5, 64), "complex128": (5, 128), "bool": (6, 8),
    "float8_e4m3fn": (10, 8), "float8_e5m2": (12, 8),
}

#: weft's number of a torch.dtype, as DLPack counts them.
TYPES = {getattr(torch, name): _type(*code) for name, code in _NAMES.items() if hasattr(torch, name)}

BYTE = TYPES[torch.uint8]

_OPS = {"SUM": 1, "PRODUCT": 2, "MIN": 3, "MAX": 4, "AVG": 5, "PREMUL_SUM": 6, "BAND": 7, "BOR": 8, "BXOR": 9}
_RED = ReduceOp.RedOpType.__members__
_BY_TYPE = {value: _OPS[name] for name, value in _RED.items() if name in _OPS}
SUM, PREMUL_SUM = _OPS["SUM"], _OPS["PREMUL_SUM"]


def reduction(op):
    """weft's number of a ReduceOp, and the factor of PREMUL_SUM."""
    kind = getattr(op, "op", op)
    number = _BY_TYPE.get(kind)
    if number is None:
        raise ValueError(f"reduction {op} is none that weft has; it has {', '.join(_OPS)}")
    if number != PREMUL_SUM:
        return number, 0.0
    state = op.__getstate__() if hasattr(op, "__getstate__") else None
    factor = state[1] if isinstance(state, tuple) and len(state) > 1 else None
    if isinstance(factor, torch.Tensor):
        factor = factor.item()
    if factor is None:
        raise ValueError("PREMUL_SUM without a factor: make it with torch.distributed._make_nccl_premul_sum(factor)")
    return number, float(factor)
