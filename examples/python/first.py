"""The first program: every rank gives its number, and all have the sum.

    make lib
    PYTHONPATH=python weft run -n 4 -- python3 examples/python/first.py
"""
import array

import weft

with weft.join() as c:
    x = array.array("d", [c.rank, 1.0])  # or a numpy array, a torch tensor: anything that has memory
    c.all_reduce(x)
    print(f"rank {c.rank} of {c.size}: the sum of all ranks' numbers is {x[0]:g}")

    r = c.Iallreduce(weft.IN_PLACE, x, "max")  # goes on while this rank computes
    r.wait()

    if c.rank:
        c.Send(array.array("i", [10 * c.rank]), dest=0, tag=7)
    else:
        got, status = array.array("i", [0]), weft.Status()
        for _ in range(c.size - 1):
            c.Recv(got, weft.ANY_SOURCE, 7, status)
            print(f"rank 0: rank {status.source} sent {got[0]}")
    c.barrier()
