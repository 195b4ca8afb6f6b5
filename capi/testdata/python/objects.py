"""The calls on objects, on weft or on mpi4py: what each gives is printed, a line per call."""

import operator
import sys

if sys.argv[1] == "mpi4py":
    from mpi4py import MPI
    c, SUM, MAX, status = MPI.COMM_WORLD, MPI.SUM, MPI.MAX, MPI.Status()
else:
    import weft
    c, SUM, MAX, status = weft.join(), weft.SUM, weft.MAX, weft.Status()

rank, size = c.Get_rank(), c.Get_size()
root, right, left = size - 1, (rank + 1) % size, (rank - 1) % size


def say(what, value):
    sys.stdout.write(f"{rank} {what} {value!r}\n")


mine = {"rank": rank, "text": "x" * rank, "list": [rank] * rank}
say("bcast", c.bcast(mine if rank == root else None, root=root))
say("bcast of None", c.bcast(None))
say("allgather", c.allgather(mine))
say("gather", c.gather(mine, root=root))
say("scatter", c.scatter([("for", r, "y" * 1000 * r) for r in range(size)] if rank == root else None, root=root)[:2])
say("alltoall", c.alltoall([(rank, r) * r for r in range(size)]))
say("allreduce", c.allreduce(rank + 0.5))
say("allreduce of lists", c.allreduce([rank]))
say("allreduce max", c.allreduce((rank % 2, str(rank)), op=MAX))
say("reduce", c.reduce([rank], op=SUM, root=root))
say("scan", c.scan(str(rank)))
say("exscan", c.exscan(str(rank)))
say("sendrecv", c.sendrecv({"from": rank}, dest=right, source=left))
if rank == 0:
    for r in range(1, size):
        c.send(("hello", r), dest=r, tag=r)
    say("recv", sorted(c.recv(source=r, tag=7) for r in range(1, size)))
else:
    say("recv", c.recv(source=0, tag=rank, status=status))
    say("status", (status.Get_source(), status.Get_tag()))
    c.isend(rank * rank, dest=0, tag=7).wait()
request = c.isend([rank], dest=right, tag=3)
say("irecv", c.irecv(source=left, tag=3).wait())
request.wait()
if sys.argv[1] != "mpi4py":
    # A rank whose object cannot be sent does not leave the others waiting, and the next call works.
    wrong = (lambda: None) if rank == root else rank
    for name, call in {"bcast": lambda: c.bcast(wrong, root=root), "gather": lambda: c.gather(wrong, root=0), "allgather": lambda: c.allgather(wrong),
                       "scatter": lambda: c.scatter([1] * (size + 1), root=root), "alltoall": lambda: c.alltoall([wrong] * size)}.items():
        try:
            call()
            say("function", f"{name} passed")
            sys.exit(f"{name} of a function passed")
        except Exception as e:
            say("function", f"{name}: {type(e).__name__}: {e}")
    say("function", c.allreduce([rank], op=lambda a, b: b + a))
    say("product", c.allreduce(rank + 1, op=operator.mul))
    c.close()
