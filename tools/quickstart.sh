#!/usr/bin/env bash
# Sets everything up, trains a small LaplacianFormer on real images, tests it and draws predictions.
#
#   bash tools/quickstart.sh [--work-dir DIR]      # default: work_dirs/quickstart
#
# The first run installs packages and builds mmcv's ops (10 to 20 minutes on 2 cores). After that, a
# run takes about 5 minutes on 2 CPU cores. Training and testing are mmpretrain's own tools/train.py
# and tools/test.py with a config of this project.
set -Eeuo pipefail
called_from=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work_dir=work_dirs/quickstart
while [ $# -gt 0 ]; do
    case "$1" in
        --work-dir) work_dir="${2:?--work-dir needs a folder}"; shift 2 ;;
        -h | --help) sed -n '2,/^set /{s/^# \{0,1\}//;/^set /!p}' "${BASH_SOURCE[0]}"; exit 0 ;;
        *) echo "quickstart: unknown option '$1' (see --help)" >&2; exit 2 ;;
    esac
done

case "$work_dir" in work_dirs/quickstart | /*) ;; *) work_dir="$called_from/$work_dir" ;; esac

bash tools/setup_env.sh
python=.venv/bin/python
config=configs/classification/laplacianformer/laplacianformer-micro_1xb32_mini.py
mmpretrain_tools=$("$python" -c 'import importlib.util as u; print(u.find_spec("mmpretrain").submodule_search_locations[0] + "/.mim/tools")')
started=$SECONDS

echo "== [1/4] mini data set"
"$python" tools/make_mini_datasets.py --tasks classification

echo "== [2/4] train ($work_dir)"
"$python" "$mmpretrain_tools/train.py" "$config" --work-dir "$work_dir"
checkpoint=$(cat "$work_dir/last_checkpoint")

echo "== [3/4] test on held-out images"
"$python" "$mmpretrain_tools/test.py" "$config" "$checkpoint" --work-dir "$work_dir/test" \
    --out "$work_dir/test/predictions.pkl"

echo "== [4/4] predict and draw"
"$python" tools/show_predictions.py "$config" "$checkpoint" data/mini/classification/val \
    --out "$work_dir/predictions.png"

top1=$("$python" -c '
import json, pathlib, sys
logs = sorted(pathlib.Path(sys.argv[1]).glob("*/*.json"))
print(round(json.loads(logs[-1].read_text())["accuracy/top1"], 2))' "$work_dir/test")
if ! "$python" -c 'import sys; sys.exit(float(sys.argv[1]) < 95)' "$top1"; then
    echo "quickstart: top-1 is below 95 %: something is wrong; see the log in $work_dir" >&2
    exit 1
fi
elapsed=$((SECONDS - started))
cat <<EOF

Top-1 on held-out images: $top1 % (95 % or more expected). $((elapsed / 60)) min $((elapsed % 60)) s after set-up.
Look at:  $work_dir/predictions.png
Go on with the same model under softmax attention, to compare:
  .venv/bin/python $mmpretrain_tools/train.py configs/classification/laplacianformer/laplacianformer-micro-softmax_1xb32_mini.py
EOF
