"""Reads emitted configurations with the frameworks' own parsers, without torch or a GPU.

    parse.py accelerate SOURCE FILE...      SOURCE/src/accelerate
    parse.py deepspeed SOURCE RANKS:FILE... SOURCE/deepspeed; RANKS data and sequence ranks
    parse.py torchtitan SOURCE WORLD:FILE...  SOURCE/torchtitan at v0.2.2, the last release that reads TOML

One line per file: ACCEPT and what the parser understood, or REFUSE and what it says. Modules that are not at hand are stood in for by
empty ones: nothing that a parser decides depends on them.
"""
import importlib.abc
import importlib.machinery
import importlib.util
import json
import logging
import os
import re
import sys
import types


class Anything(type):
    """A class that has every attribute, may be called, subscripted and joined, and decorates without effect."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return thing(name)

    def __call__(cls, *args, **kwargs):
        if len(args) == 1 and isinstance(args[0], (types.FunctionType, type)) and not isinstance(args[0], Anything):
            return args[0]
        return cls

    __or__ = __ror__ = __getitem__ = lambda cls, other: cls
    __iter__ = lambda cls: iter(())
    __bool__ = lambda cls: False
    __lt__ = lambda cls, other: False
    __ge__ = __gt__ = lambda cls, other: True


def thing(name):
    return Anything(name, (), {})


class StandIn(types.ModuleType):
    def __getattr__(self, name):
        if name == "__version__":
            return "9.9.9"
        if name.startswith("__"):
            raise AttributeError(name)
        return thing(name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers for modules that are not installed, and for those of the framework that are not among `real`."""

    def __init__(self, package, root, real):
        self.package, self.root, self.real, self.fill = package, root, re.compile(real), {}

    def find_spec(self, name, path, target=None):
        own = name == self.package or name.startswith(self.package + ".")
        if own:
            base = os.path.join(self.root, *name.split("."))
            if self.real.fullmatch(name) and os.path.isfile(base + ".py"):
                return importlib.util.spec_from_file_location(name, base + ".py")
        elif name.split(".")[0] in sys.stdlib_module_names or self.installed(name):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def installed(self, name):
        top = name.split(".")[0]
        if top == "torch":  # Debian's is older than any that these frameworks take
            return False
        sys.meta_path.remove(self)
        try:
            return importlib.util.find_spec(top) is not None
        except (ImportError, ValueError):
            return False
        finally:
            sys.meta_path.insert(0, self)

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        module.__path__ = [os.path.join(self.root, *module.__name__.split("."))]
        for name, value in self.fill.get(module.__name__, {}).items():
            setattr(module, name, value)


def accelerate(source, files):
    finder = Finder("accelerate", os.path.join(source, "src"), r"accelerate\.(parallelism_config|commands\.config\.config_args|utils\.constants)")
    import enum

    text = open(os.path.join(source, "src/accelerate/utils/dataclasses.py"), encoding="utf-8").read()
    names = {}
    for kind in ("ComputeEnvironment", "DistributedType", "SageMakerDistributedType"):
        body = re.search(r"class %s\(.*?\):(.*?)(?=\n(?:class|def|@|if) )" % kind, text, re.S).group(1)
        names[kind] = enum.Enum(kind, re.findall(r'^    (\w+) = "([^"]+)"', body, re.M), type=str)
    finder.fill["accelerate.utils"] = names
    sys.meta_path.insert(0, finder)
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.parallelism_config import ParallelismConfig

    for file in files:
        def parse():
            c = load_config_from_file(file)
            sizes = {k[len("parallelism_config_"):]: v for k, v in c.parallelism_config.items()}
            mesh = ""
            if sizes:
                p = ParallelismConfig(**sizes)
                world = types.SimpleNamespace(num_processes=c.num_processes, multi_device=True, is_fsdp2=c.fsdp_config.get("fsdp_version") == 2,
                                              distributed_type="FSDP", is_main_process=False)
                p._validate_accelerator(world)
                mesh = " replicate %d shard %d tp %d cp %d" % (p.dp_replicate_size, p.dp_shard_size, p.tp_size, p.cp_size)
            return "%s %d processes %s%s" % (c.distributed_type.value, c.num_processes, c.mixed_precision, mesh)
        verdict(file, parse)


def deepspeed(source, files):
    finder = Finder("deepspeed", source, r"deepspeed\..*(config|constants|config_utils)")
    ranks = [1]
    finder.fill["deepspeed.comm"] = {"get_world_size": lambda *a, **k: ranks[0], "is_initialized": lambda: True}
    finder.fill["deepspeed.utils"] = {"logger": logging.getLogger("deepspeed")}
    finder.fill["deepspeed.git_version_info"] = {"version": "0.19.5"}
    finder.fill["deepspeed.elasticity"] = {"elasticity_enabled": lambda d: False}
    dtype = type("dtype", (), {})
    finder.fill["torch"] = dict({n: dtype() for n in ("float16", "bfloat16", "float32", "half", "float", "int8")}, dtype=dtype)
    sys.meta_path.insert(0, finder)
    sys.modules["hjson"] = json
    import deepspeed.runtime.tensor_parallel as tp
    from deepspeed.runtime.tensor_parallel.config import get_tensor_parallel_config

    tp.get_tensor_parallel_config = get_tensor_parallel_config
    from deepspeed.runtime.config import DeepSpeedConfig

    for file in files:
        n, path = file.split(":", 1)
        ranks[0] = int(n)

        def parse():
            c = DeepSpeedConfig(json.load(open(path, encoding="utf-8")))
            return "batch %d micro %d steps %d stage %d" % (c.train_batch_size, c.train_micro_batch_size_per_gpu, c.gradient_accumulation_steps, c.zero_optimization_stage)
        verdict(path, parse)


def torchtitan(source, files):
    finder = Finder("torchtitan", source, r"torchtitan\.(config\.(job_config|manager)|distributed\.parallel_dims)")
    finder.fill["torchtitan.tools.logging"] = {"logger": logging.getLogger("torchtitan")}
    finder.fill["tyro"] = {"cli": lambda cls, args, default, registry: default}
    sys.meta_path.insert(0, finder)
    from torchtitan.config.manager import ConfigManager
    from torchtitan.distributed.parallel_dims import ParallelDims

    for file in files:
        n, path = file.split(":", 1)

        def parse():
            c = ConfigManager().parse_args(["--job.config_file", path])
            p, t = c.parallelism, c.training
            d = ParallelDims(dp_replicate=p.data_parallel_replicate_degree, dp_shard=p.data_parallel_shard_degree, cp=p.context_parallel_degree, tp=p.tensor_parallel_degree,
                             pp=p.pipeline_parallel_degree, ep=p.expert_parallel_degree, etp=p.expert_tensor_parallel_degree, world_size=int(n))
            return "%s %s replicate %d shard %d tp %d cp %d pp %d ep %d local %d global %d seq %d" % (
                c.model.name, c.model.flavor, d.dp_replicate, d.dp_shard, d.tp, d.cp, d.pp, d.ep, t.local_batch_size, t.global_batch_size, t.seq_len)
        verdict(path, parse)


def verdict(path, parse):
    name = os.path.basename(path)
    try:
        print("ACCEPT\t%s\t%s" % (name, parse()))
    except Exception as e:  # whatever a parser raises is its verdict
        said = str(e).replace(path, name).split("\n")
        print("REFUSE\t%s\t%s: %s" % (name, type(e).__name__, " ".join(x.strip() for x in said)[:200]))


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    {"accelerate": accelerate, "deepspeed": deepspeed, "torchtitan": torchtitan}[sys.argv[1]](sys.argv[2], sys.argv[3:])
