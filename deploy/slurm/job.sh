#!/bin/bash
# An elastic job: two to four nodes, a rank on every GPU. Nodes may be lost and come back.
#SBATCH --job-name=train
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --gpus-per-node=8
#SBATCH --switches=1@30
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --no-kill
#SBATCH --signal=TERM@180
set -u

WEFT_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
export WEFT_TOKEN
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-32}

exec srun --no-kill --kill-on-bad-exit=0 \
    weft run --nodes 2:4 --nproc gpu --grace 150s --ckpt "${SLURM_SUBMIT_DIR:-.}/ckpt" -- python train.py
