"""Ctrl-C in every wait: rank 0 waits for a rank that does not come, and is interrupted. Prints how long each took to notice."""
import array, os, signal, socket, sys, threading, time
import weft


def interrupted(wait):
    """How long wait goes on after a SIGINT that comes while it waits."""
    sent = []

    def interrupt():
        time.sleep(0.15)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    t = threading.Thread(target=interrupt, daemon=True)
    try:
        try:
            t.start()
            wait()
            t.join()
            time.sleep(1)
        except KeyboardInterrupt:
            return time.monotonic() - sent[0]
    except KeyboardInterrupt:  # of a wait that ended by itself
        pass
    raise SystemExit("it ended without the interrupt")


c = weft.join()
buf, big = array.array("d", [1]), array.array("d", [1]) * (1 << 20)


def waitany(d):
    weft.Request.Waitany([d.Iallreduce(weft.IN_PLACE, buf)])


def behind(d):
    d.Iallreduce(weft.IN_PLACE, big)
    d.all_reduce(buf)


def shrink(d):
    d.abort()
    d.shrink()


def join(d):
    with socket.socket() as s:  # held, so that nobody else is given the port
        s.bind(("127.0.0.1", 0))
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        weft.join(rank=0, size=2, address=f"127.0.0.1:{s.getsockname()[1]}")


waits = {
    "allreduce": lambda d: d.all_reduce(buf),
    "large": lambda d: d.all_reduce(big),
    "barrier": lambda d: d.barrier(),
    "wait-small": lambda d: d.Iallreduce(weft.IN_PLACE, buf).wait(),
    "wait-large": lambda d: d.Iallreduce(weft.IN_PLACE, big).wait(),
    "wait-timeout": lambda d: d.Iallreduce(weft.IN_PLACE, big).wait(20),
    "wait-any": waitany,
    "behind": behind,
    "recv": lambda d: d.Recv(buf, 1, 3),
    "recv-any": lambda d: d.Recv(buf),
    "probe": lambda d: d.Probe(),
    "send": lambda d: d.Send(array.array("d", [1]) * (8 << 20), 1, 3),
    "together": lambda d: d.together(d.call.Barrier()),
    "split": lambda d: d.split(0),
    "scan": lambda d: d.Scan(weft.IN_PLACE, buf),
    "shrink": shrink,
    "join": join,
}
for name, wait in waits.items():
    d = c.dup()
    if c.rank == 0:
        print(name, "%.3f" % interrupted(lambda: wait(d)), flush=True)
    c.barrier()
    try:
        d.close()
    except weft.Error:
        pass
if c.rank == 0:
    # a handler of the program's own counts, too
    def stop(number, frame):
        raise RuntimeError("told to stop")

    signal.signal(signal.SIGINT, stop)
    d = c.dup()
    try:
        interrupted(d.barrier)
    except RuntimeError as e:
        print(e)
else:
    c.dup()
c.barrier()
print("well")
