"""Has programs that say "gloo" use weft, and notes how their tests end: torch_files.py puts this folder on PYTHONPATH.

Python imports it at the start of every process, those that a test spawns among them. The files of the tests stay as they are.
"""

import json
import os
import sys
import unittest


def note_results(path):
    """Appends a line per test to a file: unittest's own output is mixed with that of the processes a test starts."""

    def noting(name, of=lambda *details: details[-1] if details else ""):
        method = getattr(unittest.TestResult, name)

        def add(self, test, *details):
            with open(path, "a") as f:
                f.write(json.dumps({"test": test.id(), "how": name, "why": str(of(*details))}) + "\n")
            return method(self, test, *details)

        setattr(unittest.TestResult, name, add)

    def trace(err):
        return f"{err[0].__name__}: {err[1]}"

    noting("startTest")
    noting("addSuccess")
    noting("addSkip")
    noting("addExpectedFailure", trace)
    noting("addUnexpectedSuccess")
    noting("addFailure", trace)
    noting("addError", trace)


def change_the_word():
    """Lets the backend gloo be weft in every module of PyTorch that makes groups."""
    import torch.distributed as dist
    import torch.distributed.distributed_c10d as c10d
    import weft.torch
    weft.torch.patch_monitored_barrier()

    def as_weft(name):
        return "weft" if name in ("gloo", "cpu:gloo") else name

    def changed(make, place):
        def with_weft(*args, **more):
            if len(args) > place:
                args = (*args[:place], as_weft(args[place]), *args[place + 1:])
            elif more.get("backend") is not None:
                more["backend"] = as_weft(more["backend"])
            return make(*args, **more)

        return with_weft

    old = {c10d.init_process_group: changed(c10d.init_process_group, 0), c10d.new_group: changed(c10d.new_group, 2)}
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.distributed"):
            for key in ("init_process_group", "new_group"):
                if module.__dict__.get(key) in old:
                    setattr(module, key, old[module.__dict__[key]])

    gloo = getattr(dist, "ProcessGroupGloo", None)
    if gloo is None:
        return

    class ProcessGroup:
        """What a test of Gloo's class gets: a group of weft."""

        _Options, create_device, create_default_device = gloo._Options, gloo.create_device, gloo.create_default_device

        def __new__(cls, store, rank, size, options=None, timeout=None):
            from datetime import timedelta
            from types import SimpleNamespace
            limit = timeout or getattr(options, "_timeout", None) or timedelta(seconds=50)
            return weft.torch._group.create(SimpleNamespace(store=store, group_rank=rank, group_size=size, timeout=limit, global_ranks_in_group=[], group_id="raw"))

    dist.ProcessGroupGloo = ProcessGroup


def fork_ranks():
    """Forks the processes that a test wants spawned: importing PyTorch in every rank takes twenty times as long as a test."""
    import torch.multiprocessing as mp
    get = mp.get_context
    mp.get_context = lambda method=None: get("fork" if method == "spawn" else method)


if os.environ.get("TORCH_FILES_RESULTS"):
    note_results(os.environ["TORCH_FILES_RESULTS"])
if os.environ.get("TORCH_FILES_BACKEND"):
    try:
        from torch_suite import repair_dataclass
        repair_dataclass()
        fork_ranks()
        if os.environ["TORCH_FILES_BACKEND"] == "weft":
            change_the_word()
    except ModuleNotFoundError:  # a Python without PyTorch
        pass
