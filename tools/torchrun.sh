#!/usr/bin/env bash
# Starts the processes of a Python script on this machine; dist_train.sh and dist_test.sh call it.
#
#   bash tools/torchrun.sh PROCESSES SCRIPT [its arguments]
#
# One machine takes a free port, so that two jobs do not collide; PORT=… names one. On several
# machines, NNODES of them, all need the same MASTER_ADDR (of the first) and PORT, and each its NODE_RANK.
# PYTHON=… names the interpreter (default: python).
set -Eeuo pipefail
case "${1:-}" in -h | --help) sed -n '2,/^set /{s/^# \{0,1\}//;/^set /!p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
processes="${1:-}"
case "$processes" in
    gpu | cpu | auto) ;;
    '' | *[!0-9]* | 0)
        echo "torchrun: the number of processes must be a positive number, got '$processes' (see --help)" >&2
        exit 2
        ;;
esac
shift
nodes="${NNODES:-1}"
if [ "$nodes" != 1 ]; then
    for name in NODE_RANK MASTER_ADDR PORT; do
        [ -n "${!name:-}" ] && continue
        echo "torchrun: NNODES=$nodes needs $name, which is not set; set NODE_RANK (0 to $((nodes - 1)), different on" \
            "each machine), MASTER_ADDR (the first machine's address) and PORT (a free port there) on all machines" >&2
        exit 2
    done
fi
if [ -n "${PORT:-}" ]; then
    place=(--nnodes "$nodes" --node-rank "${NODE_RANK:-0}" --master-addr "${MASTER_ADDR:-127.0.0.1}" --master-port "$PORT")
else
    # --local-addr, as the host's own name need not resolve.
    place=(--nnodes 1 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:0 --local-addr 127.0.0.1)
fi
exec "${PYTHON:-python}" -m torch.distributed.run "${place[@]}" --nproc-per-node "$processes" "$@"
