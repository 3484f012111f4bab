#!/usr/bin/env bash
# Tests a checkpoint on several GPUs of one or more machines.
#
#   bash tools/dist_test.sh CONFIG CHECKPOINT GPUS [options of tools/test.py]
#
# On several machines run it on each, with NNODES, NODE_RANK (from 0), MASTER_ADDR and PORT set:
#   NNODES=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 PORT=29500 bash tools/dist_test.sh CONFIG CHECKPOINT 8
# On one machine a free port is found; PORT=… names one. PYTHON=… names the interpreter (default: python).
set -Eeuo pipefail
case "${1:-}" in -h | --help) sed -n '2,/^set /{s/^# \{0,1\}//;/^set /!p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
config="${1:?dist_test: name a config (see --help)}"
checkpoint="${2:?dist_test: name a checkpoint (see --help)}"
gpus="${3:?dist_test: say how many GPUs this machine has (see --help)}"
tools="$(dirname "${BASH_SOURCE[0]}")"
exec bash "$tools/torchrun.sh" "$gpus" "$tools/test.py" "$config" "$checkpoint" --launcher pytorch "${@:4}"
