"""A KV connector for vLLM on "weft kv serve": prefixes that any worker has computed are read instead of computed.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "WeftConnector", "kv_connector_module_path": "weft.vllm",
        "kv_role": "kv_both", "kv_connector_extra_config": {"address": "127.0.0.1:7080"}}'

All workers need the same PYTHONHASHSEED and --prefix-caching-hash-algo sha256_cbor; the cache refuses others. A block that cannot be read is
told to vLLM by get_block_ids_with_load_errors, which computes it again or fails the request, as kv_load_failure_policy says.

This class follows KVConnectorBase_V1 as documented. It was tested with a double of the scheduler and the worker that calls its methods in
vLLM's order; vLLM itself was not run.
"""

import collections
import hashlib
import os
import threading

from . import _pages
from .kv import CacheError, Chain, Client

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole
except ImportError:  # vLLM is not here: the double drives the class alone
    KVConnectorBase_V1 = None

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata
except ImportError:  # nor in earlier versions

    class KVConnectorHandshakeMetadata:
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
        self.loads = []  # (request, keys of the whole path, first index, block ids from there on)
        self.stores = []  # (request, keys of the whole path, first index, block ids of the whole path)


class WeftOrder(KVConnectorHandshakeMetadata):
    """How a worker's cache orders the bytes of a block, where that is not as most have it."""

    def __init__(self, order):
        self.order = order


class _Tracked:
    """A request: names and blocks of its path, how many of them vLLM has (local), are to be there after loading (matched), and the cache has (stored)."""

    def __init__(self, keys):
        self.keys, self.blocks, self.matched, self.local, self.stored = keys, [], 0, 0, 0


def _first(ids):
    """The block numbers of the only group of caches, as a list."""
    if not ids:
        return []
    return list(ids[0] if isinstance(ids[0], (list, tuple)) else ids)


class WeftConnector(KVConnectorBase_V1):
    def __init__(self, vllm_config, role, kv_cache_config=None):
        try:
            super().__init__(vllm_config, role, kv_cache_config)
        except TypeError:  # versions without the third argument
            super().__init__(vllm_config, role)
        extra = dict(getattr(vllm_config.kv_transfer_config, "kv_connector_extra_config", None) or {})
        self.block = vllm_config.cache_config.block_size
        seed = str(extra.get("seed") or os.environ.get("PYTHONHASHSEED") or "")
        self.chain = Chain("vllm", self.block, seed) if seed else None
        if self.chain is None:
            raise ValueError("PYTHONHASHSEED is not set: workers would name the same blocks differently; set it to one value everywhere")
        # Caches of different models, types and shares of heads and layers are different blocks.
        model, cache, parallel = vllm_config.model_config, vllm_config.cache_config, getattr(vllm_config, "parallel_config", None)
        parts = [getattr(model, "model", ""), getattr(model, "revision", None), getattr(model, "dtype", ""), getattr(cache, "cache_dtype", "auto")]
        parts += [getattr(parallel, what + "_size", 1) for what in ("world", "tensor_parallel", "pipeline_parallel", "decode_context_parallel", "prefill_context_parallel")]
        self.shared = "|".join(str(p) for p in parts)
        self._order("")
        self.rank = getattr(parallel, "rank", 0)
        self.client = Client(extra.get("address"), extra.get("token"), self.chain.print(), float(extra.get("timeout", 10)), rest=float(extra.get("rest", 5)))
        if len(getattr(kv_cache_config, "kv_cache_groups", None) or ()) > 1:
            raise ValueError("the cache has %d groups of layers with blocks of their own; weft.vllm takes one: start vLLM with --disable-hybrid-kv-cache-manager" % len(kv_cache_config.kv_cache_groups))
        self.count = getattr(cache, "num_gpu_blocks", None) or getattr(kv_cache_config, "num_blocks", None)
        self.tracked, self.caches, self.layouts = {}, {}, {}
        # failed: blocks to tell vLLM of; lost: those of the last steps, as vLLM may be a step ahead; spoiled: requests that were computed behind one.
        self.saved, self.failed, self.lost, self.spoiled, self.loading = {}, set(), collections.deque(maxlen=4), set(), None

    requires_kv_delivery = False  # what is not stored is computed again

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config):
        return True  # layers wait for their blocks and are saved one by one, which a graph of the whole model would leave out

    def _keys(self, hashes):
        return ["%s|%d|%s" % (self.space, self.rank, bytes(h).hex()) for h in hashes]

    # The scheduler's side.

    def _hashes(self, request):
        known = getattr(request, "block_hashes", None)
        if known:
            return [h if isinstance(h, (bytes, bytearray)) else bytes(getattr(h, "hash_value", b"")) for h in known]
        if getattr(request, "mm_features", None) or getattr(request, "prompt_token_ids", None) is None:
            return []  # pictures and embeddings are not in the tokens: only vLLM's own names tell them apart
        return self.chain.hashes(request.prompt_token_ids, getattr(getattr(request, "lora_request", None), "lora_name", None), getattr(request, "cache_salt", None))

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        t = self.tracked[request.request_id] = _Tracked(self._hashes(request))
        t.local = num_computed_tokens // self.block
        most = (request.num_tokens - 1) // self.block  # one token at least is computed
        try:
            have = self.client.match(self._keys(t.keys[:most])) if most else 0
        except CacheError as e:
            self.client.complain(e)
            have = 0  # a cache that is away costs computing, not requests
        t.matched, t.stored = max(have, t.local), have
        return (t.matched - t.local) * self.block, False

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        t = self.tracked.get(request.request_id)
        if t is not None:
            t.blocks = _first(blocks.get_block_ids())
            t.matched = t.local + num_external_tokens // self.block

    def build_connector_meta(self, scheduler_output):
        meta = WeftMetadata()
        for r in scheduler_output.scheduled_new_reqs:
            self._begin(meta, r.req_id, r.block_ids, r.num_computed_tokens + scheduler_output.num_scheduled_tokens[r.req_id])
        cached = scheduler_output.scheduled_cached_reqs
        for i, name in enumerate(getattr(cached, "req_ids", ())):
            computed = cached.num_computed_tokens[i] + scheduler_output.num_scheduled_tokens[name]
            if self._resumed(cached, i, name):
                self._begin(meta, name, cached.new_block_ids[i], computed)
                continue
            t = self.tracked.get(name)
            if t is not None:
                t.blocks += _first(cached.new_block_ids[i])
                self._store(meta, name, t, computed)
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
        t = self.tracked.get(name)
        if t is None:
            return
        t.blocks = _first(ids)
        if t.matched > t.local:
            meta.loads.append((name, t.keys[: t.matched], t.local, t.blocks[t.local : t.matched]))
        self._store(meta, name, t, computed)

    def _store(self, meta, name, t, computed):
        """Whole blocks of the prompt that this step completes."""
        end = min(computed // self.block, len(t.keys), len(t.blocks))
        if end > t.stored:
            meta.stores.append((name, t.keys[:end], t.stored, t.blocks[:end]))
            t.stored = end

    def request_finished(self, request, block_ids):
        self.tracked.pop(request.request_id, None)
        return False, None  # stores are done when wait_for_save returns: the blocks may be used again

    def take_events(self):
        return ()

    def has_pending_push_work(self):
        return False

    # The worker's side.

    def register_kv_caches(self, kv_caches):
        count = getattr(getattr(self._vllm_config, "cache_config", None), "num_gpu_blocks", None) or self.count
        layouts = {}
        for name, tensor in kv_caches.items():
            shape = getattr(tensor, "shape", None)
            if shape is None:
                raise ValueError("layer %s: its cache is a %s, not one tensor of blocks; weft.vllm does not know how to move it" % (name, type(tensor).__name__))
            try:
                layouts[name] = _pages.Layout(shape, count, self.block)
            except ValueError as e:
                raise ValueError("layer %s: %s" % (name, e)) from None
        if len({l.blocks() for l in layouts.values()}) > 1:
            raise ValueError("layers have different numbers of blocks: %s" % ", ".join("%s %d" % (n, l.blocks()) for n, l in layouts.items()))
        self.caches, self.layouts = dict(kv_caches), layouts
        self._order("|".join("%s %s" % (n, l.odd) for n, l in layouts.items() if l.odd))

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

    def start_load_kv(self, forward_context=None, **kwargs):
        self._loaded()  # of a step that was broken off
        self.lost.append(set())
        loads = self._get_connector_metadata().loads
        if not loads:
            return
        done = {name: threading.Event() for name in self.caches}
        self.loading = (threading.Thread(target=self._load, args=(loads, done), daemon=True), done)
        self.loading[0].start()

    def _load(self, loads, done):
        try:
            sizes = [self.layouts[name].size(t) for name, t in self.caches.items()]
            for name, keys, start, blocks in loads:
                missing = set(blocks)
                try:
                    for page, block in zip(self.client.get(self._keys(keys), start), blocks):
                        if page is None or len(page) != sum(sizes):
                            continue
                        at = 0
                        for (layer, tensor), n in zip(self.caches.items(), sizes):
                            self.layouts[layer].write(tensor, block, page[at : at + n])
                            at += n
                        missing.discard(block)
                except CacheError as e:
                    self.client.complain(e)  # what is missing is told
                finally:
                    if missing:
                        self.failed |= missing
                        self.lost[-1].update(missing)
                        self.spoiled.add(name)
        finally:
            for e in done.values():
                e.set()

    def _loaded(self):
        """Waits until loading is over."""
        if self.loading:
            self.loading[0].join()
            self.loading = None

    def wait_for_layer_load(self, layer_name):
        if self.loading:
            done = self.loading[1].get(layer_name)
            if done is None:  # a layer that uses another's cache
                self.loading[0].join()
            else:
                done.wait()

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata=None, **kwargs):
        meta = self._get_connector_metadata()
        blocks = {b for _, _, start, blocks in meta.stores for b in blocks[start:]}
        layout = self.layouts.get(layer_name)
        if layout:  # one without uses another's cache
            self.saved[layer_name] = {b: layout.read(kv_layer, b) for b in blocks}

    def wait_for_save(self):
        self._loaded()
        saved, self.saved = self.saved, {}
        for request, keys, start, blocks in self._get_connector_metadata().stores:
            # What was computed behind a block that was not loaded must not be stored under its name: by the request that loads it, and by
            # those that share the block with it.
            if any(not lost.isdisjoint(blocks) for lost in self.lost):
                self.spoiled.add(request)
            if request in self.spoiled or any(name not in saved for name in self.caches):
                continue
            try:
                self.client.put(self._keys(keys), [b"".join(saved[name][b] for name in self.caches) for b in blocks[start:]], start)
            except CacheError as e:
                self.client.complain(e)  # not stored: it is computed again

    def get_finished(self, finished_req_ids):
        self.spoiled -= set(finished_req_ids)
        return None, None

    def get_block_ids_with_load_errors(self):
        self._loaded()
        failed, self.failed = self.failed, set()
        return failed

    def handle_preemptions(self, *_):
        pass

    def shutdown(self):
        self._loaded()
        self.client.close()
