"""vLLM's engine in small, around the real connector and a real cache service.

What it has of vLLM a014e35: the scheduler's loop with chunked prefill and with asynchronous scheduling (v1/core/sched/scheduler.py), block tables
of several groups out of one pool with null blocks (v1/core/single_type_kv_cache_manager.py), one worker thread for each rank with the calls of the
model runner (v1/worker/gpu/kv_connector.py), and the aggregation of their outputs. Its forward pass writes the value of each token's cache, which
covers everything before it, and reads all that attention would read: a wrong byte is an error. vLLM itself is not run.
Run by "go test ./app/cli -run Python"; WEFT_PROGRAM names the weft program.
"""

import collections
import itertools
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import types
import unittest
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from weft.vllm import KVConnectorRole, WeftConnector  # noqa: E402

LIMIT = 20  # seconds until something that should have happened counts as a failure

# The calls of a step, from the sources: scheduler.py (schedule, update_from_output), kv_connector.py (pre_forward, post_forward, no_forward).
# A question mark: any number of times.
SCHEDULE = ["get_num_new_matched_tokens?", "update_state_after_alloc?", "build_connector_meta"]
FORWARD = ["handle_preemptions", "bind_connector_metadata", "start_load_kv", "LAYERS", "wait_for_save"]
NO_FORWARD = ["handle_preemptions", "bind_connector_metadata", "start_load_kv"]
AFTER = ["get_finished", "get_block_ids_with_load_errors", "get_kv_connector_stats", "get_kv_connector_kv_cache_events", "build_connector_worker_meta", "clear_connector_metadata"]
START = ["register_kv_caches", "set_host_xfer_buffer_ops", "get_handshake_metadata"]


class Cache:
    def __init__(self, test):
        line = [os.environ["WEFT_PROGRAM"], "kv", "serve", "--listen", "127.0.0.1:0", "--memory", "8MiB", "--block", "4KiB"]
        self.process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        test.addCleanup(self.end)
        self.address = self.process.stdout.readline().split("http://")[1].split(",")[0]

    def freeze(self):
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


class FullAttentionSpec:
    def __init__(self, block_size):
        self.block_size = block_size


class SlidingWindowSpec:
    def __init__(self, block_size, sliding_window):
        self.block_size, self.sliding_window = block_size, sliding_window


class ChunkedLocalAttentionSpec:
    def __init__(self, block_size, attention_chunk_size):
        self.block_size, self.attention_chunk_size = block_size, attention_chunk_size


class MambaSpec(FullAttentionSpec):
    pass


MambaSpec.__bases__ = (type("KVCacheSpec", (), {"__init__": FullAttentionSpec.__init__}),)


def skipped(spec, computed):
    """How many tokens attention does not read any more: vLLM's get_num_skipped_tokens."""
    if isinstance(spec, SlidingWindowSpec):
        return max(0, computed - spec.sliding_window + 1)
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return computed // spec.attention_chunk_size * spec.attention_chunk_size
    return 0


class Tensor(bytearray):
    def __init__(self, shape):
        super().__init__(math.prod(shape))
        self.shape = tuple(shape)


class Logged:
    """A connector that notes the calls of its engine, with their thread."""

    def __init__(self, inner):
        self.inner, self.calls, self.threads = inner, [], set()

    def __getattr__(self, name):
        f = getattr(self.inner, name, None)
        if f is None and name in AFTER + START:
            f = lambda *_: None  # what the base class has

        def call(*args):
            self.calls.append(name)
            self.threads.add(threading.current_thread().name)
            return f(*args)

        return call

    def take(self):
        calls, self.calls = self.calls, []
        return calls


class Request:
    def __init__(self, name, tokens, unit, chain):
        self.request_id, self.prompt_token_ids, self.num_tokens = name, tokens, len(tokens)
        self.block_hashes = chain.hashes(tokens)
        self.computed, self.status, self.tables, self.sent = 0, "WAITING", None, None
        self.external, self.wrong = 0, []


class Engine:
    """specs: one of each group; layers: how many each has. ahead: how many steps are scheduled before the first one's output is looked at."""

    HEADS, DIM, POOL, BUDGET = 4, 2, 64, 12

    def __init__(self, test, address, specs, ranks=1, ratio=1, ahead=0, layers=2, heads=True, **extra):
        self.test, self.specs, self.ranks, self.ratio, self.ahead = test, specs, ranks, ratio, ahead
        self.unit, self.step_size = math.gcd(*(s.block_size for s in specs)), math.lcm(*(s.block_size for s in specs))
        self.layers = [["g%d.l%d" % (g, i) for i in range(layers)] for g in range(len(specs))]
        self.free, self.waiting, self.running, self.done, self.number = list(range(1, self.POOL)), [], [], {}, itertools.count()
        self.finished_ids, self.received = set(), set()
        self.scheduler = Logged(self.connector(KVConnectorRole.SCHEDULER, 0, address, heads, extra))
        self.workers = [Worker(self, r, Logged(self.connector(KVConnectorRole.WORKER, r, address, heads, extra))) for r in range(ranks)]
        said = {(0, w.rank): w.connector.get_handshake_metadata() for w in self.workers}
        for w in self.workers:
            test.assertEqual(w.connector.take(), START)
        said = {k: v for k, v in said.items() if v is not None}
        if said:
            self.scheduler.set_xfer_handshake_metadata_pp_aware(said)
        self.scheduler.take()
        self.batches = collections.deque()

    def connector(self, role, rank, address, heads, extra):
        config = types.SimpleNamespace(
            kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config={"address": address, "seed": "0", "patience": 20, **extra}),
            cache_config=types.SimpleNamespace(block_size=self.unit, num_gpu_blocks=self.POOL),
            parallel_config=types.SimpleNamespace(rank=rank, world_size=self.ranks, tensor_parallel_size=self.ranks),
            model_config=types.SimpleNamespace(model="hybrid", dtype="uint8", **({"get_total_num_kv_heads": lambda: self.HEADS} if heads else {})))
        groups = [types.SimpleNamespace(layer_names=names, kv_cache_spec=spec, is_eagle_group=False) for names, spec in zip(self.layers, self.specs)]
        c = WeftConnector(config, role, types.SimpleNamespace(kv_cache_groups=groups, num_blocks=self.POOL, kv_cache_layout="LBNHC"))
        self.test.addCleanup(c.shutdown)
        return c

    # The scheduler.

    def add(self, name, tokens, keep=False, after=None, local=0):
        """keep: its blocks stay when it is done. after, local: so many of its tokens are in the blocks of a request that was kept."""
        r = Request(name, tokens, self.unit, self.scheduler.inner.chain)
        r.keep, r.local = keep, local
        if local:
            r.prefix = [[0 if i < skipped(s, local) // s.block_size else b for i, b in enumerate(t[: local // s.block_size])] for s, t in zip(self.specs, after.tables)]
        self.waiting.append(r)
        self.scheduler.on_new_request(r)
        self.test.assertEqual(self.scheduler.take(), ["on_new_request"])
        return r

    def allocate(self, r, computed, upto):
        """Blocks for tokens up to upto, of which computed are or will be there. What attention skips is freed. Gives the new ones."""
        new = []
        for spec, table in zip(self.specs, r.tables):
            gone, have = skipped(spec, computed) // spec.block_size, len(table)
            for i in range(min(gone, have)):
                if table[i]:
                    self.free.append(table[i])
                    table[i] = 0
            for i in range(have, -(-upto // spec.block_size)):
                table.append(0 if i < gone else self.free.pop())
            new.append(table[have:])
        return new

    def schedule(self):
        new, ids, blocks, starts, scheduled, budget = [], [], [], [], {}, self.BUDGET
        for r in list(self.running):
            n = min(budget, r.num_tokens - r.sent)
            if n > 0:
                ids.append(r.request_id)
                blocks.append(tuple(self.allocate(r, r.computed, r.sent + n)))
                starts.append(r.sent)
                scheduled[r.request_id], budget, r.sent = n, budget - n, r.sent + n
        for r in list(self.waiting):
            if r.status == "REMOTE":
                if r.request_id not in self.received:
                    continue
                self.received.discard(r.request_id)
                r.status = "WAITING"
            if not budget:
                break
            external, later = 0, False
            if not r.computed:
                external, later = self.scheduler.get_num_new_matched_tokens(r, r.local)
                if external is None:
                    continue
                self.test.assertEqual(later, external > 0)
                self.test.assertEqual(external % self.step_size, 0)
                self.test.assertLess(external, r.num_tokens)
                r.tables, r.computed, r.external = (r.prefix if r.local else [[] for _ in self.specs]), r.local + external, external
            n = 0 if later else min(budget, r.num_tokens - r.computed)
            self.allocate(r, r.computed, r.computed + n)
            self.scheduler.update_state_after_alloc(r, types.SimpleNamespace(get_block_ids=lambda r=r: tuple(r.tables)), external)
            if later:
                r.status = "REMOTE"
                continue
            self.waiting.remove(r)
            self.running.append(r)
            new.append(types.SimpleNamespace(req_id=r.request_id, block_ids=tuple(list(t) for t in r.tables), num_computed_tokens=r.computed))
            scheduled[r.request_id], budget, r.sent = n, budget - n, r.computed + n
        cached = types.SimpleNamespace(req_ids=ids, new_block_ids=blocks, num_computed_tokens=starts, resumed_req_ids=set())
        out = types.SimpleNamespace(scheduled_new_reqs=new, scheduled_cached_reqs=cached, num_scheduled_tokens=scheduled, finished_req_ids=self.finished_ids)
        self.finished_ids = set()
        meta = self.scheduler.build_connector_meta(out)
        self.order(self.scheduler.take(), SCHEDULE)
        # What the runner needs of each request: its tokens, tables and the range to compute.
        work = [(r, [list(t) for t in r.tables], r.sent - scheduled[r.request_id], r.sent) for r in self.running if r.request_id in scheduled]
        return out, meta, work

    def update(self, out, outputs):
        """update_from_output. An id counts when all ranks have reported it."""
        counted = collections.Counter(n for o in outputs for n in o.finished_recving or ())
        self.counts = getattr(self, "counts", collections.Counter()) + counted
        received = {n for n, c in self.counts.items() if c == self.ranks}
        for n in received:
            del self.counts[n]
        bad = set().union(*(o.invalid_block_ids for o in outputs))
        if bad:
            (_,) = self.specs  # vLLM unpacks exactly one group
        metas = [o.meta for o in outputs if o.meta is not None]
        meta = metas[0] if metas else None
        for m in metas[1:]:
            meta = meta.aggregate(m)
        for r in [r for r in self.running if r.request_id in out.num_scheduled_tokens]:
            r.computed += out.num_scheduled_tokens[r.request_id]
            if r.computed == r.num_tokens:
                self.finish(r)
        if bad:
            for r in self.waiting:
                if r.status == "REMOTE":
                    first = next((i for i, b in enumerate(r.tables[0]) if b in bad), None)
                    if first is not None:
                        r.computed = first * self.specs[0].block_size
                        if not r.computed:
                            self.release(r)
        self.scheduler.update_connector_output(types.SimpleNamespace(finished_sending=None, finished_recving=received, invalid_block_ids=bad, kv_connector_worker_meta=meta))
        for n in received:
            r = next((r for r in self.waiting if r.request_id == n), None)
            if r is None:
                r = self.done[n]  # aborted meanwhile; anybody else is vLLM's assertion
                self.release(r)
            else:
                self.test.assertEqual(r.status, "REMOTE")
                self.received.add(n)
        tuple(self.scheduler.take_events())
        self.order(self.scheduler.take(), ["request_finished_all_groups?", "update_connector_output", "take_events"])

    def release(self, r):
        self.free += [b for t in r.tables or () for b in t if b]
        r.tables = None

    def finish(self, r):
        keep, params = self.scheduler.request_finished_all_groups(r, tuple(r.tables or ()))
        self.test.assertEqual((keep, params), (False, None))
        (self.running if r in self.running else self.waiting).remove(r)
        self.done[r.request_id] = r
        self.finished_ids.add(r.request_id)
        if r.status != "REMOTE" and not r.keep:
            self.release(r)

    def step(self):
        """One step of the engine's core: schedule and run, and look at the output of the step that was scheduled ahead steps before."""
        out, meta, work = self.schedule()
        for w in self.workers:
            w.todo.put((out, meta, work))
        self.batches.append(out)
        while len(self.batches) > self.ahead:
            self.take()

    def take(self):
        outputs = [w.outputs.get(timeout=LIMIT) for w in self.workers]
        for w, o in zip(self.workers, outputs):
            if isinstance(o, BaseException):
                raise o
            self.order(o.calls, (FORWARD if o.forward else NO_FORWARD) + AFTER)
        self.update(self.batches.popleft(), outputs)

    def run(self, *names):
        """Steps until those requests are done, and everything that was saved is stored."""
        with Deadline(self.test):
            while any(n not in self.done for n in names):
                self.step()
            while self.batches:
                self.take()
        for w in self.workers:
            self.test.assertTrue(w.connector.inner.flush(LIMIT))
        return [self.done[n].external for n in names]

    def order(self, calls, want):
        """Whether calls are those of want, in that order. Layers wait and save in turn."""
        want, at = list(want), 0
        layers = [c for names in self.layers for _ in names for c in ("wait_for_layer_load", "save_kv_layer")]
        if "LAYERS" in want:
            i = want.index("LAYERS")
            want[i : i + 1] = layers
        for call in calls:
            while at < len(want) and want[at] != call:
                if want[at] == call + "?":
                    break
                # Questions and admissions take turns, request by request.
                if want[at] == "update_state_after_alloc?" and call == "get_num_new_matched_tokens":
                    at -= 1
                    break
                self.test.assertTrue(want[at].endswith("?"), "%s comes where %s should: %s" % (call, want[at], calls))
                at += 1
            self.test.assertLess(at, len(want), "%s comes behind the last call: %s" % (call, calls))
            at += not want[at].endswith("?")
        self.test.assertTrue(all(w.endswith("?") for w in want[at:]), "%s: %s are missing" % (calls, want[at:]))


class Deadline:
    def __init__(self, test):
        self.test = test

    def __enter__(self):
        def over(*_):
            raise AssertionError("the engine does not come to an end")

        self.before = signal.signal(signal.SIGALRM, over)
        signal.alarm(LIMIT)

    def __exit__(self, *_):
        signal.alarm(0)
        signal.signal(signal.SIGALRM, self.before)


class Worker:
    """A rank: its caches, its connector and its thread."""

    def __init__(self, engine, rank, connector):
        self.e, self.rank, self.connector = engine, rank, connector
        self.heads = max(1, engine.HEADS // engine.ranks)
        self.head = rank * engine.HEADS // engine.ranks
        self.caches, self.todo, self.outputs = {}, queue.Queue(), queue.Queue()
        for spec, names in zip(engine.specs, engine.layers):
            for n in names:
                self.caches[n] = Tensor((engine.POOL * engine.ratio, self.heads, spec.block_size // engine.ratio, engine.DIM))
        connector.register_kv_caches(self.caches)
        connector.set_host_xfer_buffer_ops(None)
        self.thread = threading.Thread(target=self.run, name="rank %d" % rank)
        self.thread.start()
        engine.test.addCleanup(self.end)

    def end(self):
        self.todo.put(None)
        self.thread.join(LIMIT)

    def run(self):
        for job in iter(self.todo.get, None):
            try:
                self.connector.take()
                self.outputs.put(self.execute(*job))
            except BaseException as e:
                self.outputs.put(e)

    def execute(self, out, meta, work):
        c = self.connector
        c.handle_preemptions(meta)
        c.bind_connector_metadata(meta)
        c.start_load_kv(None)
        if work:
            for g, names in enumerate(self.e.layers):
                for name in names:
                    c.wait_for_layer_load(name)
                    for r, tables, start, end in work:
                        self.layer(r, g, name, tables[g], start, end)
                    c.save_kv_layer(name, self.caches[name], None)
            c.wait_for_save()
        sent, received = c.get_finished(out.finished_req_ids)
        bad = c.get_block_ids_with_load_errors()
        c.get_kv_connector_stats()
        c.get_kv_connector_kv_cache_events()
        report = c.build_connector_worker_meta()
        c.clear_connector_metadata()
        return types.SimpleNamespace(finished_sending=sent, finished_recving=received, invalid_block_ids=bad, meta=report, calls=c.take(), forward=bool(work))

    def layer(self, r, g, name, table, start, end):
        """The forward pass of a layer: writes tokens start to end, and reads all that their attention reads."""
        spec, cache = self.e.specs[g], self.caches[name]
        _, heads, page, dim = cache.shape
        first = skipped(spec, start)
        for t in range(first, end):
            block, rest = table[t // spec.block_size], t % spec.block_size
            if not block:
                raise AssertionError("%s: token %d of %s is in a null block" % (name, t, r.request_id))
            p = block * self.e.ratio + rest // page
            prefix = zlib.crc32(repr(r.prompt_token_ids[: t + 1]).encode())
            for h in range(heads):
                at = ((p * heads + h) * page + rest % page) * dim
                want = zlib.crc32(b"%d %s %d" % (prefix, name.encode(), self.head + h)).to_bytes(4, "big")[:dim]
                if t >= start:
                    cache[at : at + dim] = want
                elif cache[at : at + dim] != want:
                    raise AssertionError("rank %d reads a wrong cache: %s, token %d, head %d of %s" % (self.rank, name, t, h, r.request_id))


PLAIN = [FullAttentionSpec(4)]
WINDOWS = [FullAttentionSpec(4), SlidingWindowSpec(4, 7)]
MIXED = [FullAttentionSpec(8), SlidingWindowSpec(4, 6), ChunkedLocalAttentionSpec(2, 12)]


class Hybrid(unittest.TestCase):
    def text(self, n, seed):
        return [seed * 1000 + i for i in range(n)]

    def test_order_and_bytes(self):
        """What one engine stored another one loads, with other ranks, kernels and steps ahead; all calls come as in vLLM's sources."""
        for specs in PLAIN, WINDOWS, [SlidingWindowSpec(4, 7)], MIXED:
            with self.subTest([type(s).__name__ for s in specs]):
                cache = Cache(self)
                a = Engine(self, cache.address, specs, ranks=2)
                one, two = self.text(45, 1), self.text(45, 1)[:30] + self.text(20, 2)
                a.add("one", one)
                self.assertEqual(a.run("one"), [0])
                whole = 44 // a.step_size * a.step_size
                for more in dict(), dict(ranks=4, ahead=1), dict(ratio=2, ahead=2):
                    b = Engine(self, cache.address, specs, **more)
                    b.add("one", one)
                    b.add("two", two)
                    got = b.run("one", "two")
                    self.assertEqual(got[0], whole, more)
                    if specs in (PLAIN, WINDOWS) and not more:
                        # Of the second text the cache has its first 30 tokens; each group has what it needs at every block's end.
                        self.assertEqual(got[1], 28)
                    self.assertEqual(b.scheduler.threads, {threading.current_thread().name})
                    self.assertEqual([w.connector.threads - {threading.current_thread().name} for w in b.workers], [{"rank %d" % i} for i in range(b.ranks)])
                cache.end()

    def test_a_window_that_is_not_there(self):
        """Blocks that one group lacks cost its tokens, never wrong ones: the longest prefix that all groups have is used."""
        cache = Cache(self)
        a, text = Engine(self, cache.address, WINDOWS), self.text(45, 1)
        a.add("one", text)
        a.run("one")
        b = Engine(self, cache.address, WINDOWS)
        hashes = b.scheduler.inner.chain.hashes(text)
        planner = b.scheduler.inner.planner
        gone = {n for n in planner.names(hashes[9:10], planner.groups[1], 2)}
        which = b.scheduler.inner.client.which
        b.scheduler.inner.client.which = lambda names: [w and n not in gone for n, w in zip(names, which(names))]
        b.add("one", text)
        self.assertEqual(b.run("one"), [36])

    def test_a_cache_that_freezes(self):
        """While the cache is frozen, lookups and fetches are "later" and other requests go on; a fetch that fails is computed."""
        cache = Cache(self)
        a, text = Engine(self, cache.address, WINDOWS), self.text(45, 1)
        a.add("one", text)
        a.run("one")
        b = Engine(self, cache.address, WINDOWS, ranks=2, timeout=3600, patience=3600)
        short = b.add("short", [7])  # asks nobody
        for w in b.workers:
            self.assertTrue(w.connector.inner.flush(LIMIT))  # what it asked the cache at its start
        cache.freeze()
        r = b.add("one", text)
        self.assertEqual(b.run("short"), [0])
        for _ in range(20):
            b.step()
        self.assertEqual((r.status, r.computed, short.computed), ("WAITING", 0, 1))
        cache.thaw()
        self.assertEqual(b.run("one"), [44])

    def test_a_fetch_that_fails_is_computed(self):
        """The lookup finds everything, and one rank of two cannot fetch: nothing was promised, so nothing fails."""
        cache = Cache(self)
        a, text = Engine(self, cache.address, WINDOWS), self.text(45, 1)
        a.add("one", text)
        a.run("one")
        for what in "missing", "short", "full":
            b = Engine(self, cache.address, WINDOWS, ranks=2, **({"staging": 10} if what == "full" else {}))
            client = b.workers[1].connector.inner.client
            get = client.get
            if what != "full":
                client.get = lambda names, **more: [None if what == "missing" else p[:-1] for p in get(names, **more)]
            b.add("one", text)
            self.assertEqual(b.run("one"), [0], what)
            self.assertEqual([(w.connector.inner.stager.staged, w.connector.inner.stager.held) for w in b.workers], [({}, 0)] * 2)

    def test_requests_that_end_early(self):
        """Aborted while it is looked up, fetched or loaded: nothing is held, and a load is reported once."""
        cache = Cache(self)
        a, text = Engine(self, cache.address, WINDOWS), self.text(45, 1)
        a.add("one", text)
        a.run("one")
        for when in "lookup", "fetched", "load":
            b = Engine(self, cache.address, WINDOWS, ranks=2)
            r = b.add("one", text)
            if when == "fetched":
                with Deadline(self):
                    while b.scheduler.inner.planner.requests["one"].order is None:
                        b.step()
            if when == "load":
                with Deadline(self):
                    while r.status != "REMOTE":
                        b.step()
            b.finish(r)
            b.scheduler.take()
            with Deadline(self):
                while any(w.connector.inner.stager.held for w in b.workers) or when == "load" and r.tables:
                    b.step()
            self.assertEqual(len(b.free), b.POOL - 1)
            b.add("two", text)
            self.assertEqual(b.run("two"), [44])

    def test_blocks_that_a_table_does_not_hold(self):
        """vLLM has a prefix whose first window blocks it let go of. They are not stored: a shorter text would read them."""
        cache, text = Cache(self), self.text(45, 1)
        a = Engine(self, cache.address, WINDOWS)
        client = a.workers[0].connector.inner.client
        put, client.put = client.put, lambda *_, **more: 0  # the cache loses what the first one stores
        one = a.add("one", text, keep=True)
        a.run("one")
        client.put = put
        a.add("two", text[:40] + self.text(9, 2), keep=True, after=one, local=36)
        self.assertEqual(a.run("two"), [0])
        for n, want in (45, 40), (41, 40), (37, 36), (14, 0):
            b = Engine(self, cache.address, WINDOWS)
            b.add("x", text[:n])
            self.assertEqual(b.run("x"), [want], n)

    def test_promised_and_not_there(self):
        """What was promised and cannot be written stops the engine: it is never a success."""
        cache = Cache(self)
        a, text = Engine(self, cache.address, WINDOWS), self.text(45, 1)
        a.add("one", text)
        a.run("one")
        b = Engine(self, cache.address, WINDOWS)

        def fails(*_):
            raise MemoryError("of a test")

        b.workers[0].connector.inner._fill = fails
        threading.excepthook, before = lambda *_: None, threading.excepthook
        self.addCleanup(setattr, threading, "excepthook", before)
        b.add("one", text)
        with self.assertRaisesRegex(RuntimeError, "blocks that were promised"):
            b.run("one")

    def test_what_is_not_taken(self):
        with self.assertRaisesRegex(ValueError, "layers g1.l0, g1.l1 have a MambaSpec; weft.vllm moves caches of full"):
            Engine(self, "127.0.0.1:1", [FullAttentionSpec(4), MambaSpec(4)])

    def test_heads_and_tokens_that_are_as_many(self):
        """A page of as many tokens as heads is read in the order that the engine says, and refused where it does not say."""
        from weft._pages import Layout

        for shape in ((2, 8, 4, 4, 3), (8, 2, 4, 4, 3), (8, 4, 4, 3)):
            with self.assertRaisesRegex(ValueError, 'could be in either order; say which by "layout"'):
                Layout(shape, 8, 4, 4)
            nhd, hnd = Layout(shape, 8, 4, 4, "NHD"), Layout(shape, 8, 4, 4, "HND")
            self.assertEqual((nhd.run, hnd.run, nhd.odd == hnd.odd), (4 * 3, 4 * 4 * 3, False))
        named = Layout((8, 4, 4, 3), 8, 4, 4, "BHNC")
        t = Tensor((8, 4, 4, 3))
        t[:] = bytes(i % 251 for i in range(len(t)))
        page = named.read(t, 2)
        self.assertEqual(page, bytes((((2 * 4 + h) * 4 + n) * 3 + c) % 251 for n in range(4) for h in range(4) for c in range(3)))
        named.write(t, 5, page)
        self.assertEqual(named.read(t, 5), page)
        # The same heads, half a block in a page: the same bytes.
        half, u = Layout((16, 4, 2, 3), 8, 4, 4, "BHNC"), Tensor((16, 4, 2, 3))
        half.write(u, 1, page)
        self.assertEqual((half.read(u, 1), half.odd, half.run), (page, named.odd, named.run))
        for shape in ((8, 4, 3, 3), (7, 4, 4, 3), (8, 4, 4)):
            with self.assertRaisesRegex(ValueError, r"want \(pages, heads, tokens, content\)"):
                Layout(shape, 8, 4, 4, "BHNC")
        with self.assertRaisesRegex(ValueError, "layout 'DHN'; known: NHD, HND, BHNC"):
            Layout((8, 4, 4, 3), 8, 4, 4, "DHN")


if __name__ == "__main__":
    unittest.main()
