"""PyTorch's own distributed tests, run on a backend.

    PYTHONPATH=python python3 python/tests/torch_suite.py --backend weft --ranks 4
    PYTHONPATH=python python3 python/tests/torch_suite.py --compare          # weft and Gloo, 2, 3 and 4 ranks, shm and tcp: the table of the docs
    PYTHONPATH=python python3 python/tests/torch_suite.py --ranks 2 test_all_reduce_sum test_broadcast
    PYTHONPATH=python python3 python/tests/torch_suite.py --ranks 4 --one-gpu   # the tests that use GPUs, all ranks on the first one
    PYTHONPATH=python python3 python/tests/torch_suite.py --compare --one-gpu   # the same on both backends, 2, 4 and 8 ranks

The tests are torch/testing/_internal/distributed/distributed_test.py of the PyTorch that is installed. They are not copied
and not changed on disk. Their text is read, the places that name the backends a test is for learn the name weft, and the
result is run. Tests for Gloo alone and for MPI alone (CPU tensors in both cases) are opened so. Tests that need several GPUs
skip themselves.

Test processes are forked, not spawned: importing PyTorch anew in every rank takes twenty times as long as a test.
"""

import argparse
import dataclasses
import importlib.util
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
import types
import unittest


def stand_in(name, **members):
    """A module that PyTorch's tests import and that is not installed, with what they use of it."""
    if importlib.util.find_spec(name) is None:
        module = types.ModuleType(name)
        module.__dict__.update(members)
        sys.modules[name] = module


def stand_ins():
    class TestCase(unittest.TestCase):
        longMessage = True

        def assertExpectedInline(self, actual, expect, skip=0):
            self.assertEqual(actual, expect)

    stand_in("expecttest", TestCase=TestCase, ACCEPT=False)


def open_gates(text, backend):
    """The source of the tests, with backend beside Gloo and MPI wherever a test is for one of those alone."""
    text = re.sub(r'BACKEND != "(gloo|mpi)"', rf'BACKEND not in ("\1", "{backend}")', text)
    text = text.replace('require_backend({"gloo"})', f'require_backend({{"gloo", "{backend}"}})')
    # The tests of communication hooks choose CPU modules by the name of the backend.
    text = text.replace('if BACKEND == "mpi" or BACKEND == "gloo":', f'if BACKEND in ("mpi", "gloo", "{backend}"):')
    return text


def on_one_gpu(text, backend):
    """The source of the tests, with every rank on GPU 0, and what is for NCCL alone opened to weft."""
    rank = r"(?:self\.rank|rank|next_rank)"
    for pattern, to in ((rf"\.(cuda|to|Stream|set_device)\({rank}\)", r".\1(0)"), (rf"device={rank}\b", "device=0"), (rf"device_ids=\[{rank}\]", "device_ids=[0]"),
                        (rf"device\.index, {rank}\)", "device.index, 0)"), (r"cuda:\{(self\.)?rank\}", "cuda:0"),
                        (r"gpus = \[rank\]", "gpus = [0]"), (rf"torch\.device\({rank}\)", "torch.device(0)"), (rf"MyModel\({rank}\)", "MyModel(0)")):
        text = re.sub(pattern, to, text)
    text = re.sub(r"init_multigpu_helper\((dist\.get_world_size\(\)|[a-z_]+), BACKEND\)", r"{i: [0] for i in range(\1)}", text)
    text = text.replace("torch.cuda.device_count()", "8")
    if backend == "weft":
        text = text.replace('BACKEND != "nccl"', f'BACKEND not in ("nccl", "{backend}")')
    return text


def uses_gpu(module, name):
    """Whether a test uses a GPU, by its text."""
    import inspect
    f = inspect.unwrap(getattr(module.DistributedTest._DistTestBase, name))
    return re.search(r"cuda|device_ids=\[0\]|\.to\(0\)", inspect.getsource(f)) is not None


def source(name):
    """Where a module's text is, and the text. The packages around it are not imported."""
    import torch
    path = os.path.join(os.path.dirname(torch.__file__), *name.split(".")[1:]) + ".py"
    with open(path) as f:
        return path, f.read()


def run_as(name, path, text):
    """Makes a module of a text."""
    module = types.ModuleType(name)
    module.__file__, module.__package__ = path, name.rpartition(".")[0]
    module.__spec__ = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module
    exec(compile(text, path, "exec"), module.__dict__)
    return module


def repair_dataclass():
    """Gives a dataclass of PyTorch 1.13 a hash.

    It is the default of a field (TensorProperties). Python 3.11 refuses such a default if it has none, so that nothing of
    torch.distributed._shard can be imported, whatever the backend."""
    import torch
    if sys.version_info < (3, 11) or not torch.__version__.startswith("1."):
        return
    plain = dataclasses.dataclass

    def hashed(cls=None, **options):
        if cls is not None and cls.__name__ == "TensorProperties":
            options["unsafe_hash"] = True
        return plain(cls, **options)

    dataclasses.dataclass = hashed
    try:
        import torch.distributed._shard.sharded_tensor  # noqa: F401
    finally:
        dataclasses.dataclass = plain


def load(backend, one_gpu=False):
    """Imports the tests for a backend; BACKEND, WORLD_SIZE and TEMP_DIR are set."""
    stand_ins()
    if backend == "weft":
        import weft.torch
        weft.torch.patch_monitored_barrier()
    import torch
    repair_dataclass()
    from torch.testing._internal import common_distributed as common
    name = "torch.testing._internal.distributed.distributed_test"
    path, text = source(name)
    if one_gpu:
        text = on_one_gpu(text, backend)
        torch._C._cuda_getDeviceCount = lambda: 1  # the real one keeps processes that are forked later from opening a GPU
        common.skip_if_lt_x_gpu = lambda *_, **__: lambda test: test
        common.skip_if_no_gpu = lambda test: test
        common.init_multigpu_helper = lambda n, _: {i: [0] for i in range(n)}
    if backend == "weft":
        for feature in ("gpu", "cuda", "ddp", "subgroup", "plugin"):
            common.DistTestCases.backend_feature[feature].add(backend)
        text = open_gates(text, backend)
    module = run_as(name, path, text)
    common.TIMEOUT_DEFAULT = 100
    common.TIMEOUT_OVERRIDE.clear()
    return torch, module


LOADED = None  # what load gave, in the process that ranks on GPUs are forked from


def on_gpu(backend, environment, *args, **options):
    """A rank that opens a GPU."""
    import torch_suite
    os.environ.update(environment)  # every test has folders of its own
    torch, module = torch_suite.LOADED or load(backend, one_gpu=True)
    torch.set_num_threads(1)
    case(module, torch, backend)._run(*args, **options)


def case(module, torch, gpus_of=None):
    """The tests. Ranks are forked, those of a backend that is named for GPUs from a process that runs no tests: one that has asked
    CUDA for anything cannot fork ranks that do."""
    def process(target, name, args, kwargs=None):
        server = torch.multiprocessing.get_context("forkserver")
        server.set_forkserver_preload(["torch_suite"])
        return server.Process(target=on_gpu, name=name, args=(gpus_of, dict(os.environ), *args), kwargs=kwargs or {})

    class TestDistributed(module.TestDistBackend, module.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(process if gpus_of else torch.multiprocessing.get_context("fork").Process)

        def tearDown(self):
            processes = self.processes
            super().tearDown()
            for p in processes:  # none may outlive its test
                p.join(5)
                if p.exitcode is None:
                    p.kill()
                    p.join()

    return TestDistributed


class Result(unittest.TestResult):
    """Notes how each test ended, and prints it at once."""

    def __init__(self, quiet):
        super().__init__()
        self.rows, self.quiet = [], quiet

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()

    def note(self, test, outcome, text=""):
        name = test.id().rpartition(".")[2]
        took = time.monotonic() - getattr(self, "began", time.monotonic())
        self.rows.append({"test": name, "outcome": outcome, "seconds": round(took, 2), "text": text})
        if not self.quiet and outcome != "skipped":
            print(f"{outcome:8} {took:6.1f} s  {name}", flush=True)

    def addSuccess(self, test):
        self.note(test, "passed")

    def addSkip(self, test, reason):
        self.note(test, "skipped", reason)

    def addFailure(self, test, err):
        self.note(test, "failed", self._exc_info_to_string(err, test))

    addError = addFailure


def run(backend, ranks, names, quiet=False, one_gpu=False, part=(0, 1)):
    """Runs tests in this process and gives their outcomes."""
    with tempfile.TemporaryDirectory() as folder:
        for sub in ("barrier", "test_dir", "init_dir"):
            os.mkdir(os.path.join(folder, sub))
        os.environ.update(BACKEND=backend, WORLD_SIZE=str(ranks), TEMP_DIR=folder, MASTER_ADDR="127.0.0.1", OMP_NUM_THREADS="1",
                          INIT_METHOD="file://" + os.path.join(folder, "init_dir", "shared"))
        os.environ.pop("MASTER_PORT", None)
        if one_gpu:
            os.environ.update(PYTORCH_NVML_BASED_CUDA_CHECK="1", TORCH_SUITE_LOAD=backend)
        torch, module = load(backend, one_gpu)
        torch.set_num_threads(1)
        logging.disable(logging.WARNING)
        tests = case(module, torch, backend if one_gpu else None)
        every = unittest.TestLoader().getTestCaseNames(tests)
        unknown = [n for n in names if n not in every]
        if unknown:
            raise SystemExit(f"no such test: {', '.join(unknown)}")
        if one_gpu and not names:
            every = [n for n in every if uses_gpu(module, n)]
        result = Result(quiet)
        unittest.TestSuite(tests(n) for n in (names or every)[part[0]::part[1]]).run(result)
    return result.rows


def count(rows):
    done = {o: sum(r["outcome"] == o for r in rows) for o in ("passed", "failed", "skipped")}
    return done["passed"] + done["failed"], done["passed"], done["failed"], done["skipped"]


def aside(jobs, more, **env):
    """Runs tests in processes of their own, so many at a time, and gives their outcomes."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, str(i)) for i in range(jobs)]
        parts = [subprocess.Popen([sys.executable, __file__, *more, "--quiet", "--json", path, "--part", f"{i}/{jobs}"], env={**os.environ, **env})
                 for i, path in enumerate(paths)]
        for p in parts:
            p.wait()
        rows = []
        for path in paths:
            with open(path) as f:
                rows += json.load(f)
        return rows


def compare(out, one_gpu, jobs, keep):
    """Runs everything on both backends and writes the table."""
    results = []
    for ranks in (2, 4, 8) if one_gpu else (2, 3, 4):
        for backend, transport in (("gloo", "tcp"), ("weft", "shm")) if one_gpu else (("gloo", "tcp"), ("weft", "shm"), ("weft", "tcp")):
            more = ["--backend", backend, "--ranks", str(ranks), *["--one-gpu"] * one_gpu]
            results.append((backend, transport, ranks, aside(max(1, jobs // ranks), more, WEFT_TRANSPORT=transport)))
            print(results[-1][:3], count(results[-1][3]), flush=True)
            if keep:
                with open(keep, "w") as f:
                    json.dump(results, f)
    text, bad = page(results)
    if out:
        with open(out, "w") as f:
            f.write(text)
    print(text)
    return bad


def page(results):
    """The page of the docs, of (backend, transport, ranks, rows), and whether weft fails where it should not."""
    import torch
    lines = ["# PyTorch's own distributed tests on weft", "",
             "Made by:", "", "    make torch-suite", "",
             f"These are distributed_test.py of PyTorch {torch.__version__}, Python {sys.version.split()[0]}. Tests for Gloo alone and for MPI alone are opened to weft;",
             "nothing else of them is changed (python/tests/torch_suite.py says how).", "",
             "| backend | transport | ranks | run | passed | failed | skipped | seconds |", "|---|---|---:|---:|---:|---:|---:|---:|"]
    failures, good = [], {}
    for backend, transport, ranks, rows in results:
        ran, passed, failed, skipped = count(rows)
        lines.append(f"| {backend} | {transport} | {ranks} | {ran} | {passed} | {failed} | {skipped} | {sum(r['seconds'] for r in rows):.0f} |")
        good[backend, transport, ranks] = {r["test"] for r in rows if r["outcome"] == "passed"}
        if backend == "weft":
            for test in sorted(good.get(("gloo", "tcp", ranks), set()) - good[backend, transport, ranks]):
                failures.append(f"- passes with Gloo, not with weft over {transport}, {ranks} ranks: {test}")
        for r in rows:
            if r["outcome"] == "failed":
                last = [line for line in r["text"].splitlines() if line.strip()][-1]
                failures.append(f"- {backend} over {transport}, {ranks} ranks: {r['test']}: {last[:200]}")
    lines += ["", "## What failed", ""] + (failures or ["Nothing. Every test that Gloo passes passes on weft."])
    for ranks in sorted({ranks for backend, _, ranks, _ in results if backend == "weft"}):
        rows = next(rows for backend, _, n, rows in results if backend == "weft" and n == ranks)
        reasons = {}
        for r in rows:
            if r["outcome"] == "skipped":
                reasons.setdefault(r["text"], []).append(r["test"])
        lines += ["", f"## What skips itself at {ranks} ranks, on weft", "", "| reason that PyTorch gives | tests |", "|---|---|"]
        for reason, tests in sorted(reasons.items(), key=lambda x: -len(x[1])):
            names = f": {', '.join(tests)}" if "world size" in reason or len(tests) < 3 else ""
            lines.append(f"| {reason} | {len(tests)}{names} |")
    return "\n".join(lines) + "\n", any(line.startswith(("- weft", "- passes")) for line in failures)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="\n".join(__doc__.splitlines()[1:]),
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--backend", default="weft", help="weft or gloo")
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--json", metavar="FILE", help="write the outcomes")
    p.add_argument("--quiet", action="store_true", help="print only what failed, and the counts")
    p.add_argument("--compare", action="store_true", help="everything, on both backends; --out FILE writes the table")
    p.add_argument("--out", metavar="FILE")
    p.add_argument("--repeat", type=int, default=1, help="run the tests this often")
    p.add_argument("--one-gpu", action="store_true", help="the tests that use GPUs, with all ranks on the first one")
    p.add_argument("--part", default="0/1", metavar="I/N", help="every N-th test, from the I-th on")
    p.add_argument("names", nargs="*", metavar="TEST", help="tests by name; all if none is named")
    p.add_argument("--jobs", type=int, default=1, help="with --compare: processes that run tests at a time")
    a = p.parse_args()
    if a.compare:
        sys.exit(compare(a.out, a.one_gpu, a.jobs, a.json))
    rows = run(a.backend, a.ranks, a.names * a.repeat, a.quiet, a.one_gpu, tuple(map(int, a.part.split("/"))))
    if a.json:
        with open(a.json, "w") as f:
            json.dump(rows, f, indent=1)
    for r in rows:
        if r["outcome"] == "failed":
            print(f"=== {r['test']}\n{r['text']}")
    ran, passed, failed, skipped = count(rows)
    print(f"{a.backend}, {a.ranks} ranks: {ran} run, {passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(failed > 0 or ran == 0)


if __name__ == "__main__":
    main()
elif __name__ == "torch_suite" and "TORCH_SUITE_LOAD" in os.environ:
    LOADED = load(os.environ["TORCH_SUITE_LOAD"], one_gpu=True)
