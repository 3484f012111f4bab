#!/usr/bin/env bash
# Trains on several GPUs of one or more machines.
#
#   bash tools/dist_train.sh CONFIG GPUS [options of tools/train.py]
#
# On several machines run it on each, with NNODES, NODE_RANK (from 0), MASTER_ADDR and PORT set:
#   NNODES=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 PORT=29500 bash tools/dist_train.sh CONFIG 8
# On one machine a free port is found; PORT=… names one. PYTHON=… names the interpreter (default: python).
set -Eeuo pipefail
case "${1:-}" in -h | --help) sed -n '2,/^set /{s/^# \{0,1\}//;/^set /!p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
if [ $# -lt 2 ]; then
    echo "dist_train: name a config and the number of GPUs of this machine, such as bash tools/dist_train.sh CONFIG 8;" \
        "got '$*' (see --help)" >&2
    exit 2
fi
config="$1"
gpus="$2"
tools="$(dirname "${BASH_SOURCE[0]}")"
exec bash "$tools/torchrun.sh" "$gpus" "$tools/train.py" "$config" --launcher pytorch "${@:3}"
