"""A caller whose types are checked: mypy must object to the lines that say so, and to no other."""
from typing import Optional

import weft


def work(seconds: Optional[float] = None) -> int:
    with weft.join(timeout=seconds) as c:
        x = bytearray(8 * c.size)
        c.all_reduce(x, weft.SUM)
        c.all_reduce(x, "max", 3)  # wrong: too many
        r: weft.Request = c.Iallreduce(weft.IN_PLACE, x)
        r.wait(timeout=1.5)
        r.wait("soon")  # wrong: no number
        total: int = c.allreduce(c.rank)
        c.rank.join()  # wrong: an int has none
        c.handle = 3  # wrong: read-only
        part: Optional[weft.Comm] = c.split(c.rank % 2)
        return total if part is None else part.size


version: str = weft.__version__
