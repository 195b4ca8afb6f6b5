"""Groups of layers with block tables of their own, as vLLM's hybrid models have them.

Full attention needs every block of a prefix. Layers with a sliding window or with chunks need its last blocks alone, and vLLM frees the others: in
a group's table block 0 stands for those. So a prefix can be used up to the tokens where each group has the blocks that it needs there:

    tokens      0    4    8    12   16   20       full      needs blocks 0 1 2 3 for 16 tokens
    full, 4     |####|####|####|####|....         window 6  needs blocks 2 3
    window 6    |....|....|####|####|....         so that 16 tokens are there

vLLM cannot hear that a block of such a model was not loaded. So nothing is promised that can fail: the workers first fetch the blocks into host
memory, and say so, and only then the scheduler hears of them. Until then the answer is "later".

    scheduler    lookup -> order ------------------------------> all workers have it -> answer -> load
    workers                fetch into host memory -> report ----^                                 copy
"""

import itertools
import math
import time

from .kv import CacheError

NULL = 0  # vLLM's block for what a table does not hold


class Group:
    """Layers with one block table. kind is "full", "window" or "chunk", size the tokens of a window or chunk."""

    def __init__(self, index, layers, block, kind="full", size=0):
        self.index, self.layers, self.block, self.kind, self.size = index, list(layers), block, kind, size

    def first(self, tokens):
        """The first block that is needed to go on behind so many tokens, as vLLM's managers count it (get_num_skipped_tokens)."""
        if self.kind == "window":
            return max(0, tokens - self.size + 1) // self.block
        if self.kind == "chunk":
            return tokens // self.size * self.size // self.block
        return 0

    def needs(self, local, tokens):
        """The blocks that are needed for so many tokens if those before local are there."""
        return range(max(self.first(tokens), local // self.block), tokens // self.block)

    def __str__(self):
        return "%d %s %d %d" % (self.index, self.kind, self.size, self.block)


def groups(config, block):
    """The groups of vLLM's KVCacheConfig, None where there is one of full attention: that needs none of this."""
    found = []
    for i, g in enumerate(getattr(config, "kv_cache_groups", None) or ()):
        spec = getattr(g, "kv_cache_spec", None)
        if getattr(spec, "kv_cache_specs", None):  # layers of one kind and different sizes
            spec = next(iter(spec.kv_cache_specs.values()))
        kinds = {c.__name__ for c in type(spec).__mro__}
        if "SlidingWindowSpec" in kinds:
            what = "window", spec.sliding_window + getattr(spec, "extra_retained_tokens", 0)
        elif "ChunkedLocalAttentionSpec" in kinds:
            what = "chunk", spec.attention_chunk_size
        elif "FullAttentionSpec" in kinds:
            what = "full", 0
        else:
            raise ValueError("layers %s have a %s; weft.vllm moves caches of full, sliding-window and chunked attention" % (", ".join(getattr(g, "layer_names", ["?"])[:3]), type(spec).__name__))
        found.append(Group(i, g.layer_names, spec.block_size, *what))
    if not found or len(found) == 1 and found[0].kind == "full":
        return None
    return found


def sizes(found, unit=None):
    """Tokens of vLLM's schedule and of its block hashes (resolve_kv_cache_block_sizes)."""
    blocks = [g.block for g in found]
    return math.lcm(*blocks), unit or math.gcd(*blocks)


def longest(found, there, most, step):
    """How many tokens can be used, a multiple of step up to most. there[g][i] says whether block i of group g is there."""
    for tokens in range(most // step * step, 0, -step):
        if all(all(there[g.index][i] for i in g.needs(0, tokens)) for g in found):
            return tokens
    return 0


class Asked:
    """A request, as the scheduler's side knows it."""

    def __init__(self, keys, count):
        self.keys, self.tables, self.stored = keys, [[] for _ in range(count)], [0] * count
        self.since = self.found = None  # when the lookup began, and the tokens that it found
        self.order = self.local = None  # what the workers were told to fetch, from which token on
        self.waits, self.whole = 0, True  # for so many workers; whether all of them have everything


class Planner:
    """The scheduler's side. names(hashes, group, part, stage) gives names in the cache, of which there are parts for each of stages."""

    def __init__(self, connector, found, unit, names, ranks):
        self.c, self.groups, self.names, self.ranks = connector, found, names, ranks
        self.step, self.unit = sizes(found, unit)
        self.requests, self.orders, self.ids = {}, {}, itertools.count()
        self.fetches, self.drops, self.loads = [], [], []

    def keys(self, t, g, blocks):
        """The hashes of a group's blocks. That of the last tokens in a block covers everything before."""
        n = g.block // self.unit
        return [t.keys[(i + 1) * n - 1] for i in blocks]

    def ask(self, request):
        t = self.requests.get(request.request_id)
        if t is None:
            keys = self.c._hashes(request)
            if len(keys) != request.num_tokens // self.unit:
                keys = []  # in blocks of another size than these groups': nothing has a name
            t = self.requests[request.request_id] = Asked(keys, len(self.groups))
        self.forget(t)
        t.since, t.found = time.monotonic(), None
        most = min(len(t.keys) * self.unit, request.num_tokens - 1) // self.step * self.step
        if not most or self.c.client.resting():
            t.found = 0
        else:
            self.c.asking.add(self._look, t, t.since, most)
        return t

    def _look(self, t, since, most):
        try:
            there = {g.index: [True] * (most // g.block) for g in self.groups}
            for g, (stage, part) in itertools.product(self.groups, self.c._everybody()):
                if t.since != since or t.found is not None:
                    return  # it was given up
                have = self.c.client.which(self.names(self.keys(t, g, range(most // g.block)), g, part, stage))
                there[g.index] = [a and b for a, b in zip(there[g.index], have)]
            found = longest(self.groups, there, most, self.step)
        except CacheError as e:
            self.c.client.complain(e)
            found = 0
        if t.since == since and t.found is None:
            t.found = found

    def matched(self, request, local):
        t = self.requests.get(request.request_id)
        if t is None or t.since is None:
            t = self.ask(request)
        late = time.monotonic() - t.since
        if t.found is None and late > self.c.patience:
            t.found = 0
        if t.found is None:
            return None, False
        if t.found > local and t.order is None:
            t.order, t.local, t.waits, t.whole = next(self.ids), local, self.ranks, True
            self.orders[t.order] = t
            self.fetches.append((t.order, t.keys, local, t.found))
        if t.found <= local or t.local > local or not t.whole or t.waits and late > self.c.patience + self.c.timeout:
            self.forget(t)  # there is nothing, or not all of it
            for g in self.groups:
                if g.kind == "full" and t.found <= local:
                    t.stored[g.index] = max(t.stored[g.index], t.found // g.block)
            t.found = 0
            return 0, False
        return (None, False) if t.waits else (t.found - local, True)

    def forget(self, t):
        """Lets the workers drop what they fetched."""
        if t.order is not None:
            self.orders.pop(t.order, None)
            self.drops.append(t.order)
            t.order = None

    def fetched(self, reports):
        for order, (count, whole) in reports.items():
            t = self.orders.get(order)
            if t is not None:
                t.waits, t.whole = t.waits - count, t.whole and whole

    def allocated(self, request, tables, tokens):
        t = self.requests.get(request.request_id)
        if t is None:
            return
        t.tables = [list(x) for x in tables]
        if tokens and t.order is not None:
            local = t.found - tokens
            blocks = [(g.index, i, t.tables[g.index][i]) for g in self.groups for i in range(local // g.block, t.found // g.block)]
            self.loads.append((request.request_id, t.order, [b for b in blocks if b[2] != NULL]))
            for g in self.groups:
                t.stored[g.index] = t.found // g.block
            self.orders.pop(t.order, None)
            t.order = None  # the worker drops it behind the load
        self.forget(t)
        t.since = None  # asked again only if it is preempted

    def scheduled(self, name, tables, fresh, computed):
        """The blocks to store of a request that a step computes up to so many tokens: (group, hashes, block numbers)."""
        t = self.requests.get(name)
        if t is None:
            return []
        if fresh:
            t.tables = [list(x) for x in tables]
        else:
            for have, new in zip(t.tables, tables or ()):
                have += new
        out = []
        for g in self.groups:
            end = min(computed // g.block, len(t.keys) * self.unit // g.block, len(t.tables[g.index]))
            # A table may have lost blocks before the window since; those of this step are all there.
            new = [i for i in range(t.stored[g.index], end) if t.tables[g.index][i] != NULL]
            if new:
                out.append((g.index, self.keys(t, g, new), [t.tables[g.index][i] for i in new]))
            t.stored[g.index] = max(t.stored[g.index], end)
        return out

    def meta(self, m):
        m.fetches, m.drops, m.loads = self.fetches, self.drops, self.loads
        self.fetches, self.drops, self.loads = [], [], []

    def finished(self, request):
        t = self.requests.pop(request.request_id, None)
        if t is not None:
            self.forget(t)


class Stager:
    """The worker's side: blocks in host memory, fetched before anybody is promised them."""

    def __init__(self, connector, found, unit, names, most):
        self.c, self.groups, self.unit, self.names, self.most = connector, found, unit, names, most
        # Under the connector's lock: orders with their blocks' bytes by group and number, the bytes of all, and what was not reported yet.
        self.staged, self.held, self.reports, self.broken = {}, 0, {}, None

    def size(self, g):
        return self.c._size(g.layers)

    def save(self, stores, copies):
        for g, keys, blocks in stores:
            pages = [self.c._cut(copies, self.groups[g].layers, b) for b in blocks]
            for i, part in enumerate(self.c.shards.mine):
                self.c.client.put(self.names(keys, self.groups[g], part), [p[i] for p in pages], alone=True)

    def begin(self, m):
        for order, keys, local, tokens in m.fetches:
            need = sum(self.size(g) * len(g.needs(local, tokens)) for g in self.groups)
            with self.c.lock:
                fits = self.held + need <= self.most
                if fits:
                    self.staged[order], self.held = (need, {}), self.held + need
            if fits:
                self.c.loading.add(self._fetch, order, keys, local, tokens)
            else:
                self._report(order, False)
        for order in m.drops:  # it may be one of these
            self._drop(order)
        for request, order, blocks in m.loads:
            self.c.loading.add(self._load, request, order, blocks)

    def _fetch(self, order, keys, local, tokens):
        whole = False
        try:
            pages = {}
            for g in self.groups:
                blocks, n = g.needs(local, tokens), g.block // self.unit
                hashes = [keys[(i + 1) * n - 1] for i in blocks]
                parts = [self.c.client.get(self.names(hashes, g, part), alone=True) for part in self.c.shards.mine]
                for i, *part in zip(blocks, *parts):
                    if any(p is None or len(p) * self.c.shards.count != self.size(g) for p in part):
                        return
                    pages[g.index, i] = part
            with self.c.lock:
                if order in self.staged:
                    self.staged[order], whole = (self.staged[order][0], pages), True
        except CacheError as e:
            self.c.client.complain(e)
        finally:
            self._report(order, whole)

    def _report(self, order, whole):
        with self.c.lock:
            self.reports[order] = whole
        if not whole:
            self._drop(order)

    def _drop(self, order):
        with self.c.lock:
            self.held -= self.staged.pop(order, (0, None))[0]

    def _load(self, request, order, blocks):
        try:
            with self.c.lock:
                pages = self.staged[order][1]
            for g, i, block in blocks:
                self.c._fill(self.groups[g].layers, block, pages[g, i])
            with self.c.lock:
                self.c.loaded.add(request)
        except BaseException as e:
            self.broken = e  # it was promised: vLLM must not go on as if it were there
            raise
        finally:
            self._drop(order)

    def take(self):
        """Reports since the last call."""
        with self.c.lock:
            reports, self.reports = self.reports, {}
        return {order: (1, whole) for order, whole in reports.items()}
