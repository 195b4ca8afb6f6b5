"""Storage of SGLang's HiCache on "weft kv serve".

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{"backend_name": "weft", "module_path": "weft.sglang",
        "class_name": "WeftStorage", "interface_v1": 1, "address": "127.0.0.1:7080"}'

With interface_v1 pages go straight into the host pool and out of it. SGLang calls these methods from threads of its own (prefetch, prefetch
I/O, backup), never from its scheduler. A call takes "timeout" seconds (3) at most where the cache is silent: SGLang gives its threads 10 s to
end. Pages that cannot be read are False, and nothing is written to the pool after a call has returned: SGLang frees the pages then.

This class has the methods of HiCacheStorage, with and without the host pool. It was tested with a double that has SGLang's threads and calls
them in SGLang's order; SGLang itself was not run.
"""

import ctypes

from . import _pages
from ._shards import Shards
from .kv import CacheError, Client

try:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage
except ImportError:  # SGLang is not here
    HiCacheStorage = None

try:
    from sglang.srt.mem_cache.hicache_storage import PoolTransferResult
except ImportError:  # nor in versions with one pool

    class PoolTransferResult:
        def __init__(self, kv_hit_pages, extra_pool_hit_pages):
            self.kv_hit_pages, self.extra_pool_hit_pages = kv_hit_pages, extra_pool_hit_pages


if HiCacheStorage is None:

    class HiCacheStorage:
        def register_mem_pool_host(self, mem_pool_host):
            self.mem_pool_host = mem_pool_host

        def get_stats(self):
            return None


class _Parts:
    """How the pages of a pool are cut: into shards, by runs of width bytes, or as wholes where the width is 0."""

    def __init__(self, space, shards, width=0):
        self.space, self.shards, self.width = space, shards, width

    def cut(self, page):
        # Keys and values of a page with heads outside its tokens are a run each.
        return self.shards.cut(page, self.width or len(page) // 2)

    def join(self, pages):
        return self.shards.join(pages, self.width or sum(len(p) for p in pages) // 2)


class WeftStorage(HiCacheStorage):
    def __init__(self, storage_config=None, kwargs=None):
        extra = dict(kwargs or {})
        extra.update(getattr(storage_config, "extra_config", None) or {})
        self.client = Client(extra.get("address"), extra.get("token"), timeout=float(extra.get("timeout", 3)), rest=float(extra.get("rest", 5)))
        # Who has another part of the cache, or has it in another order, has other pages.
        of = lambda name, default: getattr(storage_config, name, default)
        parts = [of("model_name", "")]
        for what in ("pp", "attn_cp"):
            if of(what + "_size", 1) > 1:
                parts += [what, of(what + "_rank", 0), of(what + "_size", 1)]
        if of("is_page_first_layout", False):
            parts.append("page first")
        self.suffix = "".join("|%s" % p for p in parts)
        self.rank, self.ranks, self.heads = of("tp_rank", 0), of("tp_size", 1), int(extra.get("kv_heads", 0))
        if of("is_mla_model", False):  # of an MLA model every rank has the same cache
            self.rank, self.ranks = 0, 1
        self.mem_pool_host, self.registered_pools, self.main = None, {}, _Parts("ranks %d" % self.ranks, Shards(self.ranks, self.rank, self.ranks))
        self.alone = self.main  # of pools that are not the heads' cache

    def _keys(self, keys, parts, part):
        return ["%s%s|%s.%d" % (k, self.suffix, parts.space, part) for k in keys]

    def register_mem_pool_host(self, mem_pool_host):
        """The pool says how many heads a rank has: then every tensor-parallel width names a page alike. With one head on each of several ranks
        it does not say how many there are in all, which "kv_heads" in the extra configuration does."""
        self.mem_pool_host = pool = mem_pool_host
        heads, size = getattr(pool, "head_num", 0), getattr(pool, "head_dim", 0)
        total = self.heads or (heads * self.ranks if heads > 1 or self.ranks == 1 else 0)
        if not total or not size or max(1, total // self.ranks) != heads:
            return
        layout, item = getattr(pool, "layout", ""), getattr(getattr(pool, "dtype", None), "itemsize", 0)
        if not item:
            return
        shards = Shards(total, self.rank, self.ranks)
        # Heads are inside the tokens of a page, but in this layout.
        width = 0 if layout == "page_head" else heads * size * item
        self.main = _Parts("heads %d %s" % (shards.parts, layout), shards, width)

    # One page or several, as tensors or buffers.

    def get(self, key, target_location=None, target_sizes=None):
        return self.batch_get([key], [target_location] if target_location is not None else None)[0]

    def batch_get(self, keys, target_locations=None, target_sizes=None):
        pages = self._get(keys, self.main)
        if target_locations is None:
            return pages
        return [None if p is None or not _fill(t, p) else t for p, t in zip(pages, target_locations)]

    def set(self, key, value=None, target_location=None, target_sizes=None):
        return self.batch_set([key], [value if value is not None else target_location])

    def batch_set(self, keys, values=None, target_locations=None, target_sizes=None):
        try:
            return self._put(keys, [_data(v) for v in (values if values is not None else target_locations)], self.main) == len(keys)
        except ValueError as e:
            self.client.complain(e)
            return False

    def _get(self, keys, parts):
        """Pages as bytes, None for those that are not there as a whole."""
        try:
            found = [self.client.get(self._keys(keys, parts, i), alone=True) for i in parts.shards.mine]
            return [None if None in pages else parts.join(pages) for pages in zip(*found)]
        except (CacheError, ValueError) as e:
            self.client.complain(e)
            return [None] * len(keys)

    def _put(self, keys, pages, parts):
        """How many pages are stored, from the first on. What another rank has, too, that one stores."""
        done = len(keys)
        if not parts.shards.stores:
            return done
        cut = [parts.cut(p) for p in pages]
        try:
            for nth, i in enumerate(parts.shards.mine):
                done = min(done, self.client.put(self._keys(keys, parts, i), [c[nth] for c in cut], alone=True))
        except CacheError as e:
            self.client.complain(e)
            done = 0
        return done

    def exists(self, key):
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys, extra_info=None, parts=None):
        """How many of the keys are there from the first on."""
        parts, have = parts or self.main, len(keys)
        try:
            for i in parts.shards.mine:
                have = self.client.match(self._keys(keys[:have], parts, i), alone=True) if have else 0
        except CacheError as e:
            self.client.complain(e)
            return 0
        return have

    def _which(self, keys, parts):
        try:
            return [all(w) for w in zip(*(self.client.which(self._keys(keys, parts, i)) for i in parts.shards.mine))]
        except CacheError as e:
            self.client.complain(e)
            return [False] * len(keys)

    # With the host pool: pages are read into it and written out of it.

    def batch_get_v1(self, keys, host_indices, extra_info=None, pool=None, parts=None):
        pages = self._get(keys, parts or self.main)
        return [p is not None and self._scatter(spans, p) for p, spans in zip(pages, self._spans(len(keys), host_indices, pool))]

    def batch_set_v1(self, keys, host_indices, extra_info=None, pool=None, parts=None):
        pages = [b"".join(ctypes.string_at(a, n) for a, n in spans) for spans in self._spans(len(keys), host_indices, pool)]
        done = self._put(keys, pages, parts or self.main)
        return [i < done for i in range(len(keys))]

    # With several pools (Mamba, sliding windows, draft models): each has pages of its own under the same keys.

    def register_mem_host_pool_v2(self, host_pool, host_pool_name):
        self.registered_pools[str(host_pool_name)] = host_pool
        if str(host_pool_name) == "kv":
            self.register_mem_pool_host(host_pool)

    @staticmethod
    def _of_pool(keys, name):
        return list(keys) if str(name) in ("kv", "__default__") else ["%s.%s" % (k, name) for k in keys]

    def batch_exists_v2(self, keys, pool_transfers=None, extra_info=None):
        """How long the prefix is that every pool has: all of its pages, or the last ones where that is enough."""
        pages = self.batch_exists(keys)
        hits, final = ({"kv": pages} if pages else {}), pages
        for t in pool_transfers or ():
            if not final:
                break
            names = self._of_pool(keys[:pages], t.name)
            if str(getattr(t.hit_policy, "value", t.hit_policy)) == "all_pages":
                have = self.batch_exists(names, parts=self._parts_of(t.name))
            else:
                last, have, run = max(1, len(t.keys or ())), 0, 0
                for i, there in enumerate(self._which(names, self._parts_of(t.name))):
                    run = run + 1 if there else 0
                    if run >= min(last, i + 1):
                        have = i + 1
            if have:
                hits[t.name] = have
            final = min(final, have)
        return PoolTransferResult(final, hits)

    def batch_get_v2(self, transfers, extra_info=None):
        return {t.name: self.batch_get_v1(self._of_pool(t.keys or (), t.name), t.host_indices, extra_info, self._pool(t.name), self._parts_of(t.name)) for t in transfers}

    def batch_set_v2(self, transfers, extra_info=None):
        return {t.name: self.batch_set_v1(self._of_pool(t.keys or (), t.name), t.host_indices, extra_info, self._pool(t.name), self._parts_of(t.name)) for t in transfers}

    def _parts_of(self, name):
        return self.main if str(name) in ("kv", "__default__") else self.alone

    def _pool(self, name):
        pool = self.registered_pools.get(str(name))
        if pool is None and str(name) == "kv":
            pool = self.mem_pool_host
        if pool is None:
            raise ValueError("pool %s was not registered; known: %s" % (name, ", ".join(self.registered_pools)))
        return pool

    def _spans(self, pages, host_indices, pool=None):
        """The memory of each page: get_page_buffer_meta gives addresses and sizes, as many for each page."""
        if not pages:
            return []
        addresses, sizes = (pool or self.mem_pool_host).get_page_buffer_meta(host_indices)
        if not isinstance(sizes, (list, tuple)):
            sizes = [sizes] * len(addresses)
        each = len(addresses) // pages
        if not each or each * pages != len(addresses):
            raise ValueError("%d buffers for %d pages" % (len(addresses), pages))
        return [list(zip(addresses[i * each : (i + 1) * each], sizes[i * each : (i + 1) * each])) for i in range(pages)]

    @staticmethod
    def _scatter(spans, page):
        if sum(n for _, n in spans) != len(page):
            return False
        at = 0
        for address, n in spans:
            ctypes.memmove(address, page[at : at + n], n)
            at += n
        return True

    def clear(self):
        pass  # other workers use the blocks, too; they go when room is needed

    def close(self):
        self.client.close()


def _data(value):
    if hasattr(value, "data_ptr"):
        return bytes(_pages._bytes_of(value.contiguous().cpu() if _pages._on_gpu(value) else value.contiguous()))
    return bytes(memoryview(value).cast("B"))


def _fill(target, page):
    view = _pages._bytes_of(target)
    if len(view) != len(page):
        return False
    view[:] = page
    return True
