"""Which ranks have come to a meeting, and which of them have ended since.

Every rank leaves in the store which process it is, before it meets the others. Who waits for a rank looks there: one on the same
host whose process is gone is known at once; who left nothing never came."""

import os


def put(store, key, value):
    """Leaves a value for those that ask whether it is there: a store's wait with a limit of its own leaves PyTorch 1.13's connection
    out of step when the limit passes."""
    store.set(key, value)
    store.add(key + " there", 1)


def there(store, key):
    return store.add(key + " there", 0) > 0


def _here():
    """What the numbers of processes are counted in: this boot of this machine, and the container."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as f:
            return f"{f.read().strip()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def _began(pid):
    """When a process began, by the kernel's clock; "" if it has ended."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


class Presence:
    """The ranks of one meeting, by its store."""

    def __init__(self, store, rank):
        self._store = store
        self._place, self._marks = _here(), {}
        self.others = lambda: []  # ranks that died on other hosts, once there is a group of all ranks
        put(store, f"weft rank {rank}", f"{self._place} {os.getpid()} {_began(os.getpid())}")

    def _mark(self, rank):
        key = f"weft rank {rank}"
        if rank not in self._marks and there(self._store, key):
            self._marks[rank] = self._store.get(key).decode().split(" ")
        return self._marks.get(rank)

    def remember(self, rank):
        """Asks who a rank is, for the time when the store cannot be asked."""
        self._mark(rank)

    def known(self):
        """The ranks that the store need not be asked for."""
        return list(self._marks)

    def ended(self, ranks):
        """Those that died: rank to how. Of this host's ranks the processes tell, of others the group of all ranks."""
        found = {r: "its host or its process is gone" for r in self.others() if r in ranks}
        for r in ranks:
            mark = self._mark(r)
            if mark and self._place and mark[0] == self._place and _began(mark[1]) != mark[2]:
                found[r] = f"process {mark[1]} ended"
        return found

    def missing(self, ranks):
        """Those that never came."""
        return [r for r in ranks if self._mark(r) is None]
