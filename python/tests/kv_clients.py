"""Clients of transfers and of the cache service, with doubles of the engines that call them in their documented order.

Neither NIXL nor vLLM, SGLang or LMCache is used here. Run by "go test ./app/cli -run Python"; WEFT_PROGRAM names the weft program and WEFT_KV a
running cache service.
"""

import array
import asyncio
import ctypes
import hashlib
import enum
import http.client
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
import unittest.mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from weft import _shards, kv, nixl  # noqa: E402
from weft.lmcache import WeftConnector as LMCacheConnector, WeftConnectorAdapter  # noqa: E402
from weft.sglang import WeftStorage  # noqa: E402
from weft.vllm import KVConnectorRole, WeftConnector, WeftMetadata  # noqa: E402


def noise(n, seed):
    return b"".join(hashlib.sha256(b"%d %d" % (seed, i)).digest() for i in range((n + 31) // 32))[:n]


def freeze(process):
    """Stops a child. A signal is only sent when kill returns; waitpid returns when all threads have stopped."""
    process.send_signal(signal.SIGSTOP)
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), status


# Agents in this process cannot be killed or stopped; nixl_peers.py has them in others.
in_processes = unittest.skipUnless(os.environ.get("WEFT_NIXL") == "process", "for agents in processes of their own")


class Memory:
    """Memory with an address."""

    def __init__(self, n, seed=0):
        self.bytes = ctypes.create_string_buffer(noise(n, seed) if seed else bytes(n), n)
        self.address, self.size = ctypes.addressof(self.bytes), n

    def raw(self):
        return self.bytes.raw


def finish(agent, handle, state):
    end = time.monotonic() + 20
    while state == "PROC":
        if time.monotonic() > end:
            raise AssertionError("the transfer does not end")
        time.sleep(0.001)
        state = agent.check_xfer_state(handle)
    return state


def notices(agent, count):
    got, end = {}, time.monotonic() + 20
    while sum(len(v) for v in got.values()) < count:
        if time.monotonic() > end:
            raise AssertionError("%d notices came, %d were waited for" % (sum(len(v) for v in got.values()), count))
        for name, many in agent.get_new_notifs().items():
            got.setdefault(name, []).extend(many)
    return got


class NIXL(unittest.TestCase):
    def agent(self, name):
        a = nixl.nixl_agent(name, nixl.nixl_agent_config(backends=["UCX"], num_threads=4, capture_telemetry=True))
        self.addCleanup(a.close)
        return a

    def pair(self):
        a, b = self.agent("a"), self.agent("b")
        mine, theirs = Memory(1 << 20), Memory(1 << 20, seed=3)
        a.register_memory(a.get_reg_descs([(mine.address, mine.size, 0, "")], "DRAM"))
        b.register_memory([(theirs.address, theirs.size, 0, "")], "DRAM")
        return a, b, mine, theirs, a.add_remote_agent(b.get_agent_metadata())

    def test_blocks_as_vllm_moves_them(self):
        a, b, mine, theirs, peer = self.pair()
        self.assertEqual(peer, "b")
        block, count = 4096, 64
        local = a.prep_xfer_dlist("NIXL_INIT_AGENT", a.get_xfer_descs([(mine.address + i * block, block, 0) for i in range(count)], "DRAM"))
        far = a.prep_xfer_dlist(peer, [(theirs.address + i * block, block, 0) for i in range(count)], "DRAM")
        li, fi = [5, 1, 9], [7, 8, 60]
        h = a.make_prepped_xfer("READ", local, li, far, fi, notif_msg=b"request 1")
        self.assertEqual(finish(a, h, a.transfer(h)), "DONE")
        for i, k in zip(li, fi):
            self.assertEqual(mine.raw()[i * block : (i + 1) * block], theirs.raw()[k * block : (k + 1) * block])
        self.assertEqual(mine.raw()[:block], bytes(block))
        self.assertEqual(notices(b, 1), {"a": [b"request 1"]})
        t = a.get_xfer_telemetry(h)
        self.assertEqual((t.totalBytes, t.descCount), (3 * block, 3))
        ctypes.memmove(theirs.address + 7 * block, b"again", 5)
        self.assertEqual(finish(a, h, a.transfer(h, b"request 2")), "DONE")  # posted again after it was done
        self.assertEqual(mine.raw()[5 * block : 5 * block + 5], b"again")
        self.assertEqual(notices(b, 1), {"a": [b"request 2"]})
        a.release_xfer_handle(h)
        a.release_dlist_handle(local)
        a.release_dlist_handle(far)
        self.assertEqual(b.get_new_notifs(), {})

    def test_what_is_known_of_others(self):
        a, b, mine, theirs, peer = self.pair()
        inside = a.get_xfer_descs([(theirs.address + 4096, 4096, 0)], "DRAM")
        outside = a.get_xfer_descs([(theirs.address + theirs.size, 4096, 0)], "DRAM")
        self.assertTrue(a.check_remote_metadata(peer))
        self.assertTrue(a.check_remote_metadata(peer, inside))
        self.assertFalse(a.check_remote_metadata(peer, outside))
        self.assertFalse(a.check_remote_metadata("nobody"))
        a.make_connection(peer)
        with self.assertRaises(nixl.nixlNotFoundError):
            a.make_connection("nobody")
        a.send_notif(peer, b"layer 3 of request 7")
        end = time.monotonic() + 20
        while not b.check_remote_xfer_done("a", b"layer 3"):
            self.assertLess(time.monotonic(), end, "the notice does not come")
        self.assertFalse(b.check_remote_xfer_done("a", b"layer 3"))  # it was taken

    def test_write_as_sglang_does(self):
        a, b, mine, theirs, peer = self.pair()
        self.assertIn("UCX", a.get_plugin_list())
        a.create_backend("UCX")
        ctypes.memmove(mine.address, noise(70000, 9), 70000)
        h = a.initialize_xfer("WRITE", a.get_xfer_descs([(mine.address, 70000, 0)], "DRAM"), a.get_xfer_descs([(theirs.address + 100, 70000, 0)], "DRAM"), peer, b"")
        self.assertEqual(finish(a, h, a.transfer(h)), "DONE")
        self.assertEqual(theirs.raw()[100:70100], noise(70000, 9))
        self.assertEqual(theirs.raw()[70100:], noise(1 << 20, 3)[70100:])
        a.release_xfer_handle(h)
        a.send_notif(peer, b"hello")
        a.send_notif(peer, b"")
        self.assertEqual(sorted(notices(b, 2)["a"]), [b"", b"hello"])

    def test_memory_that_was_taken_back(self):
        """What its owner took back and uses for something else is an error for those that prepared a list before, never other bytes."""
        a, b = self.agent("a"), self.agent("b")
        mine, theirs = Memory(1 << 20), Memory(1 << 20, seed=3)
        a.register_memory([(mine.address, mine.size, 0, "")], "DRAM")
        regs = b.register_memory([(theirs.address, theirs.size, 0, "")], "DRAM")
        peer = a.add_remote_agent(b.get_agent_metadata())
        local, far = a.prep_xfer_dlist("", [(mine.address, 4096, 0)], "DRAM"), a.prep_xfer_dlist(peer, [(theirs.address, 4096, 0)], "DRAM")
        h = a.make_prepped_xfer("READ", local, [0], far, [0])
        self.assertEqual(finish(a, h, a.transfer(h)), "DONE")
        before = mine.raw()
        self.assertEqual(before[:4096], theirs.raw()[:4096])
        b.deregister_memory(regs)
        b.register_memory([(theirs.address, theirs.size, 0, "")], "DRAM")
        ctypes.memmove(theirs.address, b"other" * 800, 4000)
        try:
            state = finish(a, h, a.transfer(h))
        except nixl.nixlError:
            state = "ERR"
        self.assertEqual(state, "ERR")
        self.assertEqual(mine.raw(), before)

    def test_files(self):
        a = self.agent("a")
        mine = Memory(100000, seed=5)
        with tempfile.TemporaryFile(dir=os.environ.get("TMPDIR")) as f:
            f.truncate(1 << 20)
            a.register_memory([(mine.address, mine.size, 0, "")], "DRAM")
            regs = a.register_memory([(0, 1 << 20, f.fileno(), "")], "FILE")
            h = a.initialize_xfer("WRITE", a.get_xfer_descs([(mine.address, 5000, 0)], "DRAM"), a.get_xfer_descs([(4096, 5000, f.fileno())], "FILE"), "a")
            self.assertEqual(finish(a, h, a.transfer(h)), "DONE", a.get_xfer_error(h))
            f.seek(4096)
            self.assertEqual(f.read(5000), noise(100000, 5)[:5000])
            a.release_xfer_handle(h)
            a.deregister_memory(regs)

    def test_files_that_are_open_for_reading(self):
        a, mine = self.agent("a"), Memory(8192, seed=5)
        a.register_memory([(mine.address, mine.size, 0, "")], "DRAM")
        with self.assertRaisesRegex(nixl.nixlInvalidParamError, "999 is not open"):
            a.register_memory([(0, 4096, 999, "")], "FILE")
        with tempfile.NamedTemporaryFile(dir=os.environ.get("TMPDIR")) as f:
            f.write(noise(4096, 6))
            f.flush()
            fd = os.open(f.name, os.O_RDONLY)
            try:
                a.register_memory([(0, 4096, fd, "")], "FILE")
                at = a.get_xfer_descs([(mine.address, 4096, 0)], "DRAM"), a.get_xfer_descs([(0, 4096, fd)], "FILE"), "a"
                h = a.initialize_xfer("WRITE", *at)
                self.assertEqual(finish(a, h, a.transfer(h)), "ERR")  # as the program itself could not
                h = a.initialize_xfer("READ", *at)
                self.assertEqual(finish(a, h, a.transfer(h)), "DONE", a.get_xfer_error(h))
                self.assertEqual(mine.raw()[:4096], noise(4096, 6))
            finally:
                os.close(fd)

    def test_wrong_use_is_named(self):
        with self.assertRaises(nixl.nixlInvalidParamError):
            nixl.nixl_agent("")
        a, b, mine, theirs, peer = self.pair()
        with self.assertRaises(KeyError):
            a.initialize_xfer("READS", a.get_xfer_descs([(mine.address, 8, 0)], "DRAM"), a.get_xfer_descs([(theirs.address, 8, 0)], "DRAM"), peer)
        with self.assertRaisesRegex(nixl.nixlNotFoundError, "known: WEFT"):
            a.create_backend("NOPE")
        with self.assertRaisesRegex(nixl.nixlInvalidParamError, "no agent's metadata"):
            a.add_remote_agent(b"garbage")
        with self.assertRaisesRegex(nixl.nixlNotFoundError, "not known"):
            a.prep_xfer_dlist("c", [(mine.address, 8, 0)], "DRAM")
        with self.assertRaisesRegex(nixl.nixlNotFoundError, "no registered region"):
            a.prep_xfer_dlist("", [(mine.address + mine.size - 4, 8, 0)], "DRAM")
        for bad in ([(-1, 2, 0)], [(1, 1 << 50, 0)], [(1.5, 2, 0)], [(1, 2, 3), (1, 2)]):
            with self.assertRaises((ValueError, TypeError)):
                a.get_xfer_descs(bad, "DRAM")
        with self.assertRaisesRegex(nixl.nixlInvalidParamError, "0 bytes"):
            a.prep_xfer_dlist("", [(mine.address, 0, 0)], "DRAM")
        with self.assertRaisesRegex(nixl.nixlInvalidParamError, "nothing to register"):
            a.register_memory([(1, 2, 0)], "DRAM")
        with self.assertRaises(nixl.nixlNotSupportedError):
            a.register_memory([(1, 2, 0, "")], "VRAM")
        with self.assertRaises(nixl.nixlError):
            a.register_memory([(4096, 8, 0, "")], "DRAM")  # not of this process
        local, far = a.prep_xfer_dlist("", [(mine.address, 8, 0)], "DRAM"), a.prep_xfer_dlist(peer, [(theirs.address, 8, 0)], "DRAM")
        for li, fi in ([0], [1]), ([0], []), ([], []), ([-1], [0]):
            with self.assertRaises(nixl.nixlInvalidParamError):
                a.make_prepped_xfer("READ", local, li, far, fi)
        h = a.make_prepped_xfer("READ", local, [0], far, [0])
        with self.assertRaises(nixl.nixlNotPostedError):
            a.check_xfer_state(h)
        with self.assertRaises(nixl.nixlNoTelemetryError):
            a.get_xfer_telemetry(h)
        a.release_xfer_handle(h)
        with self.assertRaisesRegex(nixl.nixlInvalidParamError, "released"):
            a.transfer(h)
        a.release_dlist_handle(far)
        with self.assertRaisesRegex(nixl.nixlInvalidParamError, "released"):
            a.make_prepped_xfer("READ", local, [0], far, [0])
        a.remove_remote_agent(peer)
        with self.assertLogs("weft.nixl", "WARNING"):
            a.remove_remote_agent(peer)

    def test_what_programs_import(self):
        """Names that vLLM, SGLang and NIXL's own tests import, and what they do with them."""
        before = {k: sys.modules.pop(k) for k in list(sys.modules) if k.split(".")[0] == "nixl"}
        try:
            nixl.install()
            from nixl._api import nixl_agent, nixl_agent_config, nixl_prepped_dlist_handle, nixl_thread_sync_t, nixl_xfer_handle, nixlBind  # noqa: F401
            from nixl import DEFAULT_COMM_PORT, nixl_backend_handle  # noqa: F401
            from nixl._bindings import DRAM_SEG, nixlBackendError, nixlCancelledError, nixlRegDList, nixlRemoteDisconnectError, nixlXferDList, nixlXferTelemetry  # noqa: F401
            import nixl._utils as utils
        finally:
            for k in [k for k in sys.modules if k.split(".")[0] == "nixl"]:
                del sys.modules[k]
            sys.modules.update(before)
        self.assertIs(nixlBind.NIXL_THREAD_SYNC_RW, nixl_thread_sync_t.NIXL_THREAD_SYNC_RW)
        with self.assertRaisesRegex(TypeError, "sync_mode must be a nixl_thread_sync_t"):
            nixl_agent_config(sync_mode=1)
        c = nixl_agent_config(True, False, 0, True, 8, [], nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT)
        self.assertEqual((c.num_threads, c.backends), (8, []))
        a = nixl_agent("imported", c)
        self.addCleanup(a.close)
        self.assertEqual(a.get_backend_mem_types("UCX"), [])
        a.create_backend("UCX", {"num_threads": "8"})
        inside = os.environ.get("WEFT_NIXL") == "library" or not os.environ.get("WEFT_NIXL") and os.path.exists(nixl._lib.path())
        self.assertEqual((a.get_backend_params("UCX"), a.get_backend_mem_types("UCX")), ({"num_threads": "8"}, ["DRAM_SEG", "FILE_SEG"] + ["VRAM_SEG"] * inside))
        for get in a.get_plugin_mem_types, a.get_plugin_params, a.get_backend_mem_types, a.get_backend_params:
            with self.assertLogs("weft.nixl", "WARNING"):
                self.assertEqual(len(get("UVX")), 0)
        # Lists that cannot be made are None, with a word in the log; kinds that do not exist are a KeyError.
        stride = types.SimpleNamespace(data_ptr=lambda: 1, is_contiguous=lambda: False)
        with self.assertLogs("weft.nixl", "ERROR"):
            for wrong in [(1, 2, 3, 4)], stride, nixlRegDList(DRAM_SEG), ["x"], 5:
                self.assertIsNone(a.get_xfer_descs(wrong, "DRAM"))
            for wrong in [(1, 2, 3)], stride, nixlXferDList(DRAM_SEG), [(1, 2)]:
                self.assertIsNone(a.get_reg_descs(wrong, "DRAM"))
            self.assertIsNone(a.get_xfer_descs([(1, 2, 3)]))
            self.assertIsNone(a.get_reg_descs([(1, 2, 3, "")]))
        for get, rows in (a.get_xfer_descs, [(1, 2, 3)]), (a.get_reg_descs, [(1, 2, 3, "")]):
            with self.assertRaises(KeyError):
                get(rows, mem_type="V-RAM")
        d = a.get_xfer_descs([(1, 2, 3), (4, 5, 6)], "VRAM")
        self.assertEqual((d.descCount(), d[1], d.index((4, 5, 6)), d.getType()), (2, (4, 5, 6), 1, nixlBind.VRAM_SEG))
        self.assertEqual(a.deserialize_descs(a.get_serialized_descs(d)), d)
        self.assertEqual(a.get_reg_descs([(1, 2, 3, "x")], "DRAM")[0], (1, 2, 3, b"x"))
        array = types.SimpleNamespace(shape=(2, 3), tolist=lambda: [[1, 2, 3], [4, 5, 6]])  # as numpy's
        self.assertEqual(a.get_xfer_descs(array, "DRAM").rows, [(1, 2, 3), (4, 5, 6)])
        tensor = types.SimpleNamespace(data_ptr=lambda: 64, is_contiguous=lambda: True, get_device=lambda: -1, numel=lambda: 8, element_size=lambda: 2)
        self.assertEqual(a.get_reg_descs([tensor, tensor]).rows, [(64, 16, 0, b"")] * 2)
        with self.assertRaises(KeyError):
            a.make_prepped_xfer("RD", 0, [], 0, [])
        with self.assertRaises(KeyError):
            a.register_memory([(64, 16, 0, "")], "DRAM", backends=["GDS"])
        address = utils.malloc_passthru(4096)
        utils.ba_buf(address, 4096)
        a.register_memory([(address, 4096, 0, "")], "DRAM", backends=["UCX"])
        self.assertEqual(ctypes.string_at(address, 2), b"\xba\xba")
        self.assertEqual(a.query_memory([(0, 0, 0, os.devnull + "/nothing"), (0, 0, 0, __file__)], "UCX", "FILE")[0], None)
        self.assertEqual(a.query_memory([(0, 0, 0, __file__)], "UCX", "FILE")[0]["size"], str(os.path.getsize(__file__)))
        utils.free_passthru(address)

    def test_names_and_notices_as_bytes_and_text(self):
        a, b, mine, theirs, peer = self.pair()
        self.assertEqual(peer, b"b")  # as NIXL gives it
        self.assertEqual((peer, peer.decode(), {peer: 1}["b"], {"b": 1}[peer]), ("b", "b", 1, 1))
        self.assertNotEqual(peer, b"a")
        a.send_notif(b"b", "as text")
        self.assertEqual(notices(b, 1), {"a": [b"as text"]})
        h = a.initialize_xfer("READ", a.get_xfer_descs([(mine.address, 64, 0)], "DRAM"), a.get_xfer_descs([(theirs.address, 64, 0)], "DRAM"), b"b", "done 17")
        self.assertEqual(finish(a, h, a.transfer(h)), "DONE")
        t = a.get_xfer_telemetry(h)
        self.assertTrue(t.startTime > 0 and t.postDuration > 0 and t.xferDuration >= t.postDuration and isinstance(t, nixl.nixlXferTelemetry))
        end = time.monotonic() + 20
        while not b.check_remote_xfer_done(b"a", b"17", tag_is_prefix=False):
            self.assertLess(time.monotonic(), end, "the notice does not come")
        self.assertEqual(a.query_xfer_backend(h), "UCX")

    def test_metadata_in_parts(self):
        a, b = self.agent("a"), self.agent("b")
        one, two = Memory(4096, seed=1), Memory(4096, seed=2)
        regs = [b.register_memory([(m.address, m.size, 0, "")], "DRAM") for m in (one, two)]
        at = [a.get_xfer_descs([(m.address, m.size, 0)], "DRAM") for m in (one, two)]
        peer = a.add_remote_agent(b.get_partial_agent_metadata(regs[0], inc_conn_info=True))
        self.assertEqual([a.check_remote_metadata(peer, d) for d in at], [True, False])
        a.add_remote_agent(b.get_partial_agent_metadata(regs[1]))
        self.assertEqual([a.check_remote_metadata(peer, d) for d in at], [True, True])

    def listening(self, name, port=0, token=""):
        with unittest.mock.patch.dict(os.environ, {"WEFT_TOKEN": token}):
            a = nixl.nixl_agent(name, nixl.nixl_agent_config(True, True, port, backends=["UCX"]))
        self.addCleanup(a.close)
        return a

    def test_metadata_by_sockets(self):
        a, b = self.listening("initiator"), self.listening("target")
        one, two = Memory(4096, seed=1), Memory(4096, seed=2)
        regs = [b.register_memory([(m.address, m.size, 0, "")], "DRAM") for m in (one, two)]
        at = [a.get_xfer_descs([(m.address, m.size, 0)], "DRAM") for m in (one, two)]
        b.send_partial_agent_metadata(regs[0], True, ["UCX"], "127.0.0.1", a.listen_port)
        self.assertEqual([a.check_remote_metadata("target", d) for d in at], [True, False])
        a.fetch_remote_metadata("target", "127.0.0.1", b.listen_port)
        a.send_local_metadata("127.0.0.1", b.listen_port)
        self.assertEqual([a.check_remote_metadata("target", d) for d in at], [True, True])
        self.assertTrue(b.check_remote_metadata("initiator"))
        b.send_notif("initiator", b.get_serialized_descs(at[0]))
        self.assertEqual(a.deserialize_descs(notices(a, 1)["target"][0]), at[0])
        mine = Memory(4096)
        a.register_memory([(mine.address, 4096, 0, "")], "DRAM")
        h = a.initialize_xfer("READ", a.get_xfer_descs([(mine.address, 4096, 0)], "DRAM"), at[1], "target", "Done_reading")
        self.assertEqual(finish(a, h, a.transfer(h)), "DONE")
        self.assertEqual((mine.raw(), notices(b, 1)), (two.raw(), {"initiator": [b"Done_reading"]}))
        a.invalidate_local_metadata("127.0.0.1", b.listen_port)
        self.assertFalse(b.check_remote_metadata("initiator"))
        port = b.listen_port
        b.close()
        a.invalidate_local_metadata("127.0.0.1", port)  # whoever is gone needs not be told
        with unittest.mock.patch("weft._meet.PATIENCE", 0.2), self.assertRaisesRegex(nixl.nixlRemoteDisconnectError, "no agent takes metadata at 127.0.0.1"):
            a.fetch_remote_metadata("target", "127.0.0.1", port)

    def test_metadata_by_sockets_of_wrong_ones(self):
        a, b = self.listening("a", token="secret"), self.listening("b", token="other")
        with self.assertRaisesRegex(nixl.nixlNotAllowedError, "WEFT_TOKEN"):
            b.fetch_remote_metadata("a", "127.0.0.1", a.listen_port)
        c = self.listening("c", token="secret")
        with self.assertRaisesRegex(nixl.nixlNotFoundError, "agent 'a', not 'b'"):
            c.fetch_remote_metadata("b", "127.0.0.1", a.listen_port)
        with self.assertRaisesRegex(nixl.nixlInvalidParamError, "no agent's metadata"):
            c._give(b"garbage", "127.0.0.1", a.listen_port, "")
        with self.assertRaisesRegex(nixl.nixlBackendError, "choose another listen_port"):
            self.listening("d", port=a.listen_port)
        for junk in b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\2[]", b"\0\0\0\2{}", b"":
            with socket.create_connection(("127.0.0.1", a.listen_port)) as s:
                s.sendall(junk)
        c.fetch_remote_metadata("a", "127.0.0.1", a.listen_port)  # it listens still
        with unittest.mock.patch.dict(os.environ), self.assertRaisesRegex(nixl.nixlInvalidParamError, "NIXL_ETCD_ENDPOINTS"):
            os.environ.pop("NIXL_ETCD_ENDPOINTS", None)
            c.send_local_metadata()

    def test_metadata_by_etcd(self):
        if not os.environ.get("NIXL_ETCD_ENDPOINTS"):
            self.skipTest("NIXL_ETCD_ENDPOINTS names no etcd")
        a, b = self.agent("etcd-a"), self.agent("etcd-b")
        one, two = Memory(4096, seed=1), Memory(4096, seed=2)
        regs = [b.register_memory([(m.address, m.size, 0, "")], "DRAM") for m in (one, two)]
        at = [a.get_xfer_descs([(m.address, m.size, 0)], "DRAM") for m in (one, two)]
        b.send_partial_agent_metadata(regs[0], True, ["UCX"], label="first")
        a.fetch_remote_metadata("etcd-b", label="first")
        self.assertEqual([a.check_remote_metadata("etcd-b", d) for d in at], [True, False])
        b.send_local_metadata()
        a.fetch_remote_metadata("etcd-b")
        self.assertEqual([a.check_remote_metadata("etcd-b", d) for d in at], [True, True])
        b.invalidate_local_metadata()
        with unittest.mock.patch("weft._meet.PATIENCE", 0.2):
            for label in "", "first":
                with self.assertRaisesRegex(nixl.nixlNotFoundError, "etcd has no metadata"):
                    a.fetch_remote_metadata("etcd-b", label=label)

    def test_cost(self):
        a, b, mine, theirs, peer = self.pair()
        before = mine.raw()
        for op, n in ("READ", 4096), ("WRITE", 1 << 20):
            h = a.initialize_xfer(op, a.get_xfer_descs([(mine.address, n, 0)], "DRAM"), a.get_xfer_descs([(theirs.address, n, 0)], "DRAM"), peer)
            took, margin, method = a.estimate_xfer_cost(h)
            self.assertTrue(0 < took < 20e6 and margin > 0 and method == "UNKNOWN", (took, margin, method))
        self.assertEqual((mine.raw(), theirs.raw()), (before, noise(1 << 20, 3)))  # measuring writes nothing of theirs or ours
        a.release_xfer_handle(h)
        with self.assertRaisesRegex(nixl.nixlInvalidParamError, "released"):
            a.estimate_xfer_cost(h)

    def test_indices_of_any_kind(self):
        a, b, mine, theirs, peer = self.pair()
        rows = [(i * 4096, 4096, 0) for i in range(8)]
        local = a.prep_xfer_dlist("", [(mine.address + o, n, d) for o, n, d in rows], "DRAM")
        far = a.prep_xfer_dlist(peer, [(theirs.address + o, n, d) for o, n, d in rows], "DRAM")
        indices = [(1, 2), range(3, 5), [True, 6], array.array("i", [7, 0])]
        try:
            import numpy

            indices += [numpy.array([1, 5], dtype=numpy.int32), numpy.array([2, 3], dtype=numpy.uint32)]
        except ImportError:
            pass
        for which in indices:
            ctypes.memset(mine.address, 0, mine.size)
            h = a.make_prepped_xfer("READ", local, which, far, which)
            self.assertEqual(finish(a, h, a.transfer(h)), "DONE")
            for i in range(8):
                want = theirs.raw()[i * 4096 : (i + 1) * 4096] if i in [int(x) for x in which] else bytes(4096)
                self.assertEqual(mine.raw()[i * 4096 : (i + 1) * 4096], want, (which, i))

    def test_objects(self):
        if not os.environ.get("WEFT_S3"):
            self.skipTest("WEFT_S3 names no store")
        a, mine = self.agent("a"), Memory(300000, seed=5)
        with self.assertRaisesRegex(nixl.nixlInvalidParamError, "no bucket"):
            a.create_backend("OBJ")
        a.create_backend("OBJ", {"bucket": "weft", "endpoint_override": os.environ["WEFT_S3"]})
        a.register_memory([(mine.address, mine.size, 0, "")], "DRAM")
        key = "nixl/%d" % os.getpid()
        descs = a.register_memory([(0, 200000, 7, key)], "OBJ")
        self.assertEqual(a.query_memory([(0, 0, 0, key)], "OBJ", "OBJ"), [None])
        for op, at in ("WRITE", 0), ("READ", 100000):
            h = a.initialize_xfer(op, a.get_xfer_descs([(mine.address + at, 200000, 0)], "DRAM"), a.get_xfer_descs([(0, 200000, 7)], "OBJ"), "a")
            self.assertEqual(finish(a, h, a.transfer(h)), "DONE", a.get_xfer_error(h))
        self.assertEqual(mine.raw()[100000:], noise(300000, 5)[:200000])
        self.assertEqual(a.query_memory(descs, "OBJ"), [{"size": "200000"}])
        with self.assertRaises(nixl.nixlInvalidParamError):
            a.register_memory([(0, 10, 8, "")], "OBJ")
        a.deregister_memory(descs)

    def test_bindings(self):
        """The agent below the one that programs use: numbers for handles, nixl_status_t for states."""
        a, b = nixl.nixlAgent("low-a", nixl.nixlAgentConfig()), nixl.nixlAgent("low-b", nixl.nixlAgentConfig())
        self.addCleanup(a._child.close)
        self.addCleanup(b._child.close)
        back = a.createBackend("UCX", {}), b.createBackend("UCX", {})
        one, two = Memory(4096, seed=1), Memory(4096)
        for agent, m, handle in (a, one, back[0]), (b, two, back[1]):
            descs = nixl.nixlRegDList(nixl.DRAM_SEG)
            descs.addDesc((m.address, m.size, 0, "meta"))
            self.assertIs(agent.registerMem(descs, [handle]), nixl.NIXL_SUCCESS)
        self.assertEqual(a.loadRemoteMD(b.getLocalMD()).decode(encoding="UTF-8"), "low-b")
        self.assertEqual([a.checkRemoteMD(n, nixl.nixlXferDList(nixl.DRAM_SEG)) for n in ("low-b", "low-c")], [nixl.NIXL_SUCCESS, nixl.NIXL_ERR_NOT_FOUND])
        src, dst = nixl.nixlXferDList(nixl.DRAM_SEG, [(one.address, 64, 0)]), nixl.nixlXferDList(nixl.DRAM_SEG, [(two.address, 64, 0)])
        prepared = a.prepXferDlist(src, [back[0]]), a.prepXferDlist("low-b", dst)
        for h in a.createXferReq(nixl.NIXL_WRITE, src, dst, "low-b", "n\0te"), a.makeXferReq(nixl.NIXL_WRITE, prepared[0], [0], prepared[1], [0], "n\0te"):
            status, end = a.postXferReq(h), time.monotonic() + 20
            while status is not nixl.NIXL_SUCCESS:
                self.assertLess(time.monotonic(), end)
                status = a.getXferStatus(h)
            self.assertEqual(a.queryXferBackend(h), back[0])
            self.assertEqual(a.getXferTelemetry(h).totalBytes, 64)
            a.releaseXferReq(h)
            with self.assertRaisesRegex(nixl.nixlInvalidParamError, "released"):
                a.getXferStatus(h)
        got, end = {}, time.monotonic() + 20
        while len(got.get("low-a", [])) < 2:
            self.assertLess(time.monotonic(), end)
            got = b.getNotifs(got)
        self.assertEqual((got, two.raw()[:65]), ({"low-a": [b"n\0te"] * 2}, one.raw()[:64] + b"\0"))
        with self.assertRaises(TypeError):
            a.createXferReq("WRITE", src, dst, "low-b")
        with self.assertRaises(nixl.nixlInvalidParamError):
            a.registerMem(descs, [99])

    def test_programs_of_nixl(self):
        """A program that imports nixl runs by "python3 -m weft.nixl"."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "program.py")
            with open(path, "w") as f:
                f.write(
                    "import sys, beside\nfrom nixl import nixl_agent, nixl_agent_config\nfrom nixl.logging import get_logger\n"
                    "get_logger(__name__).info('logged %s', sys.argv[1:])\na = nixl_agent('x', nixl_agent_config(backends=[]))\nprint(a.name, __name__, sys.argv[1:])\n"
                )
            with open(os.path.join(folder, "beside.py"), "w") as f:
                f.write("")
            env = dict(os.environ, PYTHONPATH=os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
            p = subprocess.run([sys.executable, "-m", "weft.nixl", path, "--ip", "1"], env=env, capture_output=True, text=True, timeout=30)
            self.assertEqual(p.stdout, "x __main__ ['--ip', '1']\n", p.stderr)
            self.assertIn("logged ['--ip', '1']", p.stderr)
            p = subprocess.run([sys.executable, "-m", "weft.nixl"], env=env, capture_output=True, text=True, timeout=30)
            self.assertIn("want: python3 -m weft.nixl", p.stderr)
            self.assertEqual(p.returncode, 2)

    def test_handles_that_nobody_holds(self):
        """What is not released goes with its object, in the middle of other calls."""
        a, b, mine, theirs, peer = self.pair()
        for i in range(50):
            h = a.initialize_xfer("READ", a.get_xfer_descs([(mine.address, 64, 0)], "DRAM"), a.get_xfer_descs([(theirs.address, 64, 0)], "DRAM"), peer)
            self.assertEqual(finish(a, h, a.transfer(h)), "DONE")
        del h
        a.get_new_notifs()
        self.assertEqual(a._child.later, [])
        with self.assertRaises(nixl.nixlNotFoundError):
            a._child.call("drop", list=1)  # the first list is gone

    @in_processes
    def test_the_other_dies(self):
        a, b, mine, theirs, peer = self.pair()
        local, far = a.prep_xfer_dlist("", [(mine.address, 8, 0)], "DRAM"), a.prep_xfer_dlist(peer, [(theirs.address, 8, 0)], "DRAM")
        h = a.make_prepped_xfer("READ", local, [0], far, [0])
        self.assertEqual(finish(a, h, a.transfer(h)), "DONE")
        b._child.process.kill()
        b._child.process.wait()
        self.assertEqual(finish(a, h, a.transfer(h)), "ERR")
        self.assertIn("b", a.get_xfer_error(h))
        with self.assertRaises(nixl.nixlBackendError):
            b.get_agent_metadata()

    @in_processes
    def test_notices_to_one_that_is_stopped_hold_nobody_up(self):
        a, b, mine, theirs, peer = self.pair()
        c = self.agent("c")
        third = a.add_remote_agent(c.get_agent_metadata())
        a.send_notif(peer, b"before")
        self.assertEqual(notices(b, 1), {"a": [b"before"]})
        freeze(b._child.process)
        try:
            a.send_notif(peer, b"meanwhile")  # taken, and on its way
            a.send_notif(third, b"to another")
            self.assertEqual(notices(c, 1), {"a": [b"to another"]})
        finally:
            b._child.process.send_signal(signal.SIGCONT)
        self.assertEqual(notices(b, 1), {"a": [b"meanwhile"]})
        self.assertEqual((a.get_new_notifs(), a.get_failed_notifs()), ({}, []))

    def test_another_process(self):
        code = (
            "import sys; sys.path.insert(0, %r)\n"
            "from kv_clients import *\n"
            "a, m = nixl.nixl_agent('far'), Memory(300000, seed=8)\n"
            "a.register_memory([(m.address, m.size, 0, '')], 'DRAM')\n"
            "print(a.get_agent_metadata().hex(), m.address, flush=True)\n"
            "print(notices(a, 1), flush=True)\n" % os.path.dirname(os.path.abspath(__file__))
        )
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as p:
            try:
                blob, address = p.stdout.readline().split()
                a, mine = self.agent("near"), Memory(300000)
                a.register_memory([(mine.address, mine.size, 0, "")], "DRAM")
                peer = a.add_remote_agent(bytes.fromhex(blob))
                h = a.initialize_xfer("READ", a.get_xfer_descs([(mine.address, 300000, 0)], "DRAM"), a.get_xfer_descs([(int(address), 300000, 0)], "DRAM"), peer, b"got it")
                self.assertEqual(finish(a, h, a.transfer(h)), "DONE", a.get_xfer_error(h))
                self.assertEqual(mine.raw(), noise(300000, 8))
                self.assertIn("got it", p.stdout.readline())
            finally:
                p.kill()


class Names(unittest.TestCase):
    def test_chains(self):
        tokens = [1, 2, 3, 4, 500, 60000, 7, 1 << 20]
        self.assertEqual(kv.Chain("vllm", 4, "0").hashes(tokens)[1].hex(), "0d14c6eb5445f20209ea6194004a86aeda7d9f0bf3d582085bea972e049014dc")
        with self.assertRaises(ValueError):
            kv.Chain("vllm", 4)
        self.assertEqual(kv.key_of(bytes(32)), "00" * 32)


class Connections(unittest.TestCase):
    def test_threads_that_come_and_go_leave_none_behind(self):
        c = kv.Client(os.environ["WEFT_KV"])
        self.addCleanup(c.close)
        for _ in range(20):
            t = threading.Thread(target=c.match, args=([bytes(32)],))
            t.start()
            t.join()
        self.assertEqual(len(c._idle), 1)

    def test_a_block_that_is_too_long_is_told(self):
        c = kv.Client(os.environ["WEFT_KV"])
        self.addCleanup(c.close)
        with self.assertRaisesRegex(kv.CacheError, "at most"):
            c.put([b"long"], [bytes(c.stat()["block_bytes"] + (8 << 20))], alone=True)

    def test_a_cache_that_ends_while_it_is_called(self):
        for raised in ConnectionResetError, BrokenPipeError, ConnectionRefusedError:
            c = kv.Client("127.0.0.1:1")
            with unittest.mock.patch("http.client.HTTPConnection.connect", side_effect=raised("gone")):
                with self.assertRaisesRegex(kv.CacheError, "cannot be reached: gone"):
                    c.match([bytes(32)])

    def test_a_cache_that_does_not_answer_is_left_alone(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            c = kv.Client("127.0.0.1:%d" % s.getsockname()[1], timeout=0.2, rest=60)
            with self.assertRaisesRegex(kv.CacheError, "cannot be reached"):
                c.match([bytes(32)])
            c.timeout = 60
            with self.assertRaisesRegex(kv.CacheError, "left alone"):
                c.match([bytes(32)])  # at once
            with self.assertLogs("weft.kv", "WARNING") as log:
                for _ in range(3):
                    c.complain("the same")
            self.assertEqual(len(log.output), 1)


class Tensor(bytearray):
    """Memory with a shape, as a tensor of bytes."""

    def __init__(self, shape):
        n = 1
        for s in shape:
            n *= s
        super().__init__(n)
        self.shape = shape


class VLLM(unittest.TestCase):
    """A double of vLLM's scheduler and worker: connectors of both roles, called in the order of a step."""

    BLOCK, BLOCKS = 4, 32

    def setUp(self):
        self.extra = {"address": os.environ["WEFT_KV"], "seed": "0", "patience": 20}
        self.salt = "%d" % time.monotonic_ns()

    def engine(self, apart=True, **extra):
        config = types.SimpleNamespace(
            kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config=dict(self.extra, **extra)),
            cache_config=types.SimpleNamespace(block_size=self.BLOCK, num_gpu_blocks=self.BLOCKS),
            model_config=types.SimpleNamespace(model="double" + self.salt, dtype="uint8"))
        e = types.SimpleNamespace(scheduler=WeftConnector(config, KVConnectorRole.SCHEDULER), worker=WeftConnector(config, KVConnectorRole.WORKER))
        shape = (2, self.BLOCKS, self.BLOCK, 3) if apart else (self.BLOCKS, 2, self.BLOCK, 3)
        e.caches, e.frozen = {"layer.%d" % i: Tensor(shape) for i in range(3)}, False
        e.worker.register_kv_caches(e.caches)
        self.addCleanup(e.scheduler.shutdown)
        self.addCleanup(e.worker.shutdown)
        return e

    def values(self, name, tokens, upto):
        """What a layer holds for a block: a function of all tokens up to its end."""
        return noise(2 * self.BLOCK * 3, hash((name, tuple(tokens[:upto]))) & 0xFFFFFF)

    def page(self, e, name, block):
        return e.worker.layouts[name].read(e.caches[name], block)

    EMPTY = types.SimpleNamespace(req_ids=[], new_block_ids=[], num_computed_tokens=[])

    def step(self, e, new=(), cached=EMPTY, scheduled=None, layer=None):
        """One step: the scheduler's metadata, then the worker's calls in the order of vLLM's runner. Without a layer function nothing is computed,
        and wait_for_save is not called. Returns the requests whose loading ended, and the blocks that failed."""
        meta = e.scheduler.build_connector_meta(types.SimpleNamespace(scheduled_new_reqs=list(new), scheduled_cached_reqs=cached, num_scheduled_tokens=scheduled or {}))
        w = e.worker
        w.handle_preemptions(meta)
        w.bind_connector_metadata(meta)
        w.start_load_kv(None)
        if layer:
            for name, cache in e.caches.items():
                w.wait_for_layer_load(name)
                w.wait_for_layer_load(name + ".shares")  # a layer without a cache of its own
                layer(name, cache)
                w.save_kv_layer(name, cache, None)
            w.wait_for_save()
        sent, got = w.get_finished(set())
        self.assertIsNone(sent)
        failed = w.get_block_ids_with_load_errors()
        w.clear_connector_metadata()
        got = got or set()
        e.scheduler.update_connector_output(types.SimpleNamespace(finished_sending=None, finished_recving=got, invalid_block_ids=failed))
        return got, failed

    def until(self, what, ready):
        """Calls ready again and again, as an engine does, until it returns something."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            got = ready()
            if got is not None:
                return got
            time.sleep(0.001)
        self.fail("%s does not end" % what)

    def request(self, name, tokens, **more):
        return types.SimpleNamespace(**dict(dict(request_id=name, prompt_token_ids=tokens, num_tokens=len(tokens), cache_salt=None, lora_request=None), **more))

    def lookup(self, e, r, local=0):
        """The answer to a request that is asked for in every schedule: tokens, and whether they come asynchronously."""
        return self.until("the lookup", lambda: (lambda answer: None if answer[0] is None else answer)(e.scheduler.get_num_new_matched_tokens(r, local)))

    def load(self, e, r, local, blocks, found=None):
        """Admits a request and loads what was found for it. Returns tokens found, tokens that are there afterwards, and the blocks that failed."""
        if not found:
            e.scheduler.on_new_request(r)
        matched, later = found or self.lookup(e, r, local)
        self.assertEqual(later, matched > 0)  # (0, True) stops vLLM
        allocated = types.SimpleNamespace(get_block_ids=lambda: (blocks,))
        e.scheduler.update_state_after_alloc(r, allocated, matched)
        failed, computed = set(), local + matched
        if matched:
            def ended():
                got, bad = self.step(e)
                failed.update(bad)
                return got or None
            self.assertEqual(self.until("loading", ended), {r.request_id})
            bad = [i for i, b in enumerate(blocks) if b in failed]
            computed = min([computed] + [i * self.BLOCK for i in bad])
            e.scheduler.update_state_after_alloc(r, allocated, 0)
        return matched, computed, failed

    def run_step(self, e, request, tokens, blocks, resumed=None, local=0, found=None):
        """A request's only prefill step, or its first after it was preempted. Gives the matched tokens, and the blocks that failed."""
        r = self.request(request, tokens)
        matched, computed, failed = self.load(e, r, local, blocks, found)

        def layer(name, cache):
            for i in range(computed // self.BLOCK, len(tokens) // self.BLOCK):  # the forward pass of this layer
                e.worker.layouts[name].write(cache, blocks[i], self.values(name, tokens, (i + 1) * self.BLOCK))

        new, cached = [types.SimpleNamespace(req_id=request, block_ids=(blocks,), num_computed_tokens=computed)], self.EMPTY
        if resumed:
            new, cached = [], types.SimpleNamespace(req_ids=[request], new_block_ids=[(blocks,)], num_computed_tokens=[computed], **resumed)
        self.assertEqual(self.step(e, new, cached, {request: len(tokens) - computed}, layer), (set(), set()))
        # Saving is over for vLLM: the blocks are free at once, whatever happens to them.
        self.assertEqual(e.scheduler.request_finished(r, blocks), (False, None))
        self.assertEqual(tuple(e.scheduler.take_events()), ())
        kept = {(name, b): self.page(e, name, b) for name in e.caches for b in blocks}
        for name, b in kept:
            e.worker.layouts[name].write(e.caches[name], b, bytes(len(kept[name, b])))
        if not e.frozen:
            self.assertTrue(e.worker.flush(20))
        for (name, b), page in kept.items():
            e.worker.layouts[name].write(e.caches[name], b, page)
        return matched, failed

    def check(self, e, tokens, blocks):
        for name in e.caches:
            for i in range(len(tokens) // self.BLOCK):
                self.assertEqual(self.page(e, name, blocks[i]), self.values(name, tokens, (i + 1) * self.BLOCK), (name, i))

    def test_prefixes_are_shared_between_engines(self):
        for apart in (True, False):
            self.salt += "x"
            a, b = self.engine(apart), self.engine(apart)
            tokens = list(range(18))
            self.assertEqual(self.run_step(a, "one", tokens, [3, 1, 4, 9, 5]), (0, set()))
            # Another engine finds the four whole blocks, in blocks of its own.
            self.assertEqual(self.run_step(b, "two", tokens, [7, 8, 2, 6, 0]), (16, set()))
            self.check(b, tokens, [7, 8, 2, 6])
            # A text that goes on differently shares what is equal.
            other = tokens[:8] + [99] * 10
            self.assertEqual(self.run_step(b, "three", other, [10, 11, 12, 13, 14]), (8, set()))
            self.check(b, other, [10, 11, 12, 13])
            # One token at least is computed.
            self.assertEqual(self.run_step(a, "four", tokens[:16], [20, 21, 22, 23])[0], 12)

    def test_kernels_with_smaller_blocks(self):
        """A tensor has several pages for each of the scheduler's blocks. Each element says which block, token and place it belongs to, by the rules of
        vLLM's shapes and nothing of the connector's."""
        block, blocks, heads, width = self.BLOCK, 16, 5, 3
        shapes = {
            "keys and values apart": lambda n, t: ((2, n, t, heads, width), lambda i: (i[1], i[2], (i[0], i[3], i[4]))),
            "beside each other": lambda n, t: ((n, 2, t, heads, width), lambda i: (i[0], i[2], (i[1], i[3], i[4]))),
            "one for both": lambda n, t: ((n, t, width), lambda i: (i[0], i[1], (i[2],))),
            "tokens inside heads": lambda n, t: ((n, 2, heads, t, width), lambda i: (i[0], i[3], (i[1], i[2], i[4]))),
        }

        def places(shape):
            return itertools.product(*(range(n) for n in shape))

        def engine(kind, ratio):
            shape, where = shapes[kind](blocks * ratio, block // ratio)
            config = types.SimpleNamespace(
                kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config=self.extra),
                cache_config=types.SimpleNamespace(block_size=block, num_gpu_blocks=blocks),
                model_config=types.SimpleNamespace(model="kernels" + self.salt, dtype="uint8"))
            e = types.SimpleNamespace(scheduler=WeftConnector(config, KVConnectorRole.SCHEDULER), worker=WeftConnector(config, KVConnectorRole.WORKER), shape=shape, cache=Tensor(shape))
            e.caches = {"l": e.cache}
            e.worker.register_kv_caches(e.caches)
            said = e.worker.get_handshake_metadata()
            if said is not None:
                e.scheduler.set_xfer_handshake_metadata({0: said})
            e.where = lambda i: (where(i)[0] // ratio, where(i)[0] % ratio * (block // ratio) + where(i)[1], where(i)[2])
            self.addCleanup(e.scheduler.shutdown)
            self.addCleanup(e.worker.shutdown)
            return e

        def step(e, name, tokens, ids, value):
            r = self.request(name, tokens)
            matched, computed, failed = self.load(e, r, 0, ids)
            self.assertEqual(failed, set())

            def layer(_, cache):
                if value:
                    for at, i in enumerate(places(e.shape)):
                        b, token, rest = e.where(i)
                        if b in ids:
                            cache[at] = value(ids.index(b), token, rest)

            self.step(e, [types.SimpleNamespace(req_id=name, block_ids=(ids,), num_computed_tokens=computed)], scheduled={name: len(tokens) - computed}, layer=layer)
            self.assertTrue(e.worker.flush(20))
            e.scheduler.request_finished(r, ids)
            return matched

        def value(nth, token, rest):
            return noise(1, hash((nth, token, rest)) & 0xFFFFFF)[0]

        tokens, ratios = list(range(2 * block)), (1, 2, 4)
        for kind in shapes:
            self.salt += "y"
            for n, (mine, theirs) in enumerate(itertools.product(ratios, ratios)):
                a, b = engine(kind, mine), engine(kind, theirs)
                text = [1000 * n] + tokens
                self.assertEqual(step(a, "save", text, [3, 1, 9], value), 0)
                got = step(b, "load", text, [5, 2, 7], None)
                if kind == "tokens inside heads" and mine != theirs:
                    self.assertEqual(got, 0, (kind, mine, theirs))  # the bytes are in another order
                    continue
                self.assertEqual(got, 2 * block, (kind, mine, theirs))
                for at, i in enumerate(places(b.shape)):
                    block_of, token, rest = b.where(i)
                    want = value((5, 2).index(block_of), token, rest) if block_of in (5, 2) else 0
                    self.assertEqual(b.cache[at], want, (kind, mine, theirs, i))
        # The two orders of keys and values are one in the cache.
        a, b = engine("keys and values apart", 2), engine("beside each other", 4)
        text = [77] + tokens
        step(a, "save", text, [3, 1, 9], value)
        self.assertEqual(step(b, "load", text, [5, 2, 7], None), 2 * block)
        self.assertEqual(b.cache[4 * 5 * 2 * heads * width], value(0, 0, (0, 0, 0)))

    def test_shapes_that_are_not_understood(self):
        def register(shape, blocks=16, tokens=8, caches=None):
            config = types.SimpleNamespace(
                kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config=self.extra),
                cache_config=types.SimpleNamespace(block_size=tokens, num_gpu_blocks=blocks), model_config=types.SimpleNamespace(model="m", dtype="uint8"))
            w = WeftConnector(config, KVConnectorRole.WORKER)
            self.addCleanup(w.shutdown)
            w.register_kv_caches(caches or {"layer 5": Tensor(shape)})
            return w

        for shape in ((2, 33, 4, 3), (24, 2, 8, 3), (32, 2, 5, 3), (16 * 3, 2, 8, 3), (3, 32, 4, 3), (128, 8, 3)):
            with self.assertRaisesRegex(ValueError, r"layer 5: a cache of shape .*: no axis counts pages for 16 blocks of 8 tokens; want"):
                register(shape)
        with self.assertRaisesRegex(ValueError, "two axes could count pages"):
            register((2, 4, 4, 3), blocks=2)
        with self.assertRaisesRegex(ValueError, "for an unknown number of blocks"):
            register((32, 2, 4, 3), blocks=None)
        self.assertEqual(register((32, 2, 8, 3), blocks=None).layouts["layer 5"].ratio, 1)
        with self.assertRaisesRegex(ValueError, "layer 5: its cache is a list, not one tensor"):
            register(None, caches={"layer 5": [Tensor((16, 8, 3))]})
        groups = types.SimpleNamespace(kv_cache_groups=[1, 2], num_blocks=16)
        config = types.SimpleNamespace(kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config=self.extra), cache_config=types.SimpleNamespace(block_size=8), model_config=types.SimpleNamespace(model="m"))
        with self.assertRaisesRegex(ValueError, "weft.vllm moves caches of full, sliding-window and chunked attention"):
            WeftConnector(config, KVConnectorRole.WORKER, groups)

    def test_blocks_that_do_not_come(self):
        a = self.engine()
        tokens = list(range(100, 118))
        self.run_step(a, "one", tokens, [1, 2, 3, 4, 5])
        b = self.engine()
        get = b.worker.client.get
        b.worker.client.get = lambda keys, start=0, alone=False: [p if i != 2 else None for i, p in enumerate(get(keys, start, alone))]
        longer = tokens[:16] + list(range(20))
        self.assertEqual(self.run_step(b, "two", longer, list(range(6, 16))), (16, {8}))
        # vLLM computes again from the lost block on; what it stores then is right.
        c = self.engine()
        self.assertEqual(self.run_step(c, "again", longer + [1], list(range(10))), (36, set()))
        self.check(c, longer, list(range(9)))
        # Whatever the cache promises, a request is not loaded twice after a failure: it would never end.
        r = self.request("four", tokens)
        self.assertEqual(self.load(b, r, 0, [1, 2, 3, 4, 5])[2], {3})
        self.assertEqual(self.lookup(b, r), (0, False))
        # A cache that is away is no prefix, not an error.
        away = self.engine(address="127.0.0.1:1")
        self.assertEqual(self.run_step(away, "three", tokens, [1, 2, 3, 4, 5]), (0, set()))

    def test_requests_that_were_preempted(self):
        for resumed in {"resumed_req_ids": {"one"}}, {"resumed_from_preemption": [True]}:
            self.salt += "x"
            a, b = self.engine(), self.engine()
            tokens = list(range(26))
            self.run_step(a, "first", tokens[:16], [1, 2, 3, 4])
            # It comes back with other blocks, loads what there is, and stores the rest out of those.
            self.assertEqual(self.run_step(a, "one", tokens, [20, 21, 22, 23, 24, 25, 26], resumed), (16, set()))
            self.check(a, tokens, [20, 21, 22, 23, 24, 25])
            self.assertEqual(self.run_step(b, "two", tokens, [7, 8, 9, 10, 11, 12, 13]), (24, set()))
            self.check(b, tokens, [7, 8, 9, 10, 11, 12])

    def test_an_answer_that_breaks_off(self):
        a, b = self.engine(), self.engine()
        tokens = list(range(200, 218))
        self.run_step(a, "one", tokens, [1, 2, 3, 4, 5])
        exactly, count = b.worker.client._exactly, [0]

        def broken(response, n):
            count[0] += 1
            if count[0] == 6:  # in the second block
                raise http.client.IncompleteRead(b"")
            return exactly(response, n)

        b.worker.client._exactly = broken
        self.assertEqual(self.run_step(b, "two", tokens, [6, 7, 8, 9, 10]), (16, {6, 7, 8, 9}))

    def test_blocks_that_vllm_has_and_the_cache_lost(self):
        a, b = self.engine(), self.engine()
        tokens = list(range(400, 418))
        # vLLM has the first two blocks, the cache has none of them: they are stored as well, else nobody would find what comes after.
        for name in a.caches:
            for i in range(2):
                a.worker.layouts[name].write(a.caches[name], i, self.values(name, tokens, (i + 1) * self.BLOCK))
        self.assertEqual(self.run_step(a, "one", tokens, [0, 1, 2, 3, 4], local=8), (0, set()))
        self.assertEqual(self.run_step(b, "two", tokens, [7, 8, 9, 10, 11]), (16, set()))
        self.check(b, tokens, [7, 8, 9, 10])

    def test_other_shares_and_types_are_other_blocks(self):
        tokens = list(range(500, 518))
        spaces = set()
        for parallel, cache in ({}, {}), ({"world_size": 2, "tensor_parallel_size": 2}, {}), ({"world_size": 2, "pipeline_parallel_size": 2}, {}), ({}, {"cache_dtype": "fp8_e4m3"}), ({}, {"cache_dtype": "fp8_e5m2"}):
            config = types.SimpleNamespace(
                kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config=self.extra),
                cache_config=types.SimpleNamespace(block_size=self.BLOCK, **cache), parallel_config=types.SimpleNamespace(rank=0, **parallel),
                model_config=types.SimpleNamespace(model="m", dtype="bfloat16"))
            c = WeftConnector(config, KVConnectorRole.WORKER)
            spaces.add(c._keys(c.chain.hashes(tokens), c.shards.first)[0])
            c.shutdown()
        self.assertEqual(len(spaces), 5)
        self.assertTrue(WeftConnector.requires_piecewise_for_cudagraph({}))

    def test_names(self):
        """What 'weft serve --cache' relies on: the names of blocks and of the note on them. move/route/shared_test.go has the same two."""
        config = types.SimpleNamespace(
            kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config=self.extra), cache_config=types.SimpleNamespace(block_size=self.BLOCK, num_gpu_blocks=16),
            parallel_config=types.SimpleNamespace(rank=0, world_size=2, tensor_parallel_size=2),
            model_config=types.SimpleNamespace(model="m", dtype="bfloat16", get_total_num_kv_heads=lambda: 8))
        c = WeftConnector(config, KVConnectorRole.WORKER)
        self.addCleanup(c.shutdown)
        self.assertEqual(kv.key_of(c._keys([b"\xab" * 32], 0)[0]), "6a09131c7213fa288b45bca628f0d1c188893e877b69bcacd092d590840ea09b")
        with self.assertLogs("weft.vllm", "WARNING") as log:
            c._advise(100)
            c._advise(c.client.stat()["block_bytes"])  # as it should be
        self.assertEqual(len(log.output), 1)
        self.assertIn("start it with --block 100", log.output[0])
        c._note()
        (note,) = c.client.get(["e6b76b5f886e19e56b3787515d382b0dcbfb6bf701be046ee6b3758072f939d8"], alone=True)
        self.assertEqual(json.loads(note), {"space": c.space, "block": self.BLOCK, "seed": "0"})

    def test_requests_that_end_early(self):
        a = self.engine()
        tokens = list(range(600, 618))
        r = self.request("gone", tokens)
        self.lookup(a, r)
        self.lookup(a, r)  # there was no memory for it: asked again
        self.assertEqual(a.scheduler.request_finished(r, []), (False, None))  # aborted before it ran
        empty = types.SimpleNamespace(req_ids=["gone"], new_block_ids=[None], num_computed_tokens=[0], resumed_req_ids=set())
        meta = a.scheduler.build_connector_meta(types.SimpleNamespace(scheduled_new_reqs=[], scheduled_cached_reqs=empty, num_scheduled_tokens={"gone": 1}))
        self.assertEqual((meta.loads, meta.stores), ([], []))
        # A step without a forward pass: nothing is saved, and nothing waits.
        a.worker.bind_connector_metadata(meta)
        a.worker.start_load_kv(None)
        self.assertEqual((a.worker.get_finished({"gone"}), a.worker.get_block_ids_with_load_errors()), ((None, None), set()))
        a.worker.clear_connector_metadata()
        # A prompt of less than a block matches nothing and asks nobody.
        short = self.request("short", [1])
        self.assertEqual(a.scheduler.get_num_new_matched_tokens(short, 0), (0, False))

    def cache(self):
        """A cache service of this test's own: its process and address."""
        p = subprocess.Popen([os.environ["WEFT_PROGRAM"], "kv", "serve", "--listen", "127.0.0.1:0", "--memory", "1MiB", "--block", "4KiB"], stdout=subprocess.PIPE, text=True)

        def end():
            p.send_signal(signal.SIGCONT)
            p.kill()
            p.wait()
            p.stdout.close()

        self.addCleanup(end)
        return p, p.stdout.readline().split("http://")[1].split(",")[0]

    def limit(self, seconds):
        """A call that does not return by itself is a failure, not a test that hangs."""

        def over(*_):
            raise AssertionError("a call waits for the cache")

        before = signal.signal(signal.SIGALRM, over)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        self.addCleanup(signal.alarm, 0)
        signal.alarm(seconds)

    def test_a_frozen_cache_stalls_nobody(self):
        """With time limits of an hour, whatever waits for the cache waits until it is woken up."""
        self.limit(20)
        p, address = self.cache()
        a, b = self.engine(address=address), self.engine(address=address, timeout=3600, patience=3600)
        tokens, other, r = list(range(700, 718)), list(range(800, 818)), self.request("two", list(range(700, 718)))
        self.run_step(a, "one", tokens, [1, 2, 3, 4, 5])
        found = self.lookup(b, self.request("three", other))
        freeze(p)
        b.frozen = True
        for _ in range(100):
            self.assertEqual(b.scheduler.get_num_new_matched_tokens(r, 0), (None, False))
        # Others go on: a step computes and saves a prompt whose answer is there.
        self.run_step(b, "three", other, [6, 7, 8, 9, 10], found=found)
        self.assertFalse(b.worker.flush(0))
        p.send_signal(signal.SIGCONT)
        b.frozen = False
        self.assertEqual(self.run_step(b, "two", tokens, [11, 12, 13, 14, 15]), (16, set()))
        self.check(b, tokens, [11, 12, 13, 14])
        self.assertEqual(self.run_step(a, "four", other, [11, 12, 13, 14, 15]), (16, set()))
        self.check(a, other, [11, 12, 13, 14])  # saved out of blocks that were used again since

    def test_a_cache_that_freezes_under_a_load(self):
        self.limit(20)
        p, address = self.cache()
        a, b = self.engine(address=address), self.engine(address=address, timeout=0.5, patience=2, rest=3600)
        tokens, other = list(range(700, 718)), list(range(800, 818))
        self.run_step(a, "one", tokens, [1, 2, 3, 4, 5])
        r = self.request("two", tokens)
        found = self.lookup(b, r)
        freeze(p)
        b.frozen = True
        self.assertEqual(self.load(b, r, 0, [11, 12, 13, 14, 15], found), (16, 0, {11, 12, 13, 14}))
        # A request that comes now is computed, and so is the one that failed: the cache is left alone.
        self.assertEqual(self.lookup(b, r), (0, False))
        self.assertEqual(self.run_step(b, "three", other, [6, 7, 8, 9, 10]), (0, set()))
        self.assertTrue(b.worker.flush(20))

    def test_any_width_reads_what_another_stored(self):
        """Blocks stored by some number of tensor-parallel ranks are loaded by another one. Each byte says which layer, block, token, head and
        place it belongs to, by the rules of vLLM's shapes and nothing of the connector's."""
        blocks, width, layers, tokens = 16, 3, ("l0", "l1"), list(range(700, 713))  # three whole blocks
        t = self.BLOCK
        shapes = {
            "keys and values apart": (lambda h: (2, blocks, t, h, width), lambda i: (i[1], i[2], i[3], (i[0], i[4]))),
            "beside each other": (lambda h: (blocks, 2, t, h, width), lambda i: (i[0], i[2], i[3], (i[1], i[4]))),
            "tokens inside heads": (lambda h: (blocks, 2, h, t, width), lambda i: (i[0], i[3], i[2], (i[1], i[4]))),
            "one for both": (lambda h: (blocks, t, width), lambda i: (i[0], i[1], 0, (i[2],))),
        }

        def connector(role, kind, heads, rank, ranks):
            extra = dict(self.extra, layout="HND" if kind == "tokens inside heads" else "NHD")  # four tokens, four heads: the shape does not say
            config = types.SimpleNamespace(
                kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config=extra), cache_config=types.SimpleNamespace(block_size=t, num_gpu_blocks=blocks),
                parallel_config=types.SimpleNamespace(rank=rank, world_size=ranks, tensor_parallel_size=ranks),
                model_config=types.SimpleNamespace(model="widths" + kind + self.salt, dtype="uint8", get_total_num_kv_heads=lambda: heads))
            c = WeftConnector(config, role)
            self.addCleanup(c.shutdown)
            return c

        def engine(kind, heads, ranks):
            e = types.SimpleNamespace(scheduler=connector(KVConnectorRole.SCHEDULER, kind, heads, 0, ranks), workers=[])
            for rank in range(ranks):
                w = connector(KVConnectorRole.WORKER, kind, heads, rank, ranks)
                caches = {name: Tensor(shapes[kind][0](max(1, heads // ranks))) for name in layers}
                w.register_kv_caches(caches)
                e.workers.append((w, caches))
            e.scheduler.set_xfer_handshake_metadata({i: m for i, m in enumerate(w.get_handshake_metadata() for w, _ in e.workers) if m})
            return e

        def places(kind, heads, rank, ranks, cache, ids):
            """Where the bytes of the blocks in ids are in a rank's cache, and what they should be."""
            shape, where = shapes[kind][0](max(1, heads // ranks)), shapes[kind][1]
            for at, i in enumerate(itertools.product(*(range(n) for n in shape))):
                block, token, head, rest = where(i)
                if block in ids:
                    first = rank * heads // ranks if kind != "one for both" else 0
                    yield at, hash((ids.index(block), token, first + head, rest)) % 251

        for kind, heads, wide in ("keys and values apart", 8, (2, 4, 1, 8)), ("beside each other", 8, (4, 2)), ("tokens inside heads", 8, (4, 1, 8)), ("beside each other", 2, (1, 4)), ("one for both", 1, (2, 4)):
            store, *others = wide
            with self.subTest("%s, %d heads, %d ranks" % (kind, heads, store)):
                a, ids = engine(kind, heads, store), [5, 2, 9]
                hashes = a.scheduler.chain.hashes(tokens)
                for rank, (w, caches) in enumerate(a.workers):
                    for nth, cache in enumerate(caches.values()):
                        view = memoryview(cache).cast("B")
                        for at, value in places(kind, heads, rank, store, cache, ids):
                            view[at] = (value + nth) % 251
                    meta = WeftMetadata()
                    meta.stores.append((hashes, 0, ids))
                    w.bind_connector_metadata(meta)
                    for name, cache in caches.items():
                        w.save_kv_layer(name, cache)
                    w.wait_for_save()
                    self.assertTrue(w.flush(20))
                for ranks in others:
                    b, there = engine(kind, heads, ranks), [7, 0, 3]
                    self.assertEqual(self.lookup(b, self.request("r", tokens)), (3 * t, True), "%d ranks" % ranks)
                    for rank, (w, caches) in enumerate(b.workers):
                        meta = WeftMetadata()
                        meta.loads.append(("r", hashes, 0, there))
                        w.bind_connector_metadata(meta)
                        w.start_load_kv(None)
                        self.until("loading", lambda: w.get_finished(set())[1])
                        self.assertEqual(w.get_block_ids_with_load_errors(), set())
                        for nth, cache in enumerate(caches.values()):
                            view = memoryview(cache).cast("B")
                            for at, value in places(kind, heads, rank, ranks, cache, there):
                                self.assertEqual(view[at], (value + nth) % 251, (ranks, rank, nth, at))

    def test_ranks_that_lack_a_block(self):
        """What one rank of two cannot load is not promised."""
        def connector(role, rank):
            config = types.SimpleNamespace(
                kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config=self.extra), cache_config=types.SimpleNamespace(block_size=self.BLOCK, num_gpu_blocks=self.BLOCKS),
                parallel_config=types.SimpleNamespace(rank=rank, world_size=2, tensor_parallel_size=2), model_config=types.SimpleNamespace(model="ranks" + self.salt, dtype="uint8"))
            c = WeftConnector(config, role)
            self.addCleanup(c.shutdown)
            return c
        e, ranks = types.SimpleNamespace(scheduler=connector(KVConnectorRole.SCHEDULER, 0)), [connector(KVConnectorRole.WORKER, i) for i in range(2)]
        tokens = list(range(900, 918))
        hashes = e.scheduler.chain.hashes(tokens)
        for w, n in zip(ranks, (4, 2)):
            w.client.put(w._keys(hashes[:n], w.shards.first), [b"x"] * n)
        self.assertEqual(self.lookup(e, self.request("one", tokens)), (8, True))

    def test_pictures_have_no_names_of_tokens(self):
        a = self.engine()
        r = types.SimpleNamespace(request_id="p", prompt_token_ids=list(range(18)), num_tokens=18, mm_features=["a picture"], block_hashes=[])
        self.run_step(a, "one", list(range(18)), [1, 2, 3, 4, 5])
        self.assertEqual(self.lookup(a, r), (0, False))

    def test_another_seed_is_refused(self):
        self.engine().scheduler.client.match([b"\0" * 32])
        with self.assertRaisesRegex(kv.CacheError, "PYTHONHASHSEED"):
            self.engine(seed="1").scheduler.client.match([b"\0" * 32])


class Pool:
    """A double of SGLang's host pool, page first: keys and values apart."""

    def __init__(self, pages, size):
        self.k, self.v, self.size = Memory(pages * size), Memory(pages * size), size

    def get_page_buffer_meta(self, indices):
        addresses = []
        for i in indices:
            addresses += [self.k.address + i * self.size, self.v.address + i * self.size]
        return addresses, [self.size] * len(addresses)


class SGLang(unittest.TestCase):
    def storage(self, rank=0, **more):
        config = types.SimpleNamespace(model_name="m%d" % id(self), tp_rank=rank, tp_size=2, is_mla_model=False, extra_config={"address": os.environ["WEFT_KV"]})
        config.__dict__.update(more)
        s = WeftStorage(config, {})
        self.addCleanup(s.close)
        return s

    def test_pages_of_the_host_pool(self):
        a, b, pool, other = self.storage(), self.storage(), Pool(8, 100), Pool(8, 100)
        a.register_mem_pool_host(pool)
        b.register_mem_pool_host(other)
        keys = [h.hex() for h in kv.Chain("sglang", 2).hashes(list(range(8)))]
        for i in range(8):
            ctypes.memmove(pool.k.address + i * 100, noise(100, 10 + i), 100)
            ctypes.memmove(pool.v.address + i * 100, noise(100, 20 + i), 100)
        self.assertEqual(a.batch_exists(keys), 0)
        self.assertEqual(a.batch_set_v1(keys[:3], [5, 6, 2]), [True] * 3)
        self.assertEqual(b.batch_exists(keys), 3)
        for other_part in dict(rank=1), dict(pp_size=2, pp_rank=1), dict(attn_cp_size=2, attn_cp_rank=1), dict(is_page_first_layout=True):
            self.assertEqual(self.storage(**other_part).batch_exists(keys), 0, other_part)
        self.assertEqual(b.batch_get_v1(keys, [0, 1, 7, 3]), [True, True, True, False])
        for here, there in (0, 5), (1, 6), (7, 2):
            self.assertEqual(other.k.raw()[here * 100 : here * 100 + 100], noise(100, 10 + there))
            self.assertEqual(other.v.raw()[here * 100 : here * 100 + 100], noise(100, 20 + there))

    def test_any_width_reads_what_another_stored(self):
        """Pools of SGLang's layouts at one number of ranks, read at others. Each byte says where it belongs, by the shapes of SGLang's pools."""
        page, layers, dim, pages = 2, 3, 4, 4
        shapes = {  # (keys or values, page, token, layer, head, place) by index into memory, as mem_cache/memory_pool_host.py has it
            "page_first": lambda h: ((2, pages, page, layers, h, dim), lambda i: i),
            "layer_first": lambda h: ((2, layers, pages, page, h, dim), lambda i: (i[0], i[2], i[3], i[1], i[4], i[5])),
            "page_head": lambda h: ((2, pages, h, page, layers, dim), lambda i: (i[0], i[1], i[3], i[4], i[2], i[5])),
        }

        class HostPool:
            def __init__(self, layout, heads, rank, ranks):
                self.layout, self.head_num, self.head_dim, self.dtype = layout, max(1, heads // ranks), dim, types.SimpleNamespace(itemsize=1)
                self.shape, self.where = shapes[layout](self.head_num)
                self.memory, self.first = Memory(2 * layers * pages * page * self.head_num * dim), rank * heads // ranks

            def each(self, ids):
                for at, i in enumerate(itertools.product(*(range(n) for n in self.shape))):
                    kv, p, token, layer, head, place = self.where(i)
                    if p in ids:
                        yield at, hash((kv, ids.index(p), token, layer, self.first + head, place)) % 251

            def get_page_buffer_meta(self, indices):
                n = page * self.head_num * dim * (1 if self.layout == "layer_first" else layers)
                step = lambda kv, layer, p: (kv * layers * pages + layer * pages + p) * n if self.layout == "layer_first" else (kv * pages + p) * n
                each = [(kv, l) for kv in range(2) for l in range(layers if self.layout == "layer_first" else 1)]
                at = [self.memory.address + step(kv, l, p) for p in indices for kv, l in each]
                return at, [n] * len(at)

        for layout, heads, wide in ("page_first", 8, (2, 4, 1)), ("layer_first", 8, (4, 2)), ("page_head", 8, (2, 4)), ("page_first", 2, (2, 4)):
            store, *others = wide
            keys = [hashlib.sha256(b"%s %d %d" % (layout.encode(), heads, i)).hexdigest() for i in range(3)]

            def storages(ranks):
                for rank in range(ranks):
                    s, pool = self.storage(rank, tp_size=ranks, extra_config={"address": os.environ["WEFT_KV"], "kv_heads": heads}), HostPool(layout, heads, rank, ranks)
                    s.register_mem_pool_host(pool)
                    yield s, pool

            with self.subTest("%s, %d heads, %d ranks" % (layout, heads, store)):
                for s, pool in storages(store):
                    for at, value in pool.each([3, 0, 2]):
                        ctypes.memset(pool.memory.address + at, value, 1)
                    self.assertEqual(s.batch_set_v1(keys, [3, 0, 2]), [True] * 3)
                for ranks in others:
                    for s, pool in storages(ranks):
                        self.assertEqual(s.batch_exists(keys), 3, ranks)
                        self.assertEqual(s.batch_get_v1(keys, [1, 2, 0]), [True] * 3)
                        data = ctypes.string_at(pool.memory.address, 2 * layers * pages * page * pool.head_num * dim)
                        for at, value in pool.each([1, 2, 0]):
                            self.assertEqual(data[at], value, (ranks, at))

    def test_several_pools(self):
        a, b = self.storage(), self.storage()
        pools = {s: {name: Pool(8, 100) for name in ("kv", "mamba", "draft")} for s in (a, b)}
        for s in a, b:
            s.register_mem_pool_host(pools[s]["kv"])
            for name in "mamba", "draft":
                s.register_mem_host_pool_v2(pools[s][name], name)
        keys = ["v2 %d %d" % (id(self), i) for i in range(4)]
        for n, pool in enumerate(pools[a].values()):
            ctypes.memmove(pool.k.address, noise(800, 30 + n), 800)
            ctypes.memmove(pool.v.address, noise(800, 40 + n), 800)
        of = lambda name, keys=None, indices=None, policy="all_pages": types.SimpleNamespace(name=name, keys=keys, host_indices=indices, hit_policy=policy)
        self.assertEqual(a.batch_set_v2([of("kv", keys, [0, 1, 2, 3]), of("mamba", keys[2:3], [5]), of("draft", keys[:2], [6, 7])]), {"kv": [True] * 4, "mamba": [True], "draft": [True] * 2})
        found = lambda *transfers: (lambda r: (r.kv_hit_pages, r.extra_pool_hit_pages))(b.batch_exists_v2(keys, list(transfers)))
        self.assertEqual(found(), (4, {"kv": 4}))
        self.assertEqual(found(of("draft")), (2, {"kv": 4, "draft": 2}))
        self.assertEqual(found(of("mamba", keys[3:], policy="trailing_pages")), (3, {"kv": 4, "mamba": 3}))
        self.assertEqual(found(of("mamba")), (0, {"kv": 4}))
        self.assertEqual(b.batch_get_v2([of("kv", keys[:1], [4]), of("mamba", keys[2:], [0, 1])]), {"kv": [True], "mamba": [True, False]})
        self.assertEqual(pools[b]["kv"].k.raw()[400:500], noise(800, 30)[:100])
        self.assertEqual(pools[b]["mamba"].v.raw()[:100], noise(800, 41)[500:600])
        self.assertEqual(b.batch_get_v1([], []), [])
        with self.assertRaisesRegex(ValueError, "was not registered"):
            b.batch_get_v2([of("swa", keys, [0, 1, 2, 3])])

    def test_single_pages(self):
        s = self.storage()
        self.assertIsNone(s.get("k"))
        self.assertTrue(s.set("k", bytearray(b"page")))
        self.assertTrue(s.exists("k"))
        target = bytearray(4)
        self.assertIs(s.get("k", target), target)
        self.assertEqual(target, b"page")
        self.assertIsNone(s.get("k", bytearray(3)))  # of another size
        self.assertTrue(s.batch_set(["x", "y"], [b"1", b"2"]))
        self.assertEqual(s.batch_get(["x", "z", "y"]), [b"1", None, b"2"])


class LMCache(unittest.TestCase):
    def test_objects(self):
        class Backend:
            def allocate(self, shape, dtype, fmt):
                n = 4
                for s in shape:
                    n *= s
                return types.SimpleNamespace(metadata=types.SimpleNamespace(shape=shape, dtype=dtype, fmt=fmt), byte_array=bytearray(n))

        async def run():
            c = LMCacheConnector("weft://" + os.environ["WEFT_KV"], asyncio.get_running_loop(), Backend())
            key = types.SimpleNamespace(to_string=lambda: "vllm@m@1@0@%d" % time.monotonic_ns())
            name = key.to_string()
            key.to_string = lambda: name
            self.assertFalse(await c.exists(key))
            self.assertIsNone(await c.get(key))
            m = Backend().allocate((2, 3), "float32", 1)
            m.byte_array[:] = noise(24, 4)
            await c.put(key, m)
            self.assertTrue(await c.exists(key))
            self.assertTrue(c.exists_sync(key))
            got = await c.get(key)
            self.assertEqual((got.metadata.shape, got.metadata.dtype, got.metadata.fmt, bytes(got.byte_array)), ((2, 3), "float32", 1, noise(24, 4)))
            self.assertEqual(c.batched_contains([key, "nothing", key]), [True, False, False])
            self.assertEqual(c.batched_contains([key, "nothing", key], stop_after_first_not_exits=False), [True, False, True])
            self.assertEqual(await c.batched_async_contains("lookup 1", [key, "nothing"]), 1)
            self.assertEqual(len(await c.batched_get_non_blocking("lookup 1", [key, "nothing", key])), 1)
            self.assertTrue(c.support_batched_get() and c.support_batched_put() and c.support_batched_contains())
            self.assertFalse(c.remove_sync(key))
            self.assertEqual((await c.batched_get(["nothing", key]))[0], None)
            self.assertEqual(await c.ping(), 0)
            self.assertEqual(await c.list(), [])
            await c.close()

        asyncio.run(asyncio.wait_for(run(), 30))

    def test_any_width_reads_what_another_stored(self):
        """Chunks (keys or values, layer, token, head and place) of some workers, read by another number of them."""
        layers, tokens, size, heads = 2, 3, 4, 8

        class Backend:
            def allocate(self, shape, dtype, fmt):
                n = 1
                for s in shape:
                    n *= s
                return types.SimpleNamespace(metadata=types.SimpleNamespace(shape=tuple(shape), dtype=dtype, fmt=fmt), byte_array=bytearray(n))

        def chunk(rank, ranks, of):
            mine = range(rank * heads // ranks, rank * heads // ranks + max(1, heads // ranks))
            places = itertools.product(range(2), range(layers), range(tokens), mine, range(size))
            return (2, layers, tokens, len(mine) * size), bytes(hash((of, *p)) % 251 for p in places)

        async def run():
            model = "m%d" % time.monotonic_ns()

            def workers(ranks):
                for rank in range(ranks):
                    metadata = types.SimpleNamespace(kv_shape=(layers, 2, tokens, max(1, heads // ranks), size), world_size=ranks, worker_id=rank, use_mla=False)
                    config = types.SimpleNamespace(extra_config={"weft_kv_heads": heads})
                    c = LMCacheConnector("weft://" + os.environ["WEFT_KV"], asyncio.get_running_loop(), Backend(), config=config, metadata=metadata)
                    keys = [types.SimpleNamespace(model_name=model, world_size=ranks, worker_id=rank, chunk_hash=h, dtype="uint8") for h in range(3)]
                    yield rank, c, keys

            for store, others in (2, (4, 1)), (4, (2, 16)):
                model += "x"
                for rank, c, keys in workers(store):
                    objects = []
                    for h in range(2):
                        shape, data = chunk(rank, store, h)
                        objects.append(Backend().allocate(shape, "uint8", 1))
                        objects[-1].byte_array[:] = data
                    await c.batched_put(keys[:2], objects)
                    await c.close()
                for ranks in others:
                    for rank, c, keys in workers(ranks):
                        self.assertEqual(c.batched_contains(keys), [True, True, False], (store, ranks))
                        *got, nothing = await c.batched_get(keys)
                        self.assertEqual([(m.metadata.shape, bytes(m.byte_array)) for m in got], [chunk(rank, ranks, h) for h in range(2)], (store, ranks))
                        self.assertIsNone(nothing)
                        await c.close()

        asyncio.run(asyncio.wait_for(run(), 30))

    def test_shards_without_numpy(self):
        import random

        data = random.Random(1).randbytes(960)
        for heads, rank, ranks, width in (8, 1, 2, 48), (8, 0, 1, 96), (6, 2, 3, 20), (2, 3, 8, 12):
            s = _shards.Shards(heads, rank, ranks)
            fast = s.cut(data, width)
            with unittest.mock.patch.object(_shards, "numpy", None):
                self.assertEqual([bytes(p) for p in s.cut(data, width)], [bytes(p) for p in fast])
                self.assertEqual(bytes(s.join(fast, width)), data)
            self.assertEqual(bytes(s.join(fast, width)), data)
        with self.assertRaisesRegex(ValueError, "neither divides"):
            _shards.Shards(8, 0, 3)

    def test_as_lmcache_makes_it(self):
        class Format(enum.Enum):  # LMCache's is not a number
            KV_2LTD = 1

        class Object:
            def __init__(self, n):
                self.byte_array, self.references = bytearray(n), 1
                self.metadata = types.SimpleNamespace(shape=(n,), dtype="torch.uint8", fmt=Format.KV_2LTD)

            def ref_count_down(self):
                self.references -= 1

        made = []

        class Backend:
            def allocate(self, shape, dtype, fmt):
                made.append(Object(shape[0] - wrong))
                return made[-1]

        async def run():
            context = types.SimpleNamespace(url="weft://" + os.environ["WEFT_KV"], loop=asyncio.get_running_loop(), local_cpu_backend=Backend(), config=None, metadata=None)
            adapter = WeftConnectorAdapter()
            self.assertTrue(adapter.can_parse(context.url) and not adapter.can_parse("redis://x"))
            c = adapter.create_connector(context)
            m, key = Object(50), "chunk %d" % time.monotonic_ns()
            m.byte_array[:] = noise(50, 7)
            await c.put(key, m)
            self.assertEqual(m.references, 1)  # LMCache counts, not the connector
            self.assertEqual(bytes((await c.get(key)).byte_array), noise(50, 7))
            nonlocal_wrong(10)
            self.assertIsNone(await c.get(key))  # of another size: its memory goes back
            self.assertEqual(made[-1].references, 0)
            await c.close()
            # As LMCache makes connectors that are named in its configuration: without a url.
            d = LMCacheConnector(loop=context.loop, local_cpu_backend=Backend(), config=types.SimpleNamespace(extra_config={"weft_address": os.environ["WEFT_KV"]}))
            self.assertEqual(await d.ping(), 0)
            await d.close()

        wrong = 0

        def nonlocal_wrong(n):
            nonlocal wrong
            wrong = n

        asyncio.run(asyncio.wait_for(run(), 30))


if __name__ == "__main__":
    unittest.main()
