#!/usr/bin/env bash
# Checks on one GPU what docs/developers/gpu-validation.md waits for. It builds the ops, and runs the three scripts of
# .dev_scripts/gpu: whether all is right, how fast it is, and what is off by default. Then come the tables of kernels
# beside other libraries, and of time and memory over the image size. Each step's log is in OUT, and so are the figures
# as JSON; a step that fails does not keep the next from running.
#
#   bash tools/gpu_check.sh [OUT]     # default: work_dirs/gpu_check
#
# Needs a GPU, nvcc, and a Python with torch, mmengine and what requirements/tests.txt lists: PYTHON=... names it
# (default: .venv/bin/python, else python3). A mmlaplace/_C*.so that has CUDA kernels already is used as it is.
# PATIENCE=N multiplies the seconds that a step may take (default: 4, for half an hour on a large GPU), and REHEARSE=1
# runs everything on a CPU, in small sizes.
set -Eeuo pipefail
case "${1:-}" in -h | --help) sed -n '2,/^set /{s/^# \{0,1\}//;/^set /!p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export OUT="${1:-$root/work_dirs/gpu_check}"
if [ -z "${REHEARSE:-}" ]; then export PATIENCE="${PATIENCE:-4}"; fi
source "$root/.dev_scripts/gpu/steps.sh"
export OUT

device=(--device cuda) sizes=() quick=()
if [ -n "${REHEARSE:-}" ]; then
    device=(--device cpu) sizes=(--image-size 32 64 --rounds 1) quick=(--quick)
elif ! grep -aq 'mmlaplace built for cuda=' mmlaplace/_C*.so 2>/dev/null; then
    architecture=$("$python" -c 'import torch; print("%d.%d" % torch.cuda.get_device_capability())')
    step build 900 env FORCE_CUDA=1 TORCH_CUDA_ARCH_LIST="$architecture" "$python" setup.py build_ext --inplace
fi
for number in 1 2 3; do
    bash $kit/run$number.sh || failed+=("run$number")
done
# Kernels and inverses beside other libraries, with their share of what the GPU can do, and a training step by the
# compiled ops and by their references; then time and memory over the image size.
step benchmark 300 "$python" tools/benchmarks/benchmark_ops.py "${device[@]}" "${quick[@]}" --train-step --out "$OUT/benchmark_ops.json" --plot "$OUT/benchmark_ops.png" --force
step benchmark_bf16 120 "$python" tools/benchmarks/benchmark_ops.py "${device[@]}" "${quick[@]}" --ops kernels --dtype bfloat16 --out "$OUT/benchmark_ops_bf16.json" --force
step backbone 120 "$python" tools/benchmarks/benchmark_backbone.py "${device[@]}" "${sizes[@]}" --out "$OUT/benchmark_backbone.json" --plot "$OUT/benchmark_backbone.png" --force
end_of_steps
