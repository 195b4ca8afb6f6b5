"""SGLang's HiCache controller and LMCache's multi-process controllers in small, against the real clients and a real cache service.

The threads and the order of calls are those of the engines' sources: SGLang cce0a12 (managers/cache_controller.py, mem_cache/hiradix_cache.py),
LMCache 00c5e64 (distributed/storage_controllers/prefetch_controller.py) and 000e877 (l2_adapters/base.py, distributed/api.py). The engines themselves are not run.
Run by "go test ./app/cli -run Python"; WEFT_PROGRAM names the weft program.
"""

import ctypes
import hashlib
import itertools
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import types
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from weft.lmcache import WeftL2Adapter  # noqa: E402
from weft.sglang import WeftStorage  # noqa: E402

LIMIT = 20  # seconds until something that should have happened counts as a failure


def noise(n, *seed):
    return b"".join(hashlib.sha256(repr((seed, i)).encode()).digest() for i in range((n + 31) // 32))[:n]


class Cache:
    """A cache service of a test's own."""

    def __init__(self, test):
        line = [os.environ["WEFT_PROGRAM"], "kv", "serve", "--listen", "127.0.0.1:0", "--memory", "8MiB", "--block", "4KiB"]
        self.process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        test.addCleanup(self.end)
        self.address = self.process.stdout.readline().split("http://")[1].split(",")[0]

    def freeze(self):
        """A signal is only sent when kill returns; waitpid returns when all threads have stopped."""
        self.process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), status

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def end(self):
        if not self.process.stdout.closed:
            self.thaw()
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()


def hasten(client):
    """Shortens a client's patience. Only for calls to a frozen cache: others must not fail because this machine is busy."""
    client.timeout = 0.3
    for c in client._idle:
        c.close()
    client._idle.clear()


class Log:
    """Notes which thread makes which call, and passes it on."""

    def __init__(self, inner):
        self.inner, self.calls = inner, []

    def __getattr__(self, name):
        f = getattr(self.inner, name)
        if not name.startswith(("batch_", "submit_", "query_", "pop_")):
            return f

        def call(*args, **more):
            size = len(args[0]) if args and hasattr(args[0], "__len__") else None
            self.calls.append((threading.current_thread().name, name, size))
            return f(*args, **more)

        return call

    def of(self, thread):
        return [c[1:] for c in self.calls if c[0] == thread]


class Pool:
    """Host memory in pages: keys and values apart, as SGLang's page first layout."""

    def __init__(self, pages, size=64):
        self.size, self.free = size, list(range(pages))
        self.k, self.v = (ctypes.create_string_buffer(pages * size) for _ in range(2))

    def get_page_buffer_meta(self, indices):
        at = [ctypes.addressof(m) + i * self.size for i in indices for m in (self.k, self.v)]
        return at, [self.size] * len(at)

    def fill(self, page, data):
        for m, part in (self.k, data[: self.size]), (self.v, data[self.size :]):
            ctypes.memmove(ctypes.addressof(m) + page * self.size, part, self.size)

    def read(self, page):
        return b"".join(m.raw[page * self.size : (page + 1) * self.size] for m in (self.k, self.v))


class Operation:
    def __init__(self, hashes, pools=()):
        self.hashes, self.pools, self.pages, self.done, self.over = hashes, list(pools), None, 0, threading.Event()
        self.lock, self.stopped = threading.Lock(), False

    def stop(self):
        with self.lock:
            self.stopped = True
            return self.done

    def add(self, n):
        with self.lock:
            if not self.stopped:
                self.done += n


class HiCache:
    """The controller: a prefetch thread that looks up, one that reads, one that writes, and the scheduler, who is the caller."""

    BATCH = 128

    def __init__(self, test, cache, pages=512, **extra):
        config = types.SimpleNamespace(model_name="m", tp_rank=0, tp_size=1, is_mla_model=False, extra_config={"address": cache.address, **extra})
        self.pool, self.storage = Pool(pages), Log(WeftStorage(config, {}))
        self.storage.register_mem_pool_host(self.pool)
        self.asked, self.hits, self.buffer, self.backups, self.acks, self.released = (queue.Queue() for _ in range(6))
        self.threads = [threading.Thread(target=f, name=f.__name__) for f in (self.prefetch_thread, self.io_thread, self.backup_thread)]
        for t in self.threads:
            t.start()
        test.addCleanup(self.close)

    def close(self):
        for q in self.asked, self.buffer, self.backups:
            q.put(None)
        for t in self.threads:
            t.join(10)  # SGLang's limit
            assert not t.is_alive(), t.name + " does not end"
        self.storage.close()

    def prefetch_thread(self):
        for op in iter(self.asked.get, None):
            hit = 0
            for at in range(0, len(op.hashes), self.BATCH) if not op.stopped else ():
                batch = op.hashes[at : at + self.BATCH]
                if op.pools:
                    n = self.storage.batch_exists_v2(batch, op.pools).kv_hit_pages
                else:
                    n = self.storage.batch_exists(batch)
                hit += n
                if n < len(batch):
                    break
            op.hashes = op.hashes[:hit]
            self.hits.put(op)

    def io_thread(self):
        for op in iter(self.buffer.get, None):
            for at in range(0, len(op.hashes), self.BATCH):
                batch, pages = op.hashes[at : at + self.BATCH], op.pages[at : at + self.BATCH]
                got = self.storage.batch_get_v1(batch, pages)
                n = got.index(False) if False in got else len(got)
                op.add(n)
                if n < len(batch) or op.stopped:
                    op.stop()
                    break
            for page in op.pages[op.done :]:
                self.released.put(page)
            op.over.set()

    def backup_thread(self):
        for hashes, pages in iter(self.backups.get, None):
            done = 0
            for at in range(0, len(hashes), self.BATCH):
                if not all(self.storage.batch_set_v1(hashes[at : at + self.BATCH], pages[at : at + self.BATCH])):
                    break
                done += len(hashes[at : at + self.BATCH])
            self.acks.put(done)

    # The scheduler: none of these may wait for storage.

    def prefetch(self, hashes, pools=()):
        op = Operation(hashes, pools)
        self.asked.put(op)
        return op

    def step(self, block=False):
        """Takes one lookup's answer, if there is one or block says to wait, and gives it memory; takes freed memory back."""
        while not self.released.empty():
            self.pool.free.append(self.released.get())
        if self.hits.empty() and not block:
            return None
        op = self.hits.get(timeout=LIMIT)
        op.pages = [self.pool.free.pop() for _ in op.hashes]
        self.buffer.put(op)
        return op


class SGLang(unittest.TestCase):
    def hashes(self, n, seed):
        return [hashlib.sha256(b"%d %d" % (seed, i)).hexdigest() for i in range(n)]

    def fill(self, engine, hashes):
        pages = [engine.pool.free.pop() for _ in hashes]
        for p, h in zip(pages, hashes):
            engine.pool.fill(p, noise(128, h))
        return pages

    def backed_up(self, cache, hashes):
        e = HiCache(self, cache)
        e.backups.put((hashes, self.fill(e, hashes)))
        self.assertEqual(e.acks.get(timeout=LIMIT), len(hashes))
        return e

    def test_order_and_bytes(self):
        """300 pages are three batches of each call, each on its thread; the scheduler calls nothing."""
        cache, hashes = Cache(self), self.hashes(300, 1)
        a, b = self.backed_up(cache, hashes), HiCache(self, cache)
        op = b.prefetch(hashes + self.hashes(5, 2))
        b.step(block=True)
        self.assertTrue(op.over.wait(LIMIT))
        self.assertEqual((op.done, len(op.pages)), (300, 300))
        for h, p in zip(hashes, op.pages):
            self.assertEqual(b.pool.read(p), noise(128, h))
        self.assertEqual(a.storage.of("backup_thread"), [("batch_set_v1", n) for n in (128, 128, 44)])
        self.assertEqual(b.storage.of("prefetch_thread"), [("batch_exists", n) for n in (128, 128, 49)])
        self.assertEqual(b.storage.of("io_thread"), [("batch_get_v1", n) for n in (128, 128, 44)])
        self.assertEqual(len(b.storage.calls), 6)  # and none on another thread

    def test_a_frozen_cache(self):
        """The cache freezes before the lookup or before the read: the scheduler goes on, pages come back, and nobody writes to them later."""
        for when in "lookup", "read":
            with self.subTest(when):
                cache, hashes = Cache(self), self.hashes(200, 3)
                self.backed_up(cache, hashes)
                e = HiCache(self, cache, pages=200, timeout=60, rest=3600)
                if when == "lookup":
                    cache.freeze()
                    hasten(e.storage.inner.client)
                op = e.prefetch(hashes)
                if when == "read":
                    hit = e.hits.get(timeout=LIMIT)
                    cache.freeze()
                    hasten(e.storage.inner.client)
                    e.hits.put(hit)
                    e.step()
                    self.assertEqual(op.stop(), 0)  # the scheduler waits no longer, while the read is under way or about to be
                else:
                    for _ in range(100):
                        self.assertTrue(e.hits.empty() or e.step())  # "not yet" costs the scheduler nothing
                    if op.pages is None:
                        e.step(block=True)
                self.assertTrue(op.over.wait(LIMIT))
                self.assertEqual(op.done, 0)
                e.step()
                self.assertEqual(sorted(e.pool.free), list(range(200)))
                for p in range(200):
                    e.pool.fill(p, b"\7" * 128)
                cache.thaw()
                # The cache answers again, and a new client reads from it: whatever was late has had its time.
                self.assertEqual(HiCache(self, cache).storage.batch_exists(hashes), 200)
                self.assertEqual({e.pool.read(p) for p in range(200)}, {b"\7" * 128})
                self.assertEqual(e.storage.batch_exists(hashes), 0)  # left alone
                cache.end()

    def test_a_cache_that_dies(self):
        cache, hashes = Cache(self), self.hashes(130, 4)
        self.backed_up(cache, hashes)
        e = HiCache(self, cache)
        op = e.prefetch(hashes)
        hit = e.hits.get(timeout=LIMIT)
        cache.end()
        e.hits.put(hit)
        e.step()
        self.assertTrue(op.over.wait(LIMIT))
        self.assertEqual((op.done, e.storage.of("io_thread")), (0, [("batch_get_v1", 128)]))
        e.backups.put((hashes, self.fill(e, hashes)))
        self.assertEqual(e.acks.get(timeout=LIMIT), 0)

    def test_hybrid_pools(self):
        """A pool that needs its last page alone is asked for all pages in one call."""
        cache, hashes = Cache(self), self.hashes(100, 5)
        a = self.backed_up(cache, hashes)
        mamba = Pool(8)
        a.storage.register_mem_host_pool_v2(mamba, "mamba")
        of = lambda keys, pages: types.SimpleNamespace(name="mamba", keys=keys, host_indices=pages, hit_policy="trailing_pages")
        mamba.fill(3, noise(128, "state"))
        self.assertEqual(a.storage.batch_set_v2([of([hashes[41]], [3])]), {"mamba": [True]})
        b, other = HiCache(self, cache), Pool(8)
        b.storage.register_mem_host_pool_v2(other, "mamba")
        requests = []
        inner = b.storage.inner.client._request
        b.storage.inner.client._request = lambda *args: (requests.append(args[1]), inner(*args))[1]
        op = b.prefetch(hashes, [of([hashes[-1]], None)])
        b.step(block=True)
        self.assertTrue(op.over.wait(LIMIT))
        self.assertEqual((op.done, requests), (42, ["/v1/match", "/v1/match", "/v1/get"]))
        self.assertEqual(b.storage.batch_get_v2([of([hashes[41]], [0])]), {"mamba": [True]})
        self.assertEqual(other.read(0), noise(128, "state"))


class Object:
    def __init__(self, n, data=b""):
        self.byte_array = bytearray(data or n)


class Server:
    """LMCache's two controllers: one thread polls for stores, one for lookups and loads."""

    def __init__(self, test, cache, **extra):
        self.adapter = Log(WeftL2Adapter({"address": cache.address, **extra}))
        self.wake = {name: os.eventfd(0, os.EFD_NONBLOCK) for name in ("store", "prefetch")}
        self.todo, self.stored, self.fetched, self.stop = {"store": [], "prefetch": []}, queue.Queue(), queue.Queue(), False
        self.threads = [threading.Thread(target=self.store_thread, name="store"), threading.Thread(target=self.prefetch_thread, name="prefetch")]
        for t in self.threads:
            t.start()
        test.addCleanup(self.close)

    def close(self):
        if self.stop:
            return
        self.stop = True
        for fd in self.wake.values():
            os.eventfd_write(fd, 1)
        for t in self.threads:
            t.join(LIMIT)
            assert not t.is_alive(), t.name + " does not end"
        self.adapter.close()
        for fd in self.wake.values():
            os.close(fd)

    def submit(self, name, *what):
        self.todo[name].append(what)
        os.eventfd_write(self.wake[name], 1)

    def poll(self, *fds):
        p = select.poll()
        for fd in fds:
            p.register(fd, select.POLLIN)
        while not self.stop:
            ready = [fd for fd, _ in p.poll(1000)]
            for fd in ready:
                try:
                    os.eventfd_read(fd)
                except BlockingIOError:
                    pass
            yield ready

    def store_thread(self):
        tasks = {}
        for _ in self.poll(self.wake["store"], self.adapter.get_store_event_fd()):
            while self.todo["store"]:
                name, keys, objects = self.todo["store"].pop(0)
                tasks[self.adapter.submit_store_task(keys, objects)] = name
            for task, result in self.adapter.pop_completed_store_tasks().items():
                self.stored.put((tasks.pop(task), bool(result)))

    def prefetch_thread(self):
        a, looking, loading = self.adapter, {}, {}
        for _ in self.poll(self.wake["prefetch"], a.get_lookup_and_lock_event_fd(), a.get_load_event_fd()):
            while self.todo["prefetch"]:
                name, keys, objects = self.todo["prefetch"].pop(0)
                looking[a.submit_lookup_and_lock_task(keys)] = name, keys, objects
            for task in list(looking):
                found = a.query_lookup_and_lock_result(task)
                if found is None:
                    continue
                assert a.query_lookup_and_lock_result(task) is None  # once only
                name, keys, objects = looking.pop(task)
                n = next((i for i in range(len(keys)) if not found.test(i)), len(keys))
                extra = [k for i, k in enumerate(keys) if i >= n and found.test(i)]
                if extra:
                    a.submit_unlock(extra)
                if n:
                    loading[a.submit_load_task(keys[:n], objects[:n])] = name, keys[:n]
                else:
                    self.fetched.put((name, []))
            for task in list(loading):
                loaded = a.query_load_result(task)
                if loaded is None:
                    continue
                name, keys = loading.pop(task)
                a.submit_unlock(keys)
                self.fetched.put((name, [loaded.test(i) for i in range(len(keys))]))


class LMCache(unittest.TestCase):
    def keys(self, n, seed, group=0, salt=""):
        return [types.SimpleNamespace(chunk_hash=hashlib.sha256(b"%d %d" % (seed, i)).digest(), model_name="m", kv_rank=1 << 24, object_group_id=group, cache_salt=salt) for i in range(n)]

    def stored(self, cache, keys):
        s = Server(self, cache)
        s.submit("store", "a", keys, [Object(0, noise(500, k.chunk_hash)) for k in keys])
        self.assertEqual(s.stored.get(timeout=LIMIT), ("a", True))
        return s

    def test_order_and_bytes(self):
        cache, keys = Cache(self), self.keys(20, 1)
        a = self.stored(cache, keys)
        fds = {f() for f in (a.adapter.get_store_event_fd, a.adapter.get_lookup_and_lock_event_fd, a.adapter.get_load_event_fd)}
        self.assertEqual(len(fds), 3)
        b = Server(self, cache)
        objects = [Object(500) for _ in range(25)]
        b.submit("prefetch", "x", keys + self.keys(5, 2), objects)
        self.assertEqual(b.fetched.get(timeout=LIMIT), ("x", [True] * 20))
        for k, o in zip(keys, objects):
            self.assertEqual(bytes(o.byte_array), noise(500, k.chunk_hash))
        self.assertEqual([bytes(o.byte_array) for o in objects[20:]], [bytes(500)] * 5)
        order = [c for c in b.adapter.of("prefetch") if c[0].startswith("submit")]
        self.assertEqual(order, [("submit_lookup_and_lock_task", 25), ("submit_load_task", 20), ("submit_unlock", 20)])
        # A buffer of another size is a load that fails; other groups and salts are other objects.
        b.submit("prefetch", "y", keys[:2], [Object(499), Object(500)])
        self.assertEqual(b.fetched.get(timeout=LIMIT), ("y", [False, True]))
        for other in dict(group=1), dict(salt="s"):
            b.submit("prefetch", "z", self.keys(20, 1, **other), objects)
            self.assertEqual(b.fetched.get(timeout=LIMIT), ("z", []))
        # Behind one that is not there the others are found, too, and unlocked: LMCache may load them.
        b.submit("prefetch", "gap", self.keys(1, 9) + keys[:3], objects)
        self.assertEqual(b.fetched.get(timeout=LIMIT), ("gap", []))
        self.assertIn(("submit_unlock", 3), b.adapter.of("prefetch"))

    def test_a_frozen_cache(self):
        """Tasks return at once while the cache is frozen; they end as failures, or succeed when it goes on."""
        cache, keys = Cache(self), self.keys(8, 3)
        self.stored(cache, keys)
        s = Server(self, cache, timeout=60, rest=0)
        cache.freeze()
        hasten(s.adapter.inner.client)
        s.submit("prefetch", "x", keys, [Object(500) for _ in keys])
        s.submit("store", "y", self.keys(2, 4), [Object(500)] * 2)
        self.assertEqual((s.fetched.get(timeout=LIMIT), s.stored.get(timeout=LIMIT)), (("x", []), ("y", False)))
        cache.thaw()
        s.adapter.inner.client.timeout = 60
        s.submit("prefetch", "x", keys, [Object(500) for _ in keys])
        self.assertEqual(s.fetched.get(timeout=LIMIT), ("x", [True] * 8))

    def test_any_width_reads_what_another_stored(self):
        """Objects (keys or values, layer, slot, heads of a rank) of some ranks, loaded by another number of them. Each byte says where it belongs."""
        heads, dim, layers, slots = 8, 3, 2, 4

        def key(rank, ranks, chunk):
            return types.SimpleNamespace(chunk_hash=hashlib.sha256(b"%d" % chunk).digest(), model_name="m", kv_rank=ranks << 24 | rank << 16 | ranks << 8 | rank, object_group_id=0, cache_salt="")

        def data(rank, ranks, chunk):
            first, mine = rank * heads // ranks, max(1, heads // ranks)
            places = itertools.product(range(2), range(layers), range(slots), range(first, first + mine), range(dim))
            o = Object(0, bytes(hash((chunk, *p)) % 251 for p in places))
            o.metadata = types.SimpleNamespace(shape=(2, layers, slots, mine * dim))
            return o

        def empty(like):
            o = Object(len(like.byte_array))
            o.metadata = like.metadata
            return o

        for store, others in (2, (1, 4, 16)), (16, (2, 8)):
            cache = Cache(self)
            s = Server(self, cache, kv_heads=heads)
            for rank in range(store):
                s.submit("store", rank, [key(rank, store, c) for c in range(3)], [data(rank, store, c) for c in range(3)])
                self.assertEqual(s.stored.get(timeout=LIMIT), (rank, True))
            for ranks in others:
                for rank in range(ranks):
                    want = [data(rank, ranks, c) for c in range(4)]
                    got = [empty(o) for o in want]
                    s.submit("prefetch", rank, [key(rank, ranks, c) for c in range(4)], got)
                    self.assertEqual(s.fetched.get(timeout=LIMIT), (rank, [True] * 3), (store, ranks))
                    self.assertEqual([o.byte_array for o in got[:3]], [o.byte_array for o in want[:3]], (store, ranks, rank))
            # Objects whose shape does not show heads are not stored, nor taken apart.
            s.submit("store", "shape", [key(0, 2, 9)], [Object(0, b"x" * 96)])
            self.assertEqual(s.stored.get(timeout=LIMIT), ("shape", False))

    def test_nothing_is_written_after_close(self):
        cache, keys = Cache(self), self.keys(8, 5)
        self.stored(cache, keys)
        a = WeftL2Adapter({"address": cache.address, "timeout": 3600})
        cache.freeze()
        objects = [Object(500) for _ in keys]
        task = a.submit_load_task(keys, objects)
        self.assertIsNone(a.query_load_result(task))
        a.close()
        cache.thaw()
        self.assertTrue(a.loading.flush(LIMIT))
        self.assertEqual({bytes(o.byte_array) for o in objects}, {bytes(500)})


if __name__ == "__main__":
    unittest.main()
