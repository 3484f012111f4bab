#!/usr/bin/env bash
# Checks on one GPU what docs/developers/gpu-validation.md waits for: builds the ops, runs the CUDA tests, prints the
# benchmark tables of ops and backbones, with memory, and, where there is compute-sanitizer, looks for
# races and bad accesses. Backbones are timed against the same with softmax, and those of PVT and Swin of
# mmdetection and mmpretrain, where these are.
#
#   bash tools/gpu_check.sh [OUT]     # default: work_dirs/gpu_check
#
# Needs a GPU, nvcc, and a Python with torch, mmengine, pytest and scikit-learn: PYTHON=… names it
# (default: .venv/bin/python, else python3). A mmlaplace/_C*.so that has CUDA kernels already is used
# as it is. Each step's log is in OUT; a step that fails does not keep the next from running.
set -Eeuo pipefail
called_from=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case "${1:-}" in -h | --help) sed -n '2,/^set /{s/^# \{0,1\}//;/^set /!p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
case "${1:-}" in '') out=work_dirs/gpu_check ;; /*) out="$1" ;; *) out="$called_from/$1" ;; esac
python="${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}"
mkdir -p "$out"
failed=()
others=(laplacianformer-tiny laplacianformer-tiny+SoftmaxAttention mmdet:PyramidVisionTransformer-tiny
    mmpretrain:SwinTransformer-tiny --image-size 224x32 512x8 --modes eager bf16)
step() {
    local name="$1"
    shift
    echo "== $name: $*"
    local started=$SECONDS
    if "$@" >"$out/$name.txt" 2>&1; then
        echo "   done in $((SECONDS - started)) s"
    else
        echo "   FAILED after $((SECONDS - started)) s, see $out/$name.txt"
        failed+=("$name")
    fi
    tail -n "${tail_lines:-3}" "$out/$name.txt" | sed 's/^/   /'
}

"$python" -c '
import sys, torch
if not torch.cuda.is_available():
    sys.exit(f"gpu_check: torch {torch.__version__} sees no GPU; nvidia-smi must list one, and torch must "
             "be a build for CUDA")
print(torch.cuda.get_device_name(), "torch", torch.__version__)' || exit 1
arch=$("$python" -c 'import torch; print("%d.%d" % torch.cuda.get_device_capability())')
if ! grep -aq 'mmlaplace built for cuda=' mmlaplace/_C*.so 2>/dev/null; then
    FORCE_CUDA=1 TORCH_CUDA_ARCH_LIST="$arch" step build "$python" setup.py build_ext --inplace
fi
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
step tests "$python" -m pytest -q -p no:cacheprovider tests/ops tests/models/test_attentions.py \
    tests/models/test_laplacian_attention.py -k 'cuda or attention'
# The ops and the models' parts in fp32, then as autocast runs them. The training step is that of a
# whole LaplacianFormer, by the compiled ops and by their references.
tail_lines=200 step benchmark "$python" tools/benchmarks/benchmark_ops.py --device cuda --train-step \
    --out "$out/benchmark_ops.json" --plot "$out/benchmark_ops.png" --force
tail_lines=120 step benchmark_bf16 "$python" tools/benchmarks/benchmark_ops.py --device cuda --ops kernels \
    --dtype bfloat16 --out "$out/benchmark_ops_bf16.json" --force
tail_lines=120 step benchmark_linear "$python" tools/benchmarks/benchmark_ops.py --device cuda --ops linear \
    --dtype bfloat16 --out "$out/benchmark_ops_linear_bf16.json" --force
tail_lines=30 step backbone "$python" tools/benchmarks/benchmark_backbone.py --device cuda \
    --out "$out/benchmark_backbone.json" --plot "$out/benchmark_backbone.png" --force
# Forward and training step of whole backbones, in fp32 and bf16.
tail_lines=60 step backbone_others "$python" tools/benchmarks/benchmark_backbone.py "${others[@]}" --device cuda \
    --out "$out/benchmark_others.json" --force
tail_lines=60 step backbone_train "$python" tools/benchmarks/benchmark_backbone.py "${others[@]}" --device cuda --train \
    --out "$out/benchmark_train.json" --force
if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
        step "sanitizer_$tool" compute-sanitizer --tool "$tool" --error-exitcode 1 "$python" -m pytest -q \
            -p no:cacheprovider tests/ops/test_kernels.py tests/ops/test_inverse.py tests/ops/test_contracts.py \
            -k 'native-cuda and (formula or strides or inverts)'
    done
else
    echo '== compute-sanitizer is missing, so this step does not run; the CUDA toolkit has it'
fi
if [ ${#failed[@]} -gt 0 ]; then
    echo "gpu_check: these steps failed: ${failed[*]}; read their logs in $out" >&2
    exit 1
fi
echo "gpu_check: all steps passed; figures in $out/*.json, tables in $out/*.txt"
