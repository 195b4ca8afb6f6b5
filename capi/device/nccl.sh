#!/usr/bin/env bash
# Loads the tuner and the profiler into a real NCCL, on a machine with a GPU and PyTorch:
#
#     make lib && capi/device/nccl.sh [python3]
#
# One rank runs all-reduces. NCCL's log must say that both plug-ins were loaded, and the profile must hold the operations.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${1:-python3}
so=$PWD/python/weft/libweft.so
[ -e "$so" ] || { echo "$so is missing: make lib"; exit 1; }
dir=$(mktemp -d)
printf 'allreduce,0,9223372036854775807,ring,simple,-1,-1,-1,-1,-1\n' >"$dir/table.csv"
NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,TUNING,PROFILE NCCL_TUNER_PLUGIN=$so NCCL_PROFILER_PLUGIN=$so \
	WEFT_NCCL_TABLE=$dir/table.csv WEFT_NCCL_PROFILE=$dir/profile \
	RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=${MASTER_PORT:-29533} \
	timeout 300 "$python" - >"$dir/log" 2>&1 <<'PY' || { cat "$dir/log"; exit 1; }
import torch, torch.distributed as dist
torch.cuda.set_device(0)
dist.init_process_group("nccl")
for n in (1, 1 << 10, 1 << 20, 1 << 26):
    x = torch.ones(n, device="cuda")
    for _ in range(5):
        dist.all_reduce(x)
torch.cuda.synchronize()
print("NCCL", torch.cuda.nccl.version(), "torch", torch.__version__)
dist.destroy_process_group()
PY
grep -i -e 'weft' -e '^NCCL ' "$dir/log" || true
for want in 'weft tuner: ' 'weft profiler: operations go to'; do
	grep -q "$want" "$dir/log" || { echo "NCCL's log does not say: $want"; tail -50 "$dir/log"; exit 1; }
done
lines=$(cat "$dir"/profile/*.jsonl | wc -l)
head -3 "$dir"/profile/*.jsonl
echo "$lines operations were recorded"
[ "$lines" -gt 0 ] || { echo "a communicator of one rank may run no kernel: then the profile is empty"; exit 3; }
