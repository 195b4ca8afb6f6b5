"""Data-parallel training with PyTorch and gloo, under `weft run`.

    weft run --nproc 4 --max-restarts 3 --ckpt DIR -- python3 examples/torch/train.py

A rank that fails is started again, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as
before; the others fail in their next all-reduce and are started again, too, and all go on
from the last checkpoint in WEFT_CKPT. DIE=RANK:STEP kills a rank there, the first time.
"""

import os
import signal
import sys

import torch
import torch.distributed as dist

STEPS = 40


def main():
    assert dist.is_torchelastic_launched()  # as under torchrun
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    step = 0
    path = os.path.join(os.environ["WEFT_CKPT"], "model.pt")
    if os.path.exists(path):
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        step = saved["step"]
        print(f"continues after step {step}", flush=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    die = os.environ.get("DIE", "")
    whole = saved["loss"] if step else torch.zeros(())
    while step < STEPS:
        step += 1
        if die == f"{rank}:{step}" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        # The batch of a step is the same whatever the number of ranks; each takes its rows.
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(64, 8, generator=generator)
        y = x.sin().sum(1, keepdim=True)
        loss = ((model(x[rank::size]) - y[rank::size]) ** 2).sum() / len(x)
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        if rank == 0:
            torch.save({"model": model.state_dict(), "step": step, "loss": whole}, path + ".new")
            os.replace(path + ".new", path)
    if rank == 0:
        print(f"loss after step {step} on {size} ranks: {whole.item():.4f}", flush=True)
    dist.barrier()  # rank 0 has the store that all use: it goes last
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
