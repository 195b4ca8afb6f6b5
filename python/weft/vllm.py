"""A KV connector for vLLM on "weft kv serve": prefixes that any worker has computed are read instead of computed.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "WeftConnector", "kv_connector_module_path": "weft.vllm",
        "kv_role": "kv_both", "kv_connector_extra_config": {"address": "127.0.0.1:7080"}}'

All workers need the same PYTHONHASHSEED and --prefix-caching-hash-algo sha256_cbor; the cache refuses others.

No call waits for the cache. A lookup runs in the background, and until it ends the scheduler is told to ask again later; after "patience"
seconds the request is computed. Loads run in the background too: vLLM schedules the request when get_finished reports it. A block that cannot
be read is reported by get_block_ids_with_load_errors in the same step; vLLM computes it again or fails the request, as
kv_load_failure_policy says. Each layer's blocks are copied out when the layer is done, and stored in the background. Blocks that a slow
cache would make pile up beyond "buffer" bytes are not stored.

Hybrid models, whose layers have full, sliding-window or chunked attention, keep vLLM's hybrid cache manager. vLLM cannot hear that a load of
theirs failed, so their blocks are fetched into host memory first, up to "staging" bytes, and promised when all workers have them.

This class follows KVConnectorBase_V1 as documented. It was tested with a small engine that calls its methods in vLLM's order; vLLM itself was
not run.
"""

import hashlib
import itertools
import json
import logging
import os
import threading
import time

from . import _groups, _pages
from ._background import Background
from ._shards import Shards
from .kv import CacheError, Chain, Client

logger = logging.getLogger("weft.vllm")

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole
except ImportError:  # vLLM is not here: the double drives the class alone
    KVConnectorBase_V1 = None

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata
except ImportError:  # nor in earlier versions

    class KVConnectorHandshakeMetadata:
        pass


try:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorWorkerMetadata, SupportsHMA
except ImportError:

    class KVConnectorWorkerMetadata:
        pass

    class SupportsHMA:
        pass


if KVConnectorBase_V1 is None:

    class KVConnectorMetadata:
        pass

    class KVConnectorRole:
        SCHEDULER, WORKER = 0, 1

    class KVConnectorBase_V1:
        def __init__(self, vllm_config, role, kv_cache_config=None):
            self._vllm_config, self._role, self._connector_metadata = vllm_config, role, None

        def bind_connector_metadata(self, connector_metadata):
            self._connector_metadata = connector_metadata

        def clear_connector_metadata(self):
            self._connector_metadata = None

        def _get_connector_metadata(self):
            assert self._connector_metadata is not None
            return self._connector_metadata


class WeftMetadata(KVConnectorMetadata):
    """What the scheduler tells the workers: of each request the names and blocks to load, and those to store."""

    def __init__(self):
        self.loads = []  # (request, keys of the whole path, first index, block ids from there on); of hybrid models (request, order, blocks)
        self.stores = []  # (keys of the whole path, first index, block ids of the whole path); of hybrid models (group, keys, block ids)
        self.fetches, self.drops = [], []  # of hybrid models: orders to fetch into host memory, and those that nobody needs any more


class WeftFetched(KVConnectorWorkerMetadata):
    """What workers tell the scheduler: how many of them ended which order, and whether all have everything."""

    def __init__(self, orders):
        self.orders = orders

    def aggregate(self, other):
        both = dict(self.orders)
        for order, (count, whole) in other.orders.items():
            n, w = both.get(order, (0, True))
            both[order] = n + count, w and whole
        return WeftFetched(both)


class WeftOrder(KVConnectorHandshakeMetadata):
    """How a worker's cache orders the bytes of a block, where that is not as most have it."""

    def __init__(self, order):
        self.order = order


class _Tracked:
    """A request: names and blocks of its path, how many of them vLLM has (local) and the cache has (stored).

    A lookup sets answer to the number of blocks that the cache has. The scheduler gave that answer to vLLM at given; failed says that a load
    failed, after which nothing is looked up any more.
    """

    def __init__(self, keys):
        self.keys, self.blocks, self.local, self.stored = keys, [], 0, 0
        self.asked, self.answer, self.given, self.failed = None, None, None, False


def _first(ids):
    """The block numbers of the only group of caches, as a list."""
    if not ids:
        return []
    return list(ids[0] if isinstance(ids[0], (list, tuple)) else ids)


class WeftConnector(KVConnectorBase_V1, SupportsHMA):
    def __init__(self, vllm_config, role, kv_cache_config=None):
        try:
            super().__init__(vllm_config, role, kv_cache_config)
        except TypeError:  # versions without the third argument
            super().__init__(vllm_config, role)
        extra = dict(getattr(vllm_config.kv_transfer_config, "kv_connector_extra_config", None) or {})
        self.block = vllm_config.cache_config.block_size
        found = _groups.groups(kv_cache_config, self.block)
        if found:
            self.block = _groups.sizes(found, getattr(vllm_config.cache_config, "prefix_match_unit", None))[1]
        seed = str(extra.get("seed") or os.environ.get("PYTHONHASHSEED") or "")
        self.chain = Chain("vllm", self.block, seed) if seed else None
        if self.chain is None:
            raise ValueError("PYTHONHASHSEED is not set: workers would name the same blocks differently; set it to one value everywhere")
        # Caches of different models, types and shares of layers and tokens are different blocks. Shares of heads are not: see Shards.
        model, cache, parallel = vllm_config.model_config, vllm_config.cache_config, getattr(vllm_config, "parallel_config", None)
        parts = [getattr(model, "model", ""), getattr(model, "revision", None), getattr(model, "dtype", ""), getattr(cache, "cache_dtype", "auto")]
        self.shared = "|".join(str(p) for p in parts)
        self._share(model, parallel)
        self._order("")
        served = getattr(model, "served_model_name", None) or getattr(model, "model", "")
        self.models, self.seed, self.noted = [served] if isinstance(served, str) else list(served), seed, 0.0
        self.patience, self.buffer = float(extra.get("patience", 0.5)), int(extra.get("buffer", 256 << 20))
        scheduler, self.timeout = role == KVConnectorRole.SCHEDULER, float(extra.get("timeout", 10))
        self.client = Client(extra.get("address"), extra.get("token"), self.chain.print(), self.patience if scheduler else self.timeout, rest=float(extra.get("rest", 5)))
        # The axes of a cache, as the engine says. vLLM has named them since all back ends have the same.
        named = getattr(kv_cache_config, "kv_cache_layout", None) or getattr(cache, "kv_cache_layout", None)
        self.axes = str(extra.get("layout") or ("BHNC" if named else ""))
        self.count = getattr(cache, "num_gpu_blocks", None) or getattr(kv_cache_config, "num_blocks", None)
        self.tracked, self.loads, self.caches, self.layouts = {}, [], {}, {}
        self.asking, self.loading, self.saving = Background(4), Background(4), Background(1)
        # Under the lock: requests whose load ended, blocks that did not come, and bytes that wait to be stored.
        self.lock, self.loaded, self.failed, self.waiting = threading.Lock(), set(), set(), 0
        self.copies = {}  # of this step, by layer: a copy by block
        self.planner = self.stager = None
        if found:
            self._hybrid(found, scheduler, parallel, int(extra.get("staging", 4 << 30)))

    def _hybrid(self, found, scheduler, parallel, most):
        if self.split != [1, 1]:
            raise ValueError("layers of %d kinds with decode or prefill context parallelism: weft.vllm takes one of the two" % len(found))
        self.shared += "|" + "|".join(str(g) for g in found)
        self._order("")
        names = lambda hashes, g, part, stage=None: self._keys(hashes, part, stage, "group %d|" % g.index)
        if scheduler:
            self.planner = _groups.Planner(self, found, self.block, names, getattr(parallel, "world_size", 1))
        else:
            self.stager = _groups.Stager(self, found, self.block, names, most)

    requires_kv_delivery = False  # what is not stored is computed again

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config):
        return True  # layers wait for their blocks and are saved one by one, which a graph of the whole model would leave out

    def _share(self, model, parallel):
        """Finds which parts of a block this rank has, and how many names a block has in all."""
        size = lambda what: getattr(parallel, what + "_size", 1)
        rank, ranks, tp, pp = getattr(parallel, "rank", 0), size("world"), size("tensor_parallel"), size("pipeline_parallel")
        heads = model.get_total_num_kv_heads() if hasattr(model, "get_total_num_kv_heads") else 0
        self.split = split = [size("decode_context_parallel"), size("prefill_context_parallel")]
        self.rank, self.heads = rank, 0  # heads of this rank, where they are known
        if heads and split == [1, 1] and ranks == tp * pp and max(heads, tp) % min(heads, tp) == 0:
            self.heads = max(1, heads // tp)
            self.shards, self.stage, self.stages = Shards(heads, rank % tp, tp), rank // tp, pp
            self.shared += "|heads|%d|%d" % (self.shards.parts, pp)
        else:  # every rank has a part of its own
            self.shards, self.stage, self.stages = Shards(ranks, rank, ranks), 0, 1
            self.shared += "|ranks|" + "|".join(str(n) for n in (ranks, tp, pp, *split))

    def _keys(self, hashes, part, stage=None, group=""):
        return ["%s|%d.%d|%s%s" % (self.space, self.stage if stage is None else stage, part, group, bytes(h).hex()) for h in hashes]

    def _everybody(self):
        """The stages and parts of a block that all ranks have together."""
        return itertools.product(range(self.stages), range(self.shards.parts))

    # The scheduler's side.

    def _hashes(self, request):
        known = getattr(request, "block_hashes", None)
        if known:
            return [h if isinstance(h, (bytes, bytearray)) else bytes(getattr(h, "hash_value", b"")) for h in known]
        if getattr(request, "mm_features", None) or getattr(request, "prompt_token_ids", None) is None:
            return []  # pictures and embeddings are not in the tokens: only vLLM's own names tell them apart
        return self.chain.hashes(request.prompt_token_ids, getattr(getattr(request, "lora_request", None), "lora_name", None), getattr(request, "cache_salt", None))

    def on_new_request(self, request):
        """Begins the lookup, so that most answers are there when vLLM asks first."""
        (self.planner.ask if self.planner else self._ask)(request)

    def _ask(self, request):
        t = self.tracked.get(request.request_id)
        if t is None:
            t = self.tracked[request.request_id] = _Tracked(self._hashes(request))
        t.asked, t.given, t.answer = time.monotonic(), None, None
        most = (request.num_tokens - 1) // self.block  # one token at least is computed
        keys = t.keys[:most]
        if not keys or t.failed or self.client.resting():
            t.answer = 0  # a cache that is away costs computing, not requests
        else:
            self.asking.add(self._match, t, t.asked, keys)
        return t

    def _match(self, t, asked, keys):
        """Every rank loads its own parts of a block, so the part that has the fewest blocks decides."""
        have = len(keys)
        try:
            for stage, part in self._everybody():
                if not have or t.asked != asked or t.answer is not None:
                    break  # it was given up
                have = self.client.match(self._keys(keys[:have], part, stage))
        except CacheError as e:
            self.client.complain(e)
            have = 0
        if t.asked == asked and t.answer is None:
            t.answer = have

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        if self.planner:
            return self.planner.matched(request, num_computed_tokens)
        now, t = time.monotonic(), self.tracked.get(request.request_id)
        if t is None or t.asked is None or t.given is not None and now - t.given > 1:
            t = self._ask(request)  # for the first time, or once more: what was found a while ago may be gone
        if t.answer is None and now - t.asked > self.patience:
            t.answer = 0
        if t.answer is None:
            return None, False
        t.given, t.local, t.stored = t.given or now, num_computed_tokens // self.block, t.answer
        n = max(t.answer - t.local, 0)
        return n * self.block, n > 0

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        if self.planner:
            return self.planner.allocated(request, blocks.get_block_ids(), num_external_tokens)
        t = self.tracked.get(request.request_id)
        if t is None:
            return
        t.blocks, t.asked = _first(blocks.get_block_ids()), None  # asked again only if it is preempted or its load fails
        end = t.local + num_external_tokens // self.block
        if end > t.local:
            self.loads.append((request.request_id, t.keys[:end], t.local, t.blocks[t.local : end]))

    def update_connector_output(self, connector_output):
        """Notes the requests whose blocks did not come: they are computed from there on, and stored again."""
        fetched = getattr(connector_output, "kv_connector_worker_meta", None)
        if self.planner and isinstance(fetched, WeftFetched):
            self.planner.fetched(fetched.orders)
        bad = getattr(connector_output, "invalid_block_ids", None)
        for name in (getattr(connector_output, "finished_recving", None) or ()) if bad else ():
            t = self.tracked.get(name)
            first = next((i for i, b in enumerate(t.blocks) if b in bad), None) if t else None
            if first is not None:
                t.failed, t.stored = True, min(t.stored, first)

    def build_connector_meta(self, scheduler_output):
        meta = WeftMetadata()
        meta.loads, self.loads = self.loads, []
        if self.planner:
            self.planner.meta(meta)
        for r in scheduler_output.scheduled_new_reqs:
            self._begin(meta, r.req_id, r.block_ids, r.num_computed_tokens + scheduler_output.num_scheduled_tokens[r.req_id])
        cached = scheduler_output.scheduled_cached_reqs
        for i, name in enumerate(getattr(cached, "req_ids", ())):
            computed = cached.num_computed_tokens[i] + scheduler_output.num_scheduled_tokens[name]
            if self._resumed(cached, i, name):
                self._begin(meta, name, cached.new_block_ids[i], computed)
                continue
            t = self.tracked.get(name)
            if self.planner:
                meta.stores += self.planner.scheduled(name, cached.new_block_ids[i], False, computed)
            elif t is not None:
                t.blocks += _first(cached.new_block_ids[i])
                self._store(meta, t, computed)
        return meta

    @staticmethod
    def _resumed(cached, i, name):
        """Whether a request goes on after it was preempted: then its blocks are new, all of them."""
        names = getattr(cached, "resumed_req_ids", None)
        if names is not None:
            return name in names
        flags = getattr(cached, "resumed_from_preemption", None)  # of earlier versions
        return bool(flags) and bool(flags[i])

    def _begin(self, meta, name, ids, computed):
        """A request that is scheduled for the first time, or again from the beginning."""
        if self.planner:
            meta.stores += self.planner.scheduled(name, ids, True, computed)
            return
        t = self.tracked.get(name)
        if t is None:
            return
        t.blocks = _first(ids)
        self._store(meta, t, computed)

    def _store(self, meta, t, computed):
        """Whole blocks of the prompt that this step completes."""
        end = min(computed // self.block, len(t.keys), len(t.blocks))
        if end > t.stored:
            meta.stores.append((t.keys[:end], t.stored, t.blocks[:end]))
            t.stored = end

    def request_finished(self, request, block_ids):
        self.tracked.pop(request.request_id, None)
        return False, None  # blocks to store are copied out in order with what the device computes: they may be used again

    def request_finished_all_groups(self, request, block_ids):
        if self.planner:
            self.planner.finished(request)
        return self.request_finished(request, block_ids)

    def take_events(self):
        return ()

    def has_pending_push_work(self):
        return False

    # The worker's side.

    def register_kv_caches(self, kv_caches):
        count = getattr(getattr(self._vllm_config, "cache_config", None), "num_gpu_blocks", None) or self.count
        layouts, tokens = {}, {n: g.block for g in (self.stager.groups if self.stager else ()) for n in g.layers}
        if tokens:  # layers without blocks of their own use another's
            kv_caches = {n: kv_caches[n] for n in tokens}
        for name, tensor in kv_caches.items():
            shape = getattr(tensor, "shape", None)
            if shape is None:
                raise ValueError("layer %s: its cache is a %s, not one tensor of blocks; weft.vllm does not know how to move it" % (name, type(tensor).__name__))
            try:
                layouts[name] = _pages.Layout(shape, count, tokens.get(name, self.block), self.heads, self.axes)
            except ValueError as e:
                raise ValueError("layer %s: %s" % (name, e)) from None
        whole = [n for n, l in layouts.items() if self.shards.count > 1 and not l.whole]
        if whole:
            raise ValueError("layer %s: a cache of shape %s does not show its %d heads" % (whole[0], layouts[whole[0]].shape, self.heads))
        if len({l.blocks() for l in layouts.values()}) > 1:
            raise ValueError("layers have different numbers of blocks: %s" % ", ".join("%s %d" % (n, l.blocks()) for n, l in layouts.items()))
        self.caches, self.layouts = dict(kv_caches), layouts
        if not self.rank:
            size = max(map(self.stager.size, self.stager.groups)) if self.stager else self._size(layouts)
            self.saving.add(self._advise, size // self.shards.count)
        # One word where all layers are alike, so that the stages of a pipeline agree.
        odd = [l.odd for l in layouts.values()]
        self._order(odd[0] if len(set(odd)) == 1 else "|".join("%d %s" % (i, o) for i, o in enumerate(odd) if o))

    def _size(self, layers):
        return sum(self.layouts[n].size(self.caches[n]) for n in layers)

    def _advise(self, size):
        """Says how large --block of the cache should be: it keeps that much memory for every part of a block."""
        try:
            most = self.client.stat()["block_bytes"]
            if not size <= most < 2 * size:
                logger.warning("blocks are stored in parts of %d bytes, and the cache at %s has --block %d: start it with --block %d", size, self.client.address, most, size)
        except (CacheError, KeyError):
            pass  # it may come later

    def _order(self, text):
        """Blocks whose bytes are in another order than most have them get names of their own."""
        self.order = text
        self.space = self.shared + ("|order " + hashlib.sha256(text.encode()).hexdigest()[:16] if text else "")

    def get_handshake_metadata(self):
        return WeftOrder(self.order) if self.order else None

    def set_xfer_handshake_metadata(self, metadata):
        """What the workers say of their caches: without it the scheduler finds nothing that was stored in another order."""
        orders = {m.order for m in metadata.values() if isinstance(m, WeftOrder)}
        if len(orders) > 1:
            raise ValueError("workers keep the bytes of a block in different orders: %s" % ", ".join(sorted(orders)))
        for order in orders:
            self._order(order)

    def set_xfer_handshake_metadata_pp_aware(self, metadata):
        self.set_xfer_handshake_metadata(metadata)  # by stage and rank: all of them say the same

    def start_load_kv(self, forward_context=None, **kwargs):
        if self.stager:
            return self.stager.begin(self._get_connector_metadata())
        for load in self._get_connector_metadata().loads:
            self.loading.add(self._load, *load)

    def _load(self, request, keys, start, blocks):
        missing = set(blocks)
        try:
            size = self._size(self.caches) // self.shards.count
            parts = [self.client.get(self._keys(keys, part), start) for part in self.shards.mine]
            for block, *pages in zip(blocks, *parts):
                if any(p is None or len(p) != size for p in pages):
                    continue
                self._fill(self.caches, block, pages)
                missing.discard(block)
        except CacheError as e:
            self.client.complain(e)
        finally:
            with self.lock:  # together: vLLM must not take a request for loaded before it knows what is missing
                self.failed |= missing
                self.loaded.add(request)

    def _fill(self, layers, block, pages):
        """Writes a block of some layers out of its parts, each of all layers."""
        at = 0
        for layer in layers:
            layout, tensor = self.layouts[layer], self.caches[layer]
            n = layout.size(tensor) // self.shards.count
            layout.write(tensor, block, self.shards.join([p[at : at + n] for p in pages], layout.width(tensor)))
            at += n

    def wait_for_layer_load(self, layer_name):
        pass  # a request is scheduled when its load is over

    def _to_save(self, layer):
        stores = self._get_connector_metadata().stores
        if self.stager:
            return {b for g, _, blocks in stores if layer in self.stager.groups[g].layers for b in blocks}
        return {b for _, start, blocks in stores for b in blocks[start:]}

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata=None, **kwargs):
        blocks = self._to_save(layer_name)
        layout = self.layouts.get(layer_name)
        if not blocks or layout is None or not self.shards.stores or self.client.resting():  # a layer without a layout uses another's cache
            return
        with self.lock:
            if self.waiting >= self.buffer:
                self.client.complain(CacheError("the cache at %s is slower than this engine: some blocks are not stored" % self.client.address))
                return
        self.copies[layer_name] = _pages.Copies(layout, kv_layer, blocks)

    def wait_for_save(self):
        copies, self.copies = self.copies, {}
        for c in copies.values():
            c.order()
        stores = self._get_connector_metadata().stores
        if self.stager:
            stores = [s for s in stores if all(n in copies for n in self.stager.groups[s[0]].layers)]
            n = sum(self.stager.size(self.stager.groups[g]) * len(blocks) for g, _, blocks in stores)
        else:
            stores = stores if all(name in copies for name in self.caches) else []
            n = sum(self._size(self.caches) * (len(blocks) - start) for _, start, blocks in stores)
        if not stores:
            return
        with self.lock:
            self.waiting += n
        self.saving.add(self._save, stores, copies, n)

    def _note(self):
        """Leaves a note, once a minute, on how blocks are named: a router finds them by it ('weft serve --cache')."""
        if self.rank or time.monotonic() < self.noted:
            return
        self.noted = time.monotonic() + 60
        text = json.dumps({"space": self.space, "block": self.block, "seed": self.seed}).encode()
        self.client.put(["weft.vllm note|" + m for m in self.models], [text] * len(self.models), alone=True)

    def _save(self, stores, copies, n):
        try:
            if self.stager:
                return self.stager.save(stores, copies)
            self._note()
            for keys, start, blocks in stores:
                pages = [self._cut(copies, self.caches, b) for b in blocks[start:]]
                for i, part in enumerate(self.shards.mine):
                    self.client.put(self._keys(keys, part), [p[i] for p in pages], start)
        except CacheError as e:
            self.client.complain(e)  # not stored: it is computed again
        finally:
            with self.lock:
                self.waiting -= n

    def _cut(self, copies, layers, block):
        """The parts of a block, each of all those layers."""
        cut = [self.shards.cut(copies[n].bytes(block), self.layouts[n].width(self.caches[n])) for n in layers]
        return [b"".join(part) for part in zip(*cut)]

    def flush(self, seconds):
        """Whether all that was saved is stored or given up, after waiting that long at most."""
        return self.saving.flush(seconds)

    def get_finished(self, finished_req_ids):
        if self.stager and self.stager.broken:
            raise RuntimeError("weft.vllm: blocks that were promised could not be written to the cache") from self.stager.broken
        with self.lock:
            loaded, self.loaded = self.loaded, set()
        return None, loaded or None

    def build_connector_worker_meta(self):
        reports = self.stager.take() if self.stager else None
        return WeftFetched(reports) if reports else None

    def get_block_ids_with_load_errors(self):
        with self.lock:
            failed, self.failed = self.failed, set()
        return failed

    def handle_preemptions(self, *_):
        pass

    def shutdown(self):
        self.flush(1)
        for b in self.asking, self.loading, self.saving:
            b.close()
        self.client.close()
