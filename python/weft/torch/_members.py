"""Which ranks a group has, agreed on before it forms.

PyTorch numbers groups by how many a process has made, and keeps the keys of each in a part of the store by that number. Ranks that
call new_group with different lists would meet there and compute each other's results. So the list is part of every key by which a
group forms, and the first rank to come writes its own down. A rank with another list says so, with both lists.

Not all ranks can raise in new_group: it ends with a barrier of all ranks, at which those that came first would wait for one that
raised until the time limit. So a group whose members disagree is made, works nowhere, and its first call raises on every rank.
"""

import hashlib
import time
from datetime import timedelta

_LOOK = 0.1  # seconds between two looks whether somebody disagrees


class Disagreement(Exception):
    """Its text has both lists."""


class Members:
    """The members of a group that is being made. meeting names the ranks' Join, so that keys of an earlier one do not count."""

    def __init__(self, store, ranks, rank, timeout, meeting=""):
        self._store, self._ranks, self._rank = store, list(ranks), rank
        self._seconds = timeout.total_seconds()
        self._base = f"weft {_digest(meeting)} "
        self._own = f"{self._base}{_digest(str(self._ranks))} "
        self._round = 0

    def agree(self):
        """Compares the own list with that of the first rank that came."""
        mine = f"{self._ranks[self._rank]} {self._ranks}"
        if self._store.add(self._base + "lists", 1) == 1:
            self._store.set(self._base + "list", mine)
        rank, _, first = self._store.get(self._base + "list").decode().partition(" ")
        if first != str(self._ranks):
            self._store.set(self._base + "why", f"new_group: rank {rank} calls it with ranks {first}, rank {self._ranks[self._rank]} with "
                            f"{self._ranks}; all ranks must call it with the same list, in the same order of groups")
            self._store.add(self._base + "differ", 1)
            self.check()

    def check(self):
        """Raises if a rank is known to have another list."""
        if self._store.add(self._base + "differ", 0):
            raise Disagreement(self._store.get(self._base + "why").decode())

    def gather(self, mine):
        """Gives every member what all said: they say it to the first, which tells all. Twice, under keys of their own."""
        key = f"{self._own}{self._round} "
        self._round += 1
        if self._rank:
            self._store.set(key + str(self._rank), mine or b"-")
            told = self._get(key + "0")
            return told if mine else b""
        said = [mine] + [self._get(key + str(r)) for r in range(1, len(self._ranks))]
        self._store.set(key + "0", b"".join(said) if mine else b"-")
        return b"".join(said) if mine else b""

    def _get(self, key):
        """What a member says, unless a rank turns out to disagree: then the member may never come."""
        end = time.monotonic() + self._seconds
        while True:
            left = end - time.monotonic()
            try:
                self._store.wait([key], timedelta(seconds=max(min(left, _LOOK), 0.001)))
                return self._store.get(key)
            except RuntimeError:
                self.check()
                if left <= 0:
                    raise


def _digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]
