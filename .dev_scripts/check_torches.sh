#!/usr/bin/env bash
# Tries one wheel with several versions of torch: installs the same file into an environment for each, without a
# compiler on the PATH, and runs python -m mmlaplace check, the tests of the ops, and training steps of each family.
#
#   bash .dev_scripts/check_torches.sh WHEEL                  # torch 2.10, 2.11, 2.12, 2.13 and 2.14
#   bash .dev_scripts/check_torches.sh WHEEL 2.10.0 2.14.1    # these
#
# The environments stay in ${XDG_CACHE_HOME:-~/.cache}/mmlaplace/torches: 1 to 6 GB each, as torch comes for the CPU
# or with CUDA. A table and build/torches.json have the results; the first failure ends it, with its output.
set -Eeuo pipefail
called_from=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case "${1:-}" in
    -h | --help) sed -n '2,/^set /{s/^# \{0,1\}//;/^set /!p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    '') echo 'check_torches: name a wheel, made by .dev_scripts/build_wheels.sh (see --help)' >&2; exit 2 ;;
    /*) wheel="$1" ;;
    *) wheel="$called_from/$1" ;;
esac
shift
[ $# -gt 0 ] || set -- 2.10.0 2.11.0 2.12.1 2.13.0 2.14.1
root=$PWD
environments="${XDG_CACHE_HOME:-$HOME/.cache}/mmlaplace/torches"
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
# The tests without the sources, so that the installed package is the one that they import.
cp -r tests pyproject.toml "$place"
mkdir -p build "$environments"
cat >"$place/train.py" <<'PYTHON'
import torch
from mmengine.registry import MODELS

import mmlaplace  # registers

for family in ('LaplacianFormer', 'SOFT', 'SOFTPlusPlus', 'PolaFormerPVT'):
    torch.manual_seed(0)
    model = MODELS.build(dict(type=family, arch='micro'))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    images, losses = torch.randn(4, 3, 64, 64), []
    for _ in range(3):
        loss = (model(images)[-1] - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > losses[1] > losses[2], (family, losses)
PYTHON

rows=()
for version in "$@"; do
    python="$environments/$version/bin/python"
    if [ ! -f "$environments/$version/ready" ]; then
        echo "== make an environment with torch $version"
        "${PYTHON:-python3}" -m venv "$environments/$version"
        "$python" -m pip install --quiet --no-cache-dir --disable-pip-version-check "torch==$version" \
            $(grep -E '^onedl-mmengine==' requirements/onedl.txt) opencv-python-headless \
            $(grep -E '^(pytest|pytest-xdist|hypothesis|scikit-learn|pillow)==' requirements/tests.txt)
        touch "$environments/$version/ready"
    fi
    echo "== torch $version"
    "$python" -m pip uninstall --quiet --yes mmlaplace
    started=$(date +%s%N)
    PATH='' "$python" -m pip install --quiet --disable-pip-version-check "$wheel"
    cd "$place"
    PATH='' "$python" -W ignore -m mmlaplace check >"$place/check.txt" 2>&1 || { cat "$place/check.txt" >&2; exit 1; }
    seconds=$(echo "$(date +%s%N) $started" | awk '{printf "%.1f", ($1 - $2) / 1e9}')
    OMP_NUM_THREADS=1 "$python" -m pytest -q -p no:cacheprovider --rootdir "$place" -n 2 -m 'not slow' \
        tests/ops/test_{contracts,derivatives,fused,inverse,kernels,linear_attention,nystrom_attention,pooled_landmarks,properties,tracing}.py \
        >"$place/tests.txt" 2>&1 || { cat "$place/tests.txt" >&2; exit 1; }
    OMP_NUM_THREADS=1 "$python" train.py
    cd "$root"
    passed=$(grep -oE '[0-9]+ passed' "$place/tests.txt" | cut -d ' ' -f 1)
    rows+=("{\"torch\": \"$version\", \"install_and_check_s\": $seconds, \"op_tests_passed\": $passed}")
    echo "   installed and checked in $seconds s; $passed tests of the ops pass; four families learn"
done
(IFS=,; echo "{\"wheel\": \"$(basename "$wheel")\", \"results\": [${rows[*]}]}") >build/torches.json
