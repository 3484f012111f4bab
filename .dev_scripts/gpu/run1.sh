#!/usr/bin/env bash
# Is it right? Tests on CUDA, and what only a run on a GPU can show. At most 470 seconds; steps.sh lists variables.
#
#   bash .dev_scripts/gpu/run1.sh
#   REHEARSE=1 OUT=/tmp/rehearsal bash .dev_scripts/gpu/run1.sh    # on a CPU
set -Eeuo pipefail
case "${1:-}" in -h | --help) sed -n '2,/^set /{s/^# \{0,1\}//;/^set /!p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

step installation 60 "$python" -m mmlaplace check
step tests 180 "$python" -m pytest -q -n "$workers" -p no:cacheprovider --disable-warnings -m gpu tests/ops tests/models/test_attentions.py tests/models/test_layers.py
step checks 220 "$python" $kit/checks.py --seconds "$(seconds 205)" --out "$OUT/checks.json" --force
end_of_steps
