"""A remote backend for LMCache on "weft kv serve". In LMCache's configuration:

    remote_url: "weft://127.0.0.1:7080"
    remote_serde: "naive"
    remote_storage_plugins: ["weft"]
    extra_config:
      remote_storage_plugin.weft.module_path: weft.lmcache
      remote_storage_plugin.weft.class_name: WeftConnectorAdapter

WeftConnector has the methods of LMCache's RemoteConnector (asynchronous, by key); keys are CacheEngineKeys or their text. What is stored is
the memory object's bytes behind a head with shape and type, so that get can allocate the same.

LMCache's multi-process server takes WeftL2Adapter instead:

    --l2-adapter '{"type": "plugin", "module_path": "weft.lmcache", "class_name": "WeftL2Adapter",
        "adapter_params": {"address": "127.0.0.1:7080", "kv_heads": 8}}'

With "kv_heads", the model's key and value heads, servers of every tensor-parallel width share objects. LMCache's keys do not tell stages of a
pipeline from tensor-parallel ranks: "pipeline_parallel" says how many stages there are, where there are several. Leave "kv_heads" out for models
with MLA, whose objects have no heads.

Both were tested with doubles that call them in LMCache's order and threads; LMCache itself was not run.
"""

import asyncio
import enum
import inspect
import itertools
import json
import math
import os
import struct
import threading

from ._background import Background
from ._shards import Shards
from .kv import CacheError, Client

try:
    from lmcache.v1.memory_management import MemoryFormat
    from lmcache.v1.storage_backend.connector import ConnectorAdapter
    from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector
except ImportError:  # LMCache is not here
    MemoryFormat = None

    class RemoteConnector:
        pass

    class ConnectorAdapter:
        def __init__(self, schema=""):
            self.schema = schema

        def can_parse(self, url):
            return self.schema != "" and url.startswith(self.schema)


try:
    from lmcache.native_storage_ops import Bitmap
    from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
except ImportError:  # nor in earlier versions

    class L2AdapterInterface:
        pass

    class Bitmap:
        def __init__(self, size):
            self.bits = [False] * size

        def set(self, index):
            self.bits[index] = True

        def test(self, index):
            return self.bits[index]


try:
    from lmcache.v1.distributed.internal_api import L2StoreResult
except ImportError:  # versions in which the result of a store is a truth value

    def L2StoreResult(success, bytes_transferred):
        return success


class WeftConnectorAdapter(ConnectorAdapter):
    """What LMCache makes a connector with for urls of weft://HOST:PORT."""

    def __init__(self):
        super().__init__("weft://")

    def create_connector(self, context):
        return WeftConnector(context.url, context.loop, context.local_cpu_backend, config=getattr(context, "config", None), metadata=getattr(context, "metadata", None))


def _address(url, config):
    """HOST:PORT out of weft://HOST:PORT, or of the configuration where LMCache gives no url of ours: extra_config has weft_address, or WEFT_KV is set."""
    if url and not url.startswith("plugin://"):
        return url.split("://", 1)[-1].split("/", 1)[0]
    return (getattr(config, "extra_config", None) or {}).get("weft_address")


class WeftConnector(RemoteConnector):
    def __init__(self, url=None, loop=None, local_cpu_backend=None, token=None, config=None, metadata=None, **_):
        """url: weft://HOST:PORT. local_cpu_backend allocates memory objects: allocate(shape, dtype, fmt)."""
        if "config" in inspect.signature(RemoteConnector.__init__).parameters:  # of later versions
            super().__init__(config or getattr(local_cpu_backend, "config", None), metadata or getattr(local_cpu_backend, "metadata", None))
        self.client = Client(_address(url, config), token, timeout=10.0, rest=5.0)
        self.loop, self.backend = loop, local_cpu_backend
        wants = inspect.signature(getattr(RemoteConnector, "batched_contains", self.batched_contains)).parameters
        self.counts = "stop_after_first_not_exits" not in wants  # versions of LMCache that want a number, not a list
        self.shards, self.space, self.row = Shards(1, 0, 1), "", 0
        self._share(metadata or getattr(local_cpu_backend, "metadata", None), getattr(config, "extra_config", None) or {})

    def _share(self, of, extra):
        """Where LMCache says how many heads a worker has, workers of every tensor-parallel width name chunks alike. With one head on each of several
        workers it does not say how many there are in all, which weft_kv_heads in extra_config does."""
        shape, ranks, rank = getattr(of, "kv_shape", None), getattr(of, "world_size", 1), getattr(of, "worker_id", 0)
        if not shape or len(shape) != 5 or getattr(of, "use_mla", False):
            return
        layers, _, _, heads, size = shape
        total = int(extra.get("weft_kv_heads", 0)) or (heads * ranks if heads > 1 or ranks == 1 else 0)
        if total and max(1, total // ranks) == heads:
            self.shards, self.row = Shards(total, rank, ranks), heads * size
            self.space = "heads %d of %d, %d layers" % (self.shards.parts, total, layers)

    def _names(self, key):
        """The names of a chunk's parts."""
        if not self.space:
            return ["lmcache|" + (key.to_string() if hasattr(key, "to_string") else str(key))]
        of = lambda name: getattr(key, name, None)
        what = [of("model_name"), str(of("chunk_hash")), str(of("dtype")), of("layer_id"), str(of("tags") or of("request_configs") or "")]
        text = json.dumps(what if of("chunk_hash") is not None else str(key))
        return ["lmcache|%s|%d|%s" % (self.space, i, text) for i in self.shards.mine]

    def _all_names(self, keys):
        return [name for k in keys for name in self._names(k)]

    async def _run(self, f, *args, **more):
        return await asyncio.get_running_loop().run_in_executor(None, lambda: f(*args, **more))

    def exists_sync(self, key):
        try:
            return self.client.match(self._names(key), alone=True) == self.shards.count
        except CacheError as e:
            self.client.complain(e)
            return False

    async def exists(self, key):
        return await self._run(self.exists_sync, key)

    async def get(self, key):
        return (await self.batched_get([key]))[0]

    async def put(self, key, memory_obj):
        await self.batched_put([key], [memory_obj])

    async def batched_get(self, keys):
        try:
            pages = await self._run(self.client.get, self._all_names(keys), alone=True)
        except CacheError as e:
            self.client.complain(e)
            return [None] * len(keys)
        n = self.shards.count
        chunks = [pages[i : i + n] for i in range(0, len(pages), n)]
        return [None if None in c else self._object(c) for c in chunks]

    async def batched_put(self, keys, memory_objs):
        try:
            if self.shards.stores:  # else another worker has the same heads
                await self._run(self.client.put, self._all_names(keys), [p for m in memory_objs for p in self._pages(m)], alone=True)
        except (CacheError, ValueError) as e:
            self.client.complain(e)  # not stored: it is computed again

    # LMCache asks which of these there are before it calls them.

    def support_batched_get(self):
        return True

    def support_batched_put(self):
        return True

    def support_batched_contains(self):
        return True

    def support_batched_async_contains(self):
        return True

    def support_batched_get_non_blocking(self):
        return True

    def batched_contains(self, keys, stop_after_first_not_exits=True):
        """Which of the keys are there. Behind the first that is not, all count as not there, unless the caller wants each. Where LMCache wants a
        number it is how many are there from the first on."""
        if not stop_after_first_not_exits:
            return [self.exists_sync(k) for k in keys]
        try:
            n = self.client.match(self._all_names(keys), alone=True) // self.shards.count
        except CacheError as e:
            self.client.complain(e)
            n = 0
        return n if self.counts else [i < n for i in range(len(keys))]

    async def batched_async_contains(self, lookup_id, keys, pin=False):
        """How many of the keys are there from the first on. Nothing is pinned: a block that goes meanwhile is a miss."""
        n = await self._run(self.batched_contains, keys)
        return n if self.counts else sum(n)

    async def batched_get_non_blocking(self, lookup_id, keys):
        """Those that are there, from the first on."""
        found = []
        for m in await self.batched_get(keys):
            if m is None:
                break
            found.append(m)
        return found

    def remove_sync(self, key):
        return False  # other workers use the block, too; it goes when room is needed

    def _pages(self, m):
        """The parts of an object, each behind a head with its shape. All heads of a token follow one another at the end of the shape."""
        meta, data, count = m.metadata, memoryview(m.byte_array).cast("B"), self.shards.count
        fmt, shape = meta.fmt.value if isinstance(meta.fmt, enum.Enum) else int(meta.fmt), list(meta.shape)
        if self.space and (not shape or shape[-1] != self.row):
            raise ValueError("an object of shape %s does not end with the %d numbers of this worker's heads; it is not stored" % (shape, self.row))
        if count > 1:
            shape[-1] //= count
        head = json.dumps({"shape": shape, "dtype": str(meta.dtype).removeprefix("torch."), "fmt": fmt}).encode()
        return [struct.pack("<I", len(head)) + head + bytes(p) for p in self.shards.cut(data, self._width(len(data), meta.shape))]

    @staticmethod
    def _width(size, shape):
        return size // (math.prod(shape[:-1]) or 1)

    def _object(self, pages):
        heads, datas = [], []
        for page in pages:
            (n,) = struct.unpack_from("<I", page)
            heads.append(json.loads(page[4 : 4 + n]))
            datas.append(memoryview(page)[4 + n :])
        head, data = heads[0], datas[0]
        shape, dtype, fmt = tuple(head["shape"]), head["dtype"], head["fmt"]
        if len(pages) > 1:
            if any(h != head for h in heads[1:]):
                return None  # parts of different objects
            shape = shape[:-1] + (shape[-1] * len(pages),)
            data = self.shards.join(datas, self._width(sum(len(d) for d in datas), shape))
        if MemoryFormat is not None:
            import torch

            shape, dtype, fmt = torch.Size(shape), getattr(torch, dtype), MemoryFormat(fmt)
        m = self.backend.allocate(shape, dtype, fmt)
        if m is None:
            return None  # no memory: as if it were not there
        view = memoryview(m.byte_array).cast("B")
        if len(data) != len(view):
            if hasattr(m, "ref_count_down"):
                m.ref_count_down()  # its memory goes back
            return None
        view[:] = data
        return m

    async def list(self):
        return []  # the cache is never listed

    def support_ping(self):
        return True

    async def ping(self):
        try:
            await self._run(self.client.stat)
            return 0
        except CacheError:
            return 1

    async def close(self):
        self.client.close()


class WeftL2Adapter(L2AdapterInterface):
    """Objects of LMCache's multi-process server.

    No call waits for the cache. A task runs in the background; when it is over its result is there and its event descriptor is readable.
    Failed lookups and loads are zeros in the bitmap, failed stores are failed tasks. The cache evicts by itself and pins nothing: an object
    that goes between lookup and load is a load that fails. Buffers are written only before their task's result is there, and never after close.
    """

    def __init__(self, config=None, l1_memory_desc=None):
        super().__init__()
        config = dict(config or {})
        self.client = Client(config.get("address"), config.get("token"), timeout=float(config.get("timeout", 10)), rest=float(config.get("rest", 5)))
        self.heads, self.stages = int(config.get("kv_heads", 0)), int(config.get("pipeline_parallel", 1))
        self.storing, self.looking, self.loading = Background(1), Background(2), Background(4)
        self.fds = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(3)]
        # Under the lock: results by task, whether the adapter is closed, and every write to a buffer.
        self.lock, self.closed, self.ids = threading.Lock(), False, itertools.count()
        self.stored, self.found, self.loaded = {}, {}, {}

    def get_store_event_fd(self):
        return self.fds[0]

    def get_lookup_and_lock_event_fd(self):
        return self.fds[1]

    def get_load_event_fd(self):
        return self.fds[2]

    def _share(self, key):
        """The parts of an object that its rank has, and the beginning of their names. kv_rank is LMCache's: world size, rank and both on the host,
        eight bits each."""
        if not self.heads:
            return Shards(1, 0, 1), [key.kv_rank]
        ranks, rank = key.kv_rank >> 24 & 255, key.kv_rank >> 16 & 255
        if not ranks or ranks % self.stages:
            raise ValueError("%d ranks in %d stages of a pipeline: set \"pipeline_parallel\" to what the engine has" % (ranks, self.stages))
        tp = ranks // self.stages
        shards = Shards(self.heads, rank % tp, tp)
        return shards, ["heads", self.heads, shards.parts, self.stages, rank // tp]

    def _names(self, key):
        group, salt = getattr(key, "object_group_id", 0), getattr(key, "cache_salt", "")
        shards, who = self._share(key)
        text = json.dumps([key.model_name, *who, group, salt, key.chunk_hash.hex()])
        return ["lmcache2|%s%s" % (text, "|%d" % i if self.heads else "") for i in shards.mine]

    def _width(self, obj, size, shards):
        """The bytes of one run of all heads of a rank: the last axis of an object."""
        if shards.count == 1:
            return size
        shape = getattr(getattr(obj, "metadata", None), "shape", None)
        if not shape or shape[-1] % shards.count:
            raise ValueError("an object of shape %s does not end with %d heads; start without \"kv_heads\"" % (shape, shards.count))
        return size // (math.prod(shape[:-1]) or 1)

    def _submit(self, background, work, results, fd, failed):
        """Runs work in the background. What it returns, or failed, is the result of the task whose number is returned."""
        task = next(self.ids)

        def run():
            result = failed
            try:
                result = work()
            except Exception as e:  # whatever it is: a task without a result would be waited for without end
                self.client.complain(e)
            with self.lock:
                if not self.closed:
                    results[task] = result
                    os.eventfd_write(fd, 1)

        background.add(run)
        return task

    def submit_store_task(self, keys, objects):
        def store():
            names, parts, size = [], [], 0
            for k, o in zip(keys, objects):
                page, shards = memoryview(o.byte_array).cast("B"), self._share(k)[0]
                size += len(page)
                if shards.stores:  # else another rank has the same heads
                    names += self._names(k)
                    parts += shards.cut(page, self._width(o, len(page), shards))
            return L2StoreResult(self.client.put(names, parts, alone=True) == len(names), size)

        return self._submit(self.storing, store, self.stored, self.fds[0], L2StoreResult(False, 0))

    def pop_completed_store_tasks(self):
        with self.lock:
            done = dict(self.stored)
            self.stored.clear()
        return done

    def submit_lookup_and_lock_task(self, keys):
        def look():
            names = [self._names(k) for k in keys]
            have = iter(self.client.which([n for many in names for n in many]))
            return _bitmap([all([next(have) for _ in many]) for many in names])

        return self._submit(self.looking, look, self.found, self.fds[1], _bitmap([False] * len(keys)))

    def query_lookup_and_lock_result(self, task_id):
        with self.lock:
            return self.found.pop(task_id, None)

    def submit_unlock(self, keys):
        pass  # nothing is pinned

    def submit_load_task(self, keys, objects):
        def load():
            names = [self._names(k) for k in keys]
            pages = iter(self.client.get([n for many in names for n in many], alone=True))
            return _bitmap([self._fill(k, o, [next(pages) for _ in many]) for k, o, many in zip(keys, objects, names)])

        return self._submit(self.loading, load, self.loaded, self.fds[2], _bitmap([False] * len(keys)))

    def _fill(self, key, obj, parts):
        shards = self._share(key)[0]
        with self.lock:
            if self.closed or None in parts:
                return False
            view = memoryview(obj.byte_array).cast("B")
            if len(view) != sum(len(p) for p in parts):
                return False
            view[:] = shards.join(parts, self._width(obj, len(view), shards))
            return True

    def query_load_result(self, task_id):
        with self.lock:
            return self.loaded.pop(task_id, None)

    def delete(self, keys):
        pass  # other servers use the objects, too; they go when room is needed

    def report_status(self):
        return {"is_healthy": not self.client.resting(), "type": "WeftL2Adapter", "address": self.client.address}

    def close(self):
        self.storing.flush(1)
        with self.lock:
            self.closed = True
            for fd in self.fds:
                os.close(fd)
        for b in self.storing, self.looking, self.loading:
            b.close()
        self.client.close()


def _bitmap(bits):
    b = Bitmap(len(bits))
    for i, bit in enumerate(bits):
        if bit:
            b.set(i)
    return b
