"""A remote backend for LMCache on "weft kv serve".

WeftConnector has the methods of LMCache's RemoteConnector (asynchronous, by key); keys are CacheEngineKeys or their text. What is stored is
the memory object's bytes behind a head with shape and type, so that get can allocate the same. It was tested with a double that calls it in
LMCache's order; LMCache itself was not run.
"""

import asyncio
import json
import struct

from .kv import CacheError, Client

try:
    from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector
except ImportError:  # LMCache is not here

    class RemoteConnector:
        pass


class WeftConnector(RemoteConnector):
    def __init__(self, url, loop=None, local_cpu_backend=None, token=None, **_):
        """url: weft://HOST:PORT. local_cpu_backend allocates memory objects: allocate(shape, dtype, fmt)."""
        self.client = Client(url.split("://", 1)[-1], token)
        self.loop, self.backend = loop, local_cpu_backend

    @staticmethod
    def _name(key):
        return "lmcache|" + (key.to_string() if hasattr(key, "to_string") else str(key))

    async def _run(self, f, *args, **more):
        return await asyncio.get_running_loop().run_in_executor(None, lambda: f(*args, **more))

    def exists_sync(self, key):
        try:
            return self.client.match([self._name(key)], alone=True) == 1
        except CacheError:
            return False

    async def exists(self, key):
        return await self._run(self.exists_sync, key)

    async def get(self, key):
        return (await self.batched_get([key]))[0]

    async def put(self, key, memory_obj):
        await self.batched_put([key], [memory_obj])

    async def batched_get(self, keys):
        try:
            pages = await self._run(self.client.get, [self._name(k) for k in keys], alone=True)
        except CacheError:
            pages = [None] * len(keys)
        return [None if p is None else self._object(p) for p in pages]

    async def batched_put(self, keys, memory_objs):
        try:
            await self._run(self.client.put, [self._name(k) for k in keys], [self._page(m) for m in memory_objs], alone=True)
        except CacheError:
            pass  # not stored: it is computed again

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
        """Which of the keys are there. Behind the first that is not, all count as not there, unless the caller wants each."""
        if not stop_after_first_not_exits:
            return [self.exists_sync(k) for k in keys]
        try:
            n = self.client.match([self._name(k) for k in keys], alone=True)
        except CacheError:
            n = 0
        return [i < n for i in range(len(keys))]

    async def batched_async_contains(self, lookup_id, keys, pin=False):
        """How many of the keys are there from the first on. Nothing is pinned: a block that goes meanwhile is a miss."""
        return sum(await self._run(self.batched_contains, keys))

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

    def _page(self, m):
        meta = m.metadata
        head = json.dumps({"shape": list(meta.shape), "dtype": str(meta.dtype).removeprefix("torch."), "fmt": int(meta.fmt)}).encode()
        return struct.pack("<I", len(head)) + head + bytes(memoryview(m.byte_array).cast("B"))

    def _object(self, page):
        (n,) = struct.unpack_from("<I", page)
        head = json.loads(page[4 : 4 + n])
        m = self.backend.allocate(tuple(head["shape"]), head["dtype"], head["fmt"])
        if m is None:
            return None  # no memory: as if it were not there
        view = memoryview(m.byte_array).cast("B")
        data = page[4 + n :]
        if len(data) > len(view):
            return None
        view[: len(data)] = data
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
