"""Which ranks a group has, agreed on before it forms.

PyTorch numbers groups by how many a process has made, and keeps the keys of each in a part of the store by that number. Ranks that
call new_group with different lists would meet there and compute each other's results. So the list is part of every key by which a
group forms, and the first rank to come writes its own down. A rank with another list says so, with both lists.

Not all ranks can raise in new_group: it ends with a barrier of all ranks, at which those that came first would wait for one that
raised until the time limit. So a group whose members disagree is made, works nowhere, and its first call raises on every rank.
"""

import hashlib
import time

from . import _native as native
from ._present import put, there
from ._work import Error

_LOOK = 0.1  # seconds between two looks whether somebody disagrees, has died, or pressed Ctrl-C


def gone(what, presence, ranks):
    """Raises if one of the ranks is known to have ended."""
    ended = presence.ended(ranks) if presence is not None else {}
    if ended:
        who = ", ".join(f"rank {r} died ({how})" for r, how in ended.items())
        raise error(native.DEAD, f"weft: {what}: connection closed by peer: {who}", ended)


def late(what, seconds, ranks):
    """The error for ranks that did not come in time."""
    return error(native.TIMEOUT, f"weft: {what}: Timed out after {seconds:g} s: rank {', '.join(map(str, ranks)) or '?'} did not come", ranks)


def error(code, text, culprits):
    e = Error(text)
    e.code, e.culprits = code, list(culprits)
    return e


def wait(what, presence, store, key, end, look):
    """Waits until a time for what put leaves, and gives it; None if it did not come. look is called every now and then, and may raise."""
    try:
        return _wait(store, key, end, look)
    except Error:
        raise
    except RuntimeError as e:  # of the store
        if presence is not None:
            gone(what, presence, presence.known())
        raise error(native.DEAD, f"weft: {what}: the store at which the ranks meet cannot be reached ({e}): the process that has it, mostly that of rank 0, "
                    "has ended", []) from None


def _wait(store, key, end, look):
    nap, looked = 0.0002, time.monotonic()
    while not there(store, key):
        now = time.monotonic()
        if now - looked > _LOOK:
            looked = now
            look()
        if now >= end:
            return None
        time.sleep(min(nap, max(end - now, 0)))
        nap = min(nap * 1.5, _LOOK / 2)
    return store.get(key)


class Disagreement(Exception):
    """Its text has both lists."""


class Members:
    """The members of a group that is being made. meeting names the ranks' Join, so that keys of an earlier one do not count."""

    def __init__(self, store, ranks, rank, timeout, meeting="", presence=None):
        self._store, self._ranks, self._rank = store, list(ranks), rank
        self._seconds, self._presence = timeout.total_seconds(), presence
        self._end = time.monotonic() + self._seconds
        self._base = f"weft {_digest(meeting)} "
        self._own = f"{self._base}{_digest(str(self._ranks))} "
        self._round = 0

    def agree(self):
        """Compares the own list with that of the first rank that came."""
        mine = f"{self._ranks[self._rank]} {self._ranks}"
        if self._store.add(self._base + "lists", 1) == 1:
            put(self._store, self._base + "list", mine)
        first = wait("new_group", self._presence, self._store, self._base + "list", self._end, self._look)
        if first is None:
            raise late("new_group", self._seconds, [])
        rank, _, first = first.decode().partition(" ")
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
            put(self._store, key + str(self._rank), mine or b"-")
            told = self._get(key + "0")
            return told if mine else b""
        said = [mine] + [self._get(key + str(r)) for r in range(1, len(self._ranks))]
        put(self._store, key + "0", b"".join(said) if mine else b"-")
        return b"".join(said) if mine else b""

    def _get(self, key):
        """What a member says, unless a rank turns out to disagree, or to be dead: then it never comes."""
        said = wait("new_group", self._presence, self._store, key, self._end, self._look)
        if said is None:
            raise late("new_group", self._seconds, self._absent())
        return said

    def _look(self):
        gone("new_group", self._presence, self._ranks)
        self.check()

    def _absent(self):
        """The members that have said nothing in this round."""
        key = f"{self._own}{self._round - 1} "
        keys = [(self._ranks[r], key + str(r)) for r in range(len(self._ranks)) if r != self._rank]
        absent = [r for r, k in keys if not there(self._store, k)]
        first = self._ranks[0]
        return [r for r in absent if r != first] or absent  # the first says something after all others


def _digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]
