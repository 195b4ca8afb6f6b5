"""GPU memory through weft.nixl: twins of NIXL's DRAM tests, and rates next to torch's copies.

On a machine with a GPU and torch, from the repository:

    make lib && python3 python/tests/nixl_vram.py            # tests
    make lib && python3 python/tests/nixl_vram.py rates      # GB/s, and the ratio to torch's own copies
    make lib && python3 python/tests/nixl_vram.py pieces     # 16 MiB in pieces of 4 and 64 KiB, next to as many copies by torch and numpy
    make lib && python3 python/tests/nixl_vram.py requests   # microseconds that a request adds; works with CUDA_DRIVER, too

Without a GPU, CUDA_DRIVER names a library that stands for NVIDIA's driver (run/gpu/cuda/testdata/driver.c): its GPU memory is host memory,
so that everything but the speed is tried. "go test ./capi -run NIXL" does that.
"""

import ctypes
import mmap
import os
import signal
import statistics
import subprocess
import sys
import time
import unittest

sys.path.insert(0, __file__.rsplit("/", 2)[0])
os.environ["WEFT_NIXL"] = "library"

STAND_IN = os.environ.get("CUDA_DRIVER")
if STAND_IN:
    cuda = ctypes.CDLL(STAND_IN, ctypes.RTLD_GLOBAL)  # libcuda.so.1 is found by its own name
else:
    import torch

from weft.nixl import nixl_agent, nixl_agent_config, nixlError, nixlNotSupportedError  # noqa: E402


class Standing:
    """Memory of the driver that stands for a GPU's."""

    def __init__(self, data):
        self.size, at = len(data), ctypes.c_uint64()
        cuda.cuCtxPushCurrent_v2(ctypes.c_void_p(1040))
        assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(self.size)) == 0
        cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        self.address, self.device = at.value, 0
        ctypes.memmove(self.address, data, self.size)

    def read(self):
        return ctypes.string_at(self.address, self.size)


class Tensor:
    """Memory of a GPU as torch has it."""

    def __init__(self, data):
        self.tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8).cuda()
        self.address, self.size, self.device = self.tensor.data_ptr(), len(data), self.tensor.get_device()

    def read(self):
        torch.cuda.synchronize()
        return bytes(self.tensor.cpu().numpy())


class Host:
    def __init__(self, data):
        self.buffer = ctypes.create_string_buffer(data, len(data))
        self.address, self.size, self.device = ctypes.addressof(self.buffer), len(data), 0

    def read(self):
        return self.buffer.raw


class Pages(Host):
    """Memory of the host that shares no page with any other."""

    def __init__(self, size):
        self.map = mmap.mmap(-1, size)
        self.buffer = (ctypes.c_char * size).from_buffer(self.map)
        self.address, self.size, self.device = ctypes.addressof(self.buffer), size, 0


MEMORY = {"DRAM": Host, "VRAM": Standing if STAND_IN else Tensor}
SIZE = 1 << 20


def noise(seed, n=SIZE):
    import random

    return random.Random(seed).randbytes(n)


def row(m, at=0, n=None):
    return (m.address + at, m.size if n is None else n, m.device)


def finish(agent, handle):
    state, end = agent.transfer(handle), time.monotonic() + 30
    while state == "PROC" and time.monotonic() < end:
        state = agent.check_xfer_state(handle)
    if state != "DONE":
        raise AssertionError("%s: %s" % (state, agent.get_xfer_error(handle)))


def serve(kind):
    """The other process: memory of a kind until its standard input ends; a line asks for its bytes."""
    agent, memory = nixl_agent("far", nixl_agent_config(backends=["UCX"])), MEMORY[kind](noise(7))
    agent.register_memory([row(memory) + ("",)], kind)
    print(agent.get_agent_metadata().hex(), *row(memory), flush=True)
    for _ in sys.stdin:
        print(memory.read().hex(), flush=True)
    agent.close()


class VRAM(unittest.TestCase):
    def agent(self, name="near"):
        a = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
        self.addCleanup(a.close)
        return a

    def memory(self, agent, kind, data):
        m = MEMORY[kind](data)
        agent.register_memory([row(m) + ("",)], kind)
        return m

    def test_within_a_process(self):
        """Every pair of kinds, both directions, in pieces."""
        for mine, theirs in ("VRAM", "DRAM"), ("DRAM", "VRAM"), ("VRAM", "VRAM"):
            for op in "READ", "WRITE":
                with self.subTest("%s %s %s" % (mine, op, theirs)):
                    a, b = self.agent("a"), self.agent("b")
                    m, t = self.memory(a, mine, noise(1)), self.memory(b, theirs, noise(2))
                    peer = a.add_remote_agent(b.get_agent_metadata())
                    n = 64 << 10
                    local = a.prep_xfer_dlist("", [row(m, i * n, n) for i in range(SIZE // n)], mine)
                    far = a.prep_xfer_dlist(peer, [row(t, i * n, n) for i in range(SIZE // n)], theirs)
                    h = a.make_prepped_xfer(op, local, [0, 3, 5], far, [9, 1, 2], b"done")
                    finish(a, h)
                    at = lambda x, i: x[i * n : (i + 1) * n]
                    for i, k in (0, 9), (3, 1), (5, 2):
                        want = at(noise(2), k) if op == "READ" else at(noise(1), i)
                        self.assertEqual((at(m.read(), i), at(t.read(), k)), (want, want))
                    self.assertEqual(at(m.read(), 1), at(noise(1), 1))
                    got, end = {}, time.monotonic() + 30
                    while not got and time.monotonic() < end:
                        got = b.get_new_notifs()
                    self.assertEqual(got, {"a": [b"done"]})
                    self.assertEqual(a.get_xfer_telemetry(h).totalBytes, 3 * n)

    def test_between_processes(self):
        for mine, theirs in ("VRAM", "DRAM"), ("DRAM", "VRAM"), ("VRAM", "VRAM"):
            for op in "READ", "WRITE":
                with self.subTest("%s %s %s" % (mine, op, theirs)):
                    a = self.agent()
                    m = self.memory(a, mine, noise(1))
                    p = subprocess.Popen([sys.executable, __file__, "serve", theirs], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                    try:
                        blob, address, size, device = p.stdout.readline().split()
                        peer = a.add_remote_agent(bytes.fromhex(blob))
                        far = a.get_xfer_descs([(int(address), int(size), int(device))], theirs)
                        h = a.initialize_xfer(op, a.get_xfer_descs([row(m)], mine), far, peer)
                        finish(a, h)
                        want = noise(7) if op == "READ" else noise(1)
                        self.assertEqual(m.read(), want)
                        p.stdin.write("bytes\n")
                        p.stdin.flush()
                        self.assertEqual(bytes.fromhex(p.stdout.readline()), want)
                    finally:
                        p.send_signal(signal.SIGKILL)
                        p.communicate()

    def test_registrations_come_and_go(self):
        """Host memory that is freed after it was deregistered is not taken for the next one at its address."""
        a, b = self.agent("a"), self.agent("b")
        v = self.memory(b, "VRAM", noise(3))
        peer = a.add_remote_agent(b.get_agent_metadata())
        for i in range(20):
            m = Host(bytes(SIZE))
            regs = a.register_memory([row(m) + ("",)], "DRAM")
            h = a.initialize_xfer("READ", a.get_xfer_descs([row(m)], "DRAM"), a.get_xfer_descs([row(v)], "VRAM"), peer)
            finish(a, h)
            self.assertEqual(m.read(), noise(3))
            h.release()
            a.deregister_memory(regs)
        with self.assertRaises(nixlError):
            a.deregister_memory(regs)

    @unittest.skipUnless(STAND_IN, "counts the driver's calls")
    def test_driver_calls(self):
        """Registered host memory with pages of its own is pinned for all GPUs of the process, whichever agent has it: one copy and no
        stop in between. What the program pinned itself stays so. Pages that it shares with other memory are not pinned: the driver
        would refuse copies of that."""
        a, b, size = self.agent("a"), self.agent("b"), 8 << 20
        v, own, theirs = MEMORY["VRAM"](noise(5, size)), Pages(size), Host(bytes(size))
        self.assertEqual(cuda.cuMemHostRegister_v2(ctypes.c_void_p(theirs.address), ctypes.c_size_t(size), 3), 0)
        b.register_memory([row(v) + ("",)], "VRAM")
        peer = a.add_remote_agent(b.get_agent_metadata())
        for m in own, theirs:
            regs = a.register_memory([row(m) + ("",)], "DRAM")
            h = a.initialize_xfer("READ", a.get_xfer_descs([row(m)], "DRAM"), a.get_xfer_descs([row(v)], "VRAM"), peer)
            before = cuda.test_calls()
            finish(a, h)
            self.assertLess(cuda.test_calls() - before, 10)  # about 48 through buffers
            self.assertEqual(m.read(), v.read())
            h.release()
            a.deregister_memory(regs)
        self.assertEqual(cuda.cuMemHostUnregister(ctypes.c_void_p(theirs.address)), 0)
        self.assertNotEqual(cuda.cuMemHostUnregister(ctypes.c_void_p(own.address)), 0)
        shared = self.memory(a, "DRAM", bytes(size))
        self.assertNotEqual(cuda.cuMemHostUnregister(ctypes.c_void_p(shared.address)), 0)
        # A few bytes are copied before the call returns, and many pieces by one kernel.
        far = a.prep_xfer_dlist(peer, [row(v, i * 8192, 4096) for i in range(100)], "VRAM")
        to = self.memory(a, "VRAM", noise(6))
        local = a.prep_xfer_dlist("", [row(to, i * 8192, 4096) for i in range(100)], "VRAM")
        before, h = cuda.test_calls(), a.make_prepped_xfer("READ", local, range(100), far, range(100))
        finish(a, h)
        self.assertLess(cuda.test_calls() - before, 20)
        self.assertEqual(b"".join(to.read()[i * 8192 :][:4096] for i in range(100)), b"".join(v.read()[i * 8192 :][:4096] for i in range(100)))

    def test_what_is_refused(self):
        a = self.agent()
        m = MEMORY["VRAM"](noise(4))
        self.assertIn("VRAM_SEG", a.get_backend_mem_types("UCX"))
        with self.assertRaises(nixlNotSupportedError):
            a.register_memory([(m.address, m.size, 99, "")], "VRAM")  # no such GPU
        with self.assertRaises(nixlError):
            a.register_memory([(m.address + (1 << 40), m.size, m.device, "")], "VRAM")  # not of this GPU
        a.register_memory([row(m) + ("",)], "VRAM")
        with self.assertRaises(nixlError):
            a.prep_xfer_dlist("", [row(m)], "DRAM")  # another kind


def lend(size):
    """Another process with a tensor, until its standard input ends."""
    gpu, agent = torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda"), nixl_agent("b", nixl_agent_config(backends=["UCX"]))
    torch.cuda.synchronize()
    agent.register_memory([gpu])
    print(agent.get_agent_metadata().hex(), gpu.data_ptr(), gpu.get_device(), flush=True)
    sys.stdin.read()
    agent.close()


def between(size):
    """READs out of another process's tensor, next to torch's copy of as many bytes within this one."""
    a = nixl_agent("a", nixl_agent_config(backends=["UCX"]))
    p = subprocess.Popen([sys.executable, __file__, "lend", str(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    metadata, there, device = p.stdout.readline().split()
    peer = a.add_remote_agent(bytes.fromhex(metadata))
    gpu = torch.zeros(size, dtype=torch.uint8, device="cuda")
    a.register_memory([gpu])
    for name, to in ("GPU to GPU", torch.zeros_like(gpu)), ("GPU to pinned host", torch.zeros(size, dtype=torch.uint8, pin_memory=True)):
        torch.cuda.synchronize()
        a.register_memory([to])
        h = a.initialize_xfer("READ", a.get_xfer_descs([to]), a.get_xfer_descs([(int(there), size, int(device))], "VRAM"), peer)
        timed("between processes, " + name, a, h, to, gpu)
        h.release()
    p.stdin.close()
    p.wait()
    a.close()


def timed(name, a, h, to, gpu):
    """Medians of interleaved rounds of a transfer and torch's copy."""
    weft, copy, size = [], [], gpu.numel()
    for _ in range(15):
        begun = time.perf_counter()
        finish(a, h)
        weft.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        to.copy_(gpu)
        torch.cuda.synchronize()
        copy.append(time.perf_counter() - begun)
    rate = lambda t: size / statistics.median(t) / 1e9
    adds = (statistics.median(weft) - statistics.median(copy)) * 1e6
    ratio = statistics.median(y / x for x, y in zip(weft, copy))
    print("%5d MiB %-40s weft %7.1f GB/s by %s, torch %7.1f GB/s, ratio %.2f, adds %.0f us" % (size >> 20, name, rate(weft), h.telemetry.path, rate(copy), ratio, adds), flush=True)


def rates():
    """READs by weft between two agents, and torch's copies of the same tensors."""
    a, b = nixl_agent("a", nixl_agent_config(backends=["UCX"])), nixl_agent("b", nixl_agent_config(backends=["UCX"]))
    print("%s, torch %s" % (torch.cuda.get_device_name(), torch.__version__))
    for size in 4 << 20, 32 << 20, 64 << 20, 128 << 20, 256 << 20, 1 << 30:
        gpu = torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda")
        ends = {"GPU to GPU": torch.zeros_like(gpu), "GPU to pinned host": torch.zeros(size, dtype=torch.uint8, pin_memory=True), "GPU to host": torch.zeros(size, dtype=torch.uint8)}
        torch.cuda.synchronize()
        theirs = b.register_memory([gpu])
        peer = a.add_remote_agent(b.get_agent_metadata())
        for name, to in ends.items():
            mine = a.register_memory([to])
            h = a.initialize_xfer("READ", a.get_xfer_descs([to]), a.get_xfer_descs([gpu]), peer)
            finish(a, h)
            assert torch.equal(to.cpu(), gpu.cpu())
            timed(name, a, h, to, gpu)
            h.release()
            a.deregister_memory(mine)
        b.deregister_memory(theirs)
        between(size)
    a.close()
    b.close()


def pieces(total=16 << 20):
    """READs of shuffled pieces of GPU memory, copies of the same pieces by torch, and of host memory by numpy."""
    import numpy
    import random

    a, b = nixl_agent("a", nixl_agent_config(backends=["UCX"])), nixl_agent("b", nixl_agent_config(backends=["UCX"]))
    gpu = torch.randint(0, 256, (total,), dtype=torch.uint8, device="cuda")
    host, into = gpu.cpu().numpy(), numpy.zeros(total, numpy.uint8)
    b.register_memory([gpu])
    peer = a.add_remote_agent(b.get_agent_metadata())
    for name, to in ("GPU to GPU", torch.zeros_like(gpu)), ("GPU to pinned host", torch.zeros(total, dtype=torch.uint8, pin_memory=True)):
        torch.cuda.synchronize()
        kind = "VRAM" if to.is_cuda else "DRAM"
        a.register_memory([to])
        for size in 4 << 10, 64 << 10:
            count = total // size
            order = random.Random(2).sample(range(count), count)
            local = a.prep_xfer_dlist("", [(to.data_ptr() + i * size, size, 0) for i in range(count)], kind)
            far = a.prep_xfer_dlist(peer, [(gpu.data_ptr() + i * size, size, gpu.get_device()) for i in range(count)], "VRAM")
            h = a.make_prepped_xfer("READ", local, range(count), far, order)
            rows, source = to.reshape(count, size), gpu.reshape(count, size)
            mine, theirs = into.reshape(count, size), host.reshape(count, size)
            weft, by_torch, by_numpy = [], [], []
            for _ in range(9):
                begun = time.perf_counter()
                finish(a, h)
                weft.append(time.perf_counter() - begun)
                assert torch.equal(rows.cpu(), source[order].cpu())
                begun = time.perf_counter()
                for i, k in enumerate(order):
                    rows[i].copy_(source[k], non_blocking=True)
                torch.cuda.synchronize()
                by_torch.append(time.perf_counter() - begun)
                begun = time.perf_counter()
                for i, k in enumerate(order):
                    mine[i] = theirs[k]
                by_numpy.append(time.perf_counter() - begun)
            rate = lambda t: total / statistics.median(t) / 1e9
            times = rate(weft), h.telemetry.path, rate(by_torch), rate(weft) / rate(by_torch), rate(by_numpy), rate(weft) / rate(by_numpy)
            print("%7d bytes %-20s weft %6.2f GB/s by %s, torch %6.2f GB/s, ratio %.2f, numpy in host memory %6.2f GB/s, ratio %.2f" % (size, name, *times), flush=True)
            h.release()
    a.close()
    b.close()


def requests(size=4096, rounds=1000):
    """Microseconds per request of a few bytes, the median and the best tenth: what every request adds to its copy."""
    a, b = nixl_agent("a", nixl_agent_config(backends=["UCX"])), nixl_agent("b", nixl_agent_config(backends=["UCX"]))
    memory = {"VRAM": MEMORY["VRAM"](noise(1, size)), "DRAM": Host(noise(2, size))}
    for kind, m in memory.items():
        b.register_memory([row(m) + ("",)], kind)
    peer = a.add_remote_agent(b.get_agent_metadata())
    for mine, theirs in ("VRAM", "VRAM"), ("DRAM", "VRAM"), ("VRAM", "DRAM"), ("DRAM", "DRAM"):
        m = MEMORY[mine](noise(3, size))
        a.register_memory([row(m) + ("",)], mine)
        h = a.initialize_xfer("READ", a.get_xfer_descs([row(m)], mine), a.get_xfer_descs([row(memory[theirs])], theirs), peer)
        times, before = [], cuda.test_calls() if STAND_IN else 0
        for _ in range(rounds):
            begun = time.perf_counter()
            finish(a, h)
            times.append((time.perf_counter() - begun) * 1e6)
        assert m.read() == memory[theirs].read()
        calls = ", %.1f driver calls" % ((cuda.test_calls() - before) / rounds) if STAND_IN else ""
        times.sort()
        print("%s from %s, %d bytes: %.1f us per request, best tenth %.1f us, by %s%s" % (mine, theirs, size, times[rounds // 2], times[rounds // 10], h.telemetry.path, calls), flush=True)
        h.release()
    a.close()
    b.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2])
    elif sys.argv[1:2] == ["lend"]:
        lend(int(sys.argv[2]))
    elif sys.argv[1:] == ["rates"]:
        rates()
    elif sys.argv[1:] == ["pieces"]:
        pieces()
    elif sys.argv[1:] == ["requests"]:
        requests()
    else:
        unittest.main()
