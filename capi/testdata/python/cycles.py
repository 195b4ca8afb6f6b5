"""Groups are made and closed CYCLES times: nothing may grow."""
import array, os
import weft

def state():
    with open("/proc/self/status") as f:
        s = dict(line.split(":", 1) for line in f)
    return len(os.listdir("/proc/self/fd")), int(s["Threads"]), int(s["VmRSS"].split()[0]) >> 10, int(s["VmSize"].split()[0]) >> 20

c = weft.join()
def split():
    sub = c.split(0, c.rank)
    sub.all_reduce(array.array("i", [1] * 100))
    sub.Iallreduce(weft.IN_PLACE, array.array("i", [1])).wait()
    sub.close()
def message():
    sub = c.dup()
    if sub.rank: sub.Send(array.array("i", [1]), 0, 1)
    else:
        for _ in range(sub.size - 1): sub.Recv(array.array("i", [1]), weft.ANY_SOURCE, 1)
    sub.barrier()
    sub.close()
def join():
    d = weft.join(rank=0, size=1)
    d.all_reduce(array.array("i", [1]))
    d.alloc(1 << 16)
    d.close()
n = int(os.environ.get("CYCLES", "1000"))
for name, what, times in (("split", split, n), ("message", message, n), ("join", join, n)):
    for _ in range(times // 5): what()
    c.barrier()
    before = state()
    for _ in range(times - times // 5): what()
    c.barrier()
    after = state()
    print(name, "fds, threads, MiB resident, GiB mapped:", before, after)
    assert after[0] <= before[0] + 4, "files"
    assert after[1] <= before[1] + 6, "threads"
    assert after[2] <= before[2] + 24, "memory"
    assert after[3] <= before[3] + 64, "mapped"
c.close()
print("well")
