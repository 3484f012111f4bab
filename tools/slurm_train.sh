#!/usr/bin/env bash
# Trains on a Slurm cluster.
#
#   bash tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [options of tools/train.py]
#
# GPUS (in all, default 8), GPUS_PER_NODE (8), CPUS_PER_TASK (5) and SRUN_ARGS shape the job:
#   GPUS=16 bash tools/slurm_train.sh gpu retinanet CONFIG work_dirs/retinanet --amp
# The first task's port is 12000 + the job's number mod 20000; PORT=… names another, which several
# runs in one job need. PYTHON=… names the interpreter (default: python).
set -Eeuo pipefail
case "${1:-}" in -h | --help) sed -n '2,/^set /{s/^# \{0,1\}//;/^set /!p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
if [ $# -lt 4 ]; then
    echo "slurm_train: name a partition, the job, a config and a work folder, such as" \
        "bash tools/slurm_train.sh gpu JOB CONFIG work_dirs/JOB; got '$*' (see --help)" >&2
    exit 2
fi
partition="$1" job="$2" config="$3" work_dir="$4"
gpus="${GPUS:-8}"
per_node="${GPUS_PER_NODE:-8}"
[ "$gpus" -ge "$per_node" ] || per_node="$gpus"
# The job's number is known in its tasks alone. SRUN_ARGS is left unquoted, to hold several options.
exec srun --partition "$partition" --job-name "$job" --gres "gpu:$per_node" --ntasks "$gpus" \
    --ntasks-per-node "$per_node" --cpus-per-task "${CPUS_PER_TASK:-5}" --kill-on-bad-exit=1 ${SRUN_ARGS:-} \
    bash -c 'MASTER_PORT="${PORT:-${MASTER_PORT:-$((12000 + SLURM_JOB_ID % 20000))}}" exec "$@"' train \
    "${PYTHON:-python}" -u "$(dirname "${BASH_SOURCE[0]}")/train.py" "$config" --work-dir "$work_dir" \
    --launcher slurm "${@:5}"
