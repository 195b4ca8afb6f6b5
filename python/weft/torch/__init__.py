"""weft as a backend of torch.distributed.

    import torch.distributed as dist
    import weft.torch

    dist.init_process_group("weft")          # under weft run, torchrun, srun
    model = DistributedDataParallel(model)   # everything else stays as it is

Settings are those of weft (WEFT_TRANSPORT=tcp and so on) or, for one group, pg_options=weft.torch.Options(transport="tcp").
docs/how-to/pytorch.md tells the rest.
"""

from ._group import Error, Options, ProcessGroup, register
from ._barrier import monitored_barrier, patch_monitored_barrier
from ._memory import empty, is_registered

__all__ = ["Error", "Options", "ProcessGroup", "empty", "is_registered", "monitored_barrier", "patch_monitored_barrier"]

register()
