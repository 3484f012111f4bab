#!/usr/bin/env bash
# What is off by default (products on tensor cores), training with autocast, and a closer look by NVIDIA's tools.
# At most 470 seconds; steps.sh lists variables.
#
#   bash .dev_scripts/gpu/run3.sh
#   REHEARSE=1 OUT=/tmp/rehearsal bash .dev_scripts/gpu/run3.sh    # on a CPU
set -Eeuo pipefail
case "${1:-}" in -h | --help) sed -n '2,/^set /{s/^# \{0,1\}//;/^set /!p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

by_tensor_cores=(env MMLAPLACE_TENSOR_CORES=1 "$python")
attentions=(nystrom_attention normalized_nystrom_attention linear_attention)
training=(tools/train.py configs/classification/laplacianformer/laplacianformer-micro_1xb32_mini.py --work-dir "$OUT/training" --cfg-options train_cfg.max_epochs=1)
if [ -z "${REHEARSE:-}" ]; then training+=(--amp); fi # mmengine's scaler of losses needs a GPU

step tests_tensor_cores 80 "${by_tensor_cores[@]}" -m pytest -q -n "$workers" -p no:cacheprovider --disable-warnings -m gpu tests/ops/test_nystrom_attention.py tests/ops/test_normalized_nystrom_attention.py tests/ops/test_linear_attention.py
step ops_tensor_cores 75 "${by_tensor_cores[@]}" $kit/measure_ops.py --ops "${attentions[@]}" --seconds "$(seconds 60)" --out "$OUT/ops_tensor_cores.json" --force
step peers_tensor_cores 65 "${by_tensor_cores[@]}" $kit/measure_peers.py --parts backbones --models laplacianformer-tiny polaformer-pvt-tiny --seconds "$(seconds 45)" --out "$OUT/peers_tensor_cores.json" --force
if [ -d data/mini/classification ]; then
    show='Epoch\((train|val)\)|Error' step training 60 "$python" "${training[@]}"
else
    echo '== training: does not run without data; make it by python tools/dataset_converters/make_mini_datasets.py --tasks classification'
fi
show='mmlaplace|Duration|Throughput|Occupancy|Registers' step_under kernels 70 ncu --clock-control none --set basic --section SpeedOfLight --section Occupancy --section MemoryWorkloadAnalysis --kernel-name-base demangled -k regex:mmlaplace -c 60 -- "$python" $kit/call_ops.py
step_under memcheck 60 compute-sanitizer --tool memcheck --error-exitcode 1 -- "$python" $kit/call_ops.py --images 2 --side 14
step_under racecheck 60 compute-sanitizer --tool racecheck --error-exitcode 1 -- "$python" $kit/call_ops.py --images 2 --side 14
end_of_steps
