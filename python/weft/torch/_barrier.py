"""monitored_barrier: a barrier that says which ranks did not come.

It goes through the store at which the group met, not through the group: it works, and names the ranks, also while others hang in a
collective of the same group or after one has failed."""

import time
from datetime import timedelta

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from ._group import ProcessGroup


def _seconds(timeout, group):
    if timeout is None:
        return group._ms / 1000
    return timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)


def _here(store, key, until):
    """Waits for a key; False if it is not there in time."""
    left = until - time.monotonic()
    try:
        store.wait([key], timedelta(seconds=max(left, 0.001)))
    except RuntimeError:  # PyTorch 2 has a class of its own for it, below this one
        return False
    return True


def monitored(self, timeout=None, wait_all_ranks=False):
    """The method of a group."""
    if self._members is not None:
        self._agree()
    seconds = _seconds(timeout, self)
    began = time.monotonic()
    until = began + seconds
    self._barriers += 1
    key = f"monitored barrier {self._barriers} "
    store = self._store
    if self._rank != 0:
        store.set(key + str(self._rank), "here")
        # Rank 0 may find out at its very end that a rank is missing, so its word is waited for a little longer.
        reached = f"Rank {self._rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0"
        if not _here(store, key + "0", until + 0.5 + seconds / 10):
            raise RuntimeError(f"{reached}: rank 0 did not come within {seconds * 1000:.0f} ms")
        word = store.get(key + "0").decode()
        if word != "passed":
            raise RuntimeError(f"{reached}: {word}")
        return
    missing = []
    for rank in range(1, self._size):
        if seconds <= 0:
            text = f"Rank 0 timed out in monitoredBarrier after {seconds * 1000:.0f} ms"
            store.set(key + "0", text)
            raise RuntimeError(text)
        if not _here(store, key + str(rank), until):
            missing.append(rank)
            if not wait_all_ranks:
                break
    if not missing:
        store.set(key + "0", "passed")
        return
    ranks = f"Rank {missing[0]}" if not wait_all_ranks else "Ranks " + ", ".join(map(str, missing))
    text = f"{ranks} failed to pass monitoredBarrier in {seconds * 1000:.0f} ms"
    store.set(key + "0", text)
    raise RuntimeError(text)


ProcessGroup.monitored_barrier = monitored


def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    """torch.distributed.monitored_barrier for groups over weft and over Gloo. PyTorch's own refuses all but Gloo."""
    if c10d._rank_not_in_group(group):
        c10d._warn_not_in_group("monitored_barrier")
        return
    pg = c10d._get_default_group() if group is None else group
    if not isinstance(pg, ProcessGroup):
        return _plain(group, timeout, wait_all_ranks)
    pg.monitored_barrier(timeout, wait_all_ranks)


_plain = dist.monitored_barrier


def patch_monitored_barrier():
    """Makes torch.distributed.monitored_barrier this one."""
    dist.monitored_barrier = c10d.monitored_barrier = monitored_barrier
