"""weft.nixl with the other agent in another Python process: its memory, its death, its silence. WEFT_NIXL says where the agents live.

Run by "go test ./capi -run NIXL" (library) and "go test ./app/cli -run Python" (process).
"""

import os
import signal
import subprocess
import sys
import unittest

from kv_clients import Memory, finish, freeze, nixl, noise, notices

SIZE = 1 << 20


def serve():
    """The other process: "name" starts it; each line asks for a number of notices."""
    agent, memory = nixl.nixl_agent(sys.stdin.readline().strip()), Memory(SIZE, seed=8)
    agent.register_memory([(memory.address, SIZE, 0, "")], "DRAM")
    print(agent.get_agent_metadata().hex(), memory.address, flush=True)
    for line in sys.stdin:
        if line.startswith("bytes"):
            at, n = (int(x) for x in line.split()[1:])
            print(memory.raw()[at : at + n].hex(), flush=True)
        else:
            print(sorted(sum(notices(agent, int(line)).values(), [])), flush=True)
    agent.close()


class Peer:
    def __init__(self, test, near, name):
        self.process = subprocess.Popen([sys.executable, __file__, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        test.addCleanup(self.end)
        blob, self.address = self.ask(name).split()
        self.address, self.name = int(self.address), near.add_remote_agent(bytes.fromhex(blob))

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def end(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.communicate()


class Peers(unittest.TestCase):
    def setUp(self):
        self.near, self.mine = nixl.nixl_agent("near"), Memory(SIZE)
        self.addCleanup(self.near.close)
        self.near.register_memory([(self.mine.address, SIZE, 0, "")], "DRAM")

    def lists(self, peer, size):
        rows = lambda at: [(at + i * size, size, 0) for i in range(SIZE // size)]
        return self.near.prep_xfer_dlist("", rows(self.mine.address), "DRAM"), self.near.prep_xfer_dlist(peer.name, rows(peer.address), "DRAM")

    def test_pieces_in_both_directions(self):
        """Pieces of 500 bytes (more of them than one system call takes), backwards, there and back."""
        peer, a = Peer(self, self.near, "far"), self.near
        local, far = self.lists(peer, 500)
        order = list(range(SIZE // 500))
        back = order[::-1]
        h = a.make_prepped_xfer("READ", local, order, far, back)
        for _ in range(2):  # the same handle, posted again
            self.assertEqual(finish(a, h, a.transfer(h)), "DONE", a.get_xfer_error(h))
            theirs = noise(SIZE, 8)
            self.assertEqual(self.mine.raw()[: 500 * len(order)], b"".join(theirs[i * 500 : i * 500 + 500] for i in back))
        t = a.get_xfer_telemetry(h)
        self.assertEqual((t.totalBytes, t.descCount), (500 * len(order), len(order)))
        self.assertTrue(0 < t.postDuration <= t.xferDuration and t.startTime > 0)
        w = a.make_prepped_xfer("WRITE", local, [3, 1], far, [0, 2000], b"written")
        self.assertEqual(finish(a, w, a.transfer(w)), "DONE", a.get_xfer_error(w))
        self.assertEqual(peer.ask("1"), "[b'written']\n")
        self.assertEqual(bytes.fromhex(peer.ask("bytes 0 500") + peer.ask("bytes 1000000 500")), self.mine.raw()[1500:2000] + self.mine.raw()[500:1000])

    def test_many_notices(self):
        """More than fits into the first buffer for answers."""
        peer = Peer(self, self.near, "far")
        for i in range(300):
            self.near.send_notif(peer.name, b"%04d" % i + b"x" * 400)
        self.assertEqual(peer.ask("300").count("xxxx'"), 300)

    def test_the_other_dies(self):
        peer, a = Peer(self, self.near, "far"), self.near
        local, far = self.lists(peer, 4096)
        h = a.make_prepped_xfer("READ", local, [0, 1], far, [5, 6])
        self.assertEqual(finish(a, h, a.transfer(h)), "DONE")
        peer.process.kill()
        peer.process.wait()
        try:
            state = finish(a, h, a.transfer(h))
        except nixl.nixlError:
            state = "ERR"
        self.assertEqual(state, "ERR")

    def test_the_other_is_silent(self):
        """A peer that was stopped takes no notices, and holds up nobody else."""
        peer, third, a = Peer(self, self.near, "far"), Peer(self, self.near, "third"), self.near
        a.send_notif(peer.name, b"before")
        self.assertEqual(peer.ask("1"), "[b'before']\n")
        freeze(peer.process)
        a.send_notif(peer.name, b"meanwhile")
        a.send_notif(third.name, b"to another")
        self.assertEqual(third.ask("1"), "[b'to another']\n")
        peer.process.send_signal(signal.SIGCONT)
        self.assertEqual(peer.ask("1"), "[b'meanwhile']\n")

    @unittest.skipUnless(os.environ.get("WEFT_NIXL") == "library", "for agents in this process")
    def test_a_fork_is_refused(self):
        """A child made by fork has no threads of the library: it gets an error instead of hanging."""
        r, w = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                self.near.get_new_notifs()
                os.write(w, b"no error")
            except nixl.nixlBackendError as e:
                os.write(w, str(e).encode())
            finally:
                os._exit(0)
        os.close(w)
        with os.fdopen(r) as f:
            self.assertIn("fork", f.read())
        os.waitpid(pid, 0)
        self.assertEqual(self.near.get_new_notifs(), {})


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        unittest.main()
