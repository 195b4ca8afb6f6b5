"""PyTorch's distributed test files, run with one word changed: where they say "gloo" they get weft.

    PYTHONPATH=python python3 python/tests/torch_files.py --source pytorch-2.6.0 test_c10d_gloo.py _composable/test_replicate.py
    PYTHONPATH=python python3 python/tests/torch_files.py --source pytorch-2.6.0 --table   # all below, weft and Gloo: the table of the docs

The source of the installed PyTorch is needed for its test folder: apt-get source pytorch, or a checkout of its tag. The files are not
changed. one_word/sitecustomize.py is loaded by every process of a test and hands weft to whoever asks for gloo.
"""

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))

# Those that run on CPUs. Files for several GPUs, RPC, launchers and stores have nothing of a process group in them.
FILES = """
test_c10d_common.py test_c10d_gloo.py test_c10d_spawn_gloo.py test_c10d_object_collectives.py test_c10d_functional_native.py test_pg_wrapper.py
test_c10d_logger.py test_c10d_pypg.py test_collective_utils.py test_functional_api.py test_inductor_collectives.py test_device_mesh.py
test_dynamo_distributed.py test_control_collectives.py
algorithms/test_join.py algorithms/quantization/test_quantization.py algorithms/ddp_comm_hooks/test_ddp_hooks.py
optim/test_zero_redundancy_optimizer.py optim/test_apply_optimizer_in_backward.py optim/test_named_optimizer.py
_composable/test_replicate.py _composable/test_contract.py _composable/test_checkpoint.py
_composable/fsdp/test_fully_shard_init.py
tensor/test_api.py tensor/test_dtensor.py tensor/test_dtensor_ops.py tensor/test_redistribute.py tensor/test_math_ops.py tensor/test_matrix_ops.py
tensor/test_pointwise_ops.py tensor/test_tensor_ops.py tensor/test_utils.py tensor/test_view_ops.py tensor/test_random_ops.py tensor/test_init.py
tensor/parallel/test_tp_examples.py tensor/parallel/test_tp_style.py tensor/parallel/test_parallelize_api.py
_tensor/test_dtensor.py _tensor/test_redistribute.py _tensor/test_tensor_ops.py
_shard/sharded_tensor/test_sharded_tensor.py _shard/checkpoint/test_checkpoint.py _shard/checkpoint/test_file_system_checkpoint_cpu.py
checkpoint/test_checkpoint.py checkpoint/test_dtensor_checkpoint.py checkpoint/test_file_system_checkpoint_cpu.py checkpoint/test_planner.py
checkpoint/test_state_dict.py checkpoint/test_state_dict_utils.py checkpoint/test_traverse.py checkpoint/test_utils.py checkpoint/test_dedup_tensors.py
checkpoint/test_dtensor_resharding.py checkpoint/test_save_load_api.py checkpoint/test_async_process_executor.py checkpoint/e2e/test_e2e_save_and_load.py
fsdp/test_fsdp_misc.py fsdp/test_shard_utils.py fsdp/test_distributed_checkpoint.py
pipelining/test_schedule.py pipelining/test_stage.py pipelining/test_microbatch.py pipelining/test_backward.py
""".split()

STAND_INS = {
    "expecttest.py": "import unittest\nACCEPT = False\n\n\nclass TestCase(unittest.TestCase):\n    longMessage = True\n\n"
                     "    def assertExpectedInline(self, actual, expect, skip=0):\n        self.assertEqual(actual, expect)\n",
}


def stand_ins(folder):
    """Writes the modules that PyTorch's tests import and that are not installed."""
    import importlib.util
    for name, text in STAND_INS.items():
        if importlib.util.find_spec(name.removesuffix(".py")) is None:
            with open(os.path.join(folder, name), "w") as f:
                f.write(text)


def run(source, name, backend, limit, folder, only=()):
    """Runs a file and gives how its tests ended, by their names."""
    results = os.path.join(folder, "results")
    open(results, "w").close()
    paths = [os.path.join(HERE, "one_word"), HERE, os.path.dirname(HERE), folder, os.path.join(source, "test"), os.environ.get("PYTHONPATH", "")]
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, paths)), TORCH_FILES_RESULTS=results, TORCH_FILES_BACKEND=backend,
               OMP_NUM_THREADS="1", TEMP_DIR=folder, USE_LIBUV="0")  # Debian's builds have no libuv
    path = os.path.join(source, "test", "distributed", name)
    log = open(os.path.join(folder, f"{backend}-{name.replace('/', '-')}.log"), "w+")
    began = time.monotonic()
    p = subprocess.Popen([sys.executable, path, *only], cwd=os.path.dirname(path), env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        rc = p.wait(limit)
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGKILL)
        rc = p.wait()
    took = time.monotonic() - began
    tests = {}
    with open(results) as f:
        for line in map(json.loads, f):
            test = line["test"].split(".", 1)[-1]
            how = {"startTest": "hung", "addSuccess": "passed", "addSkip": "skipped", "addExpectedFailure": "passed", "addUnexpectedSuccess": "failed"}.get(line["how"], "failed")
            if how != "passed" or tests.get(test, ("hung",))[0] == "hung":
                tests[test] = (how, line["why"])
    if not tests and rc:
        log.seek(0)
        tests["(the file)"] = ("broken", (log.read().strip().splitlines() or [f"exit {rc}"])[-1])
    return tests, took


def reason(text):
    """What went wrong, in a line: a test that starts processes reports the traceback of one of them."""
    lines = [x.strip() for x in text.splitlines() if x.strip()]
    named = [x for x in lines if re.match(r"[\w.]*(Error|Exception|Warning|Timeout)\w*:", x)]
    return ((named or lines or ["it did not end"])[-1])[:300]


def count(tests, how):
    return sum(h == how for h, _ in tests.values())


def table(a, folder):
    """Runs all files on both and writes a row per file."""
    import torch
    print(f"## PyTorch {torch.__version__}, Python {platform.python_version()}\n")
    print("| file | run | weft passed | Gloo passed | skipped | only Gloo passes | only weft passes |\n|---|---:|---:|---:|---:|---|---|")
    total, why = [0] * 6, []
    for name in a.files or [f for f in FILES if os.path.exists(os.path.join(a.source, "test", "distributed", f))]:
        ours, _ = run(a.source, name, "weft", a.limit, folder)
        theirs, _ = run(a.source, name, "gloo", a.limit, folder)
        ran = sum(h not in ("skipped", "broken") for h, _ in ours.values())
        lost = sorted(t for t, (h, _) in ours.items() if h in ("failed", "hung", "broken") and theirs.get(t, ("",))[0] == "passed")
        won = sorted(t for t, (h, _) in theirs.items() if h in ("failed", "hung") and ours.get(t, ("",))[0] == "passed")
        row = [ran, count(ours, "passed"), count(theirs, "passed"), count(ours, "skipped"), len(lost), len(won)]
        total = [x + y for x, y in zip(total, row)]
        why += [(name, t, ours[t]) for t in lost]
        if broken := [w for h, w in ours.values() if h == "broken"]:
            print(f"| {name} | not run: {broken[0]} | | | | | |", flush=True)
            continue
        print(f"| {name} | {' | '.join(map(str, row))} |", flush=True)
    print(f"| **all** | {' | '.join(f'**{x}**' for x in total)} |\n")
    if why:
        print("What Gloo passes and weft does not:\n")
        for name, test, (how, text) in why:
            print(f"- {name} {test}: {how}: {reason(text)}")


def main():
    p = argparse.ArgumentParser(description="Runs PyTorch's distributed test files on weft.")
    p.add_argument("files", nargs="*", help="under test/distributed of the source; all that run on CPUs unless given")
    p.add_argument("--source", required=True, help="PyTorch's source of the installed version")
    p.add_argument("--backend", choices=["weft", "gloo"], default="weft")
    p.add_argument("--only", action="append", default=[], help="a test of the file, as Class.test_name")
    p.add_argument("--limit", type=float, default=900, help="seconds for a file")
    p.add_argument("--table", action="store_true", help="both backends, as a table")
    p.add_argument("--logs", help="a folder to keep the output of the files in")
    a = p.parse_args()
    a.source = os.path.abspath(a.source)
    folder = a.logs or tempfile.mkdtemp(prefix="torch-files-")
    os.makedirs(folder, exist_ok=True)
    stand_ins(folder)
    if a.table:
        return table(a, folder)
    worst = 0
    for name in a.files or [f for f in FILES if os.path.exists(os.path.join(a.source, "test", "distributed", f))]:
        tests, took = run(a.source, name, a.backend, a.limit, folder, a.only)
        print(f"{name} on {a.backend}: {count(tests, 'passed')} passed, {count(tests, 'failed')} failed, {count(tests, 'hung')} hung, "
              f"{count(tests, 'skipped')} skipped in {took:.0f} s", flush=True)
        for t, (how, why) in sorted(tests.items()):
            if how in ("failed", "hung", "broken"):
                worst = 1
                print(f"  {how} {t}: {reason(why)}")
    sys.exit(worst)


if __name__ == "__main__":
    main()
