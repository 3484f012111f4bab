#!/usr/bin/env bash
# How fast is it? Attentions and backbones beside those of others, every op, and where a model's time goes.
# At most 470 seconds; steps.sh lists variables.
#
#   bash .dev_scripts/gpu/run2.sh
#   REHEARSE=1 OUT=/tmp/rehearsal bash .dev_scripts/gpu/run2.sh    # on a CPU
set -Eeuo pipefail
case "${1:-}" in -h | --help) sed -n '2,/^set /{s/^# \{0,1\}//;/^set /!p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

step peers 315 "$python" $kit/measure_peers.py --seconds "$(seconds 295)" --out "$OUT/peers.json" --force
step ops 95 "$python" $kit/measure_ops.py --seconds "$(seconds 80)" --out "$OUT/ops.json" --force
step profile 60 "$python" $kit/profile_models.py laplacianformer-tiny
end_of_steps
