"""Data-parallel training whose ranks outlive the failure of others:

    make lib
    PYTHONPATH=python weft run --follow --nproc 3 -- python3 examples/torch/elastic.py

Kill one of its processes: the others go on in the same process with the next step, and the one that is started in its place
gets the state from them. torchelastic would start all of them again. DIE=SLOT:STEP kills a rank there, the first time, and the end
prints the loss, which is that of a run without a failure.
"""

import os
import signal

import torch
from torch.nn.parallel import DistributedDataParallel

import weft.torch
import weft.torch.elastic as elastic

STEPS = int(os.environ.get("STEPS", "60"))
ROWS = 60


def train(state):
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    print(f"pid {os.getpid()}: epoch {elastic.epoch}, rank {rank} of {size}, after step {state.step}", flush=True)
    model = DistributedDataParallel(state.model)
    while state.step < STEPS:
        # The batch of a step is the same whatever the number of ranks; each takes its rows.
        generator = torch.Generator().manual_seed(state.step)
        x = torch.randn(ROWS, 8, generator=generator)
        y = x.sin().sum(1, keepdim=True)
        loss = ((model(x[rank::size]) - y[rank::size]) ** 2).sum() * size / ROWS  # DDP takes the mean over ranks
        state.optimizer.zero_grad()
        if os.environ.get("DIE") == f"{os.environ['WEFT_SLOT']}:{state.step}" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        state.optimizer.step()
        state.loss = loss.item() / size
        state.commit()
    whole = torch.tensor([state.loss])
    torch.distributed.all_reduce(whole)
    if rank == 0:
        print(f"loss after step {state.step} on {size} ranks: {whole.item():.4f}", flush=True)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    elastic.run(train, elastic.State(model=model, optimizer=optimizer))


if __name__ == "__main__":
    main()
