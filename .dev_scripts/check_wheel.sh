#!/usr/bin/env bash
# Builds the wheel from a clean clone and tries it as somebody who has nothing else of this project: in a new
# environment and from an unrelated folder, with mmlaplace's own check, models by name, and mim.
#
#   bash .dev_scripts/check_wheel.sh            # what is committed; in a temporary folder
#   bash .dev_scripts/check_wheel.sh FOLDER     # in a new folder, which is kept, with its environment in FOLDER/venv
#
# Takes about 7 GB of disk and 10 minutes on 2 cores where tools/setup_env.sh has built mmcv's wheel before.
# PYTHON=… chooses the interpreter, MAX_JOBS=… the compilers.
set -Eeuo pipefail
called_from=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case "${1:-}" in -h | --help) sed -n '2,/^set /{s/^# \{0,1\}//;/^set /!p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
if [ $# -gt 0 ]; then
    case "$1" in /*) folder="$1" ;; *) folder="$called_from/$1" ;; esac
    mkdir "$folder"
else
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
fi
model=softpp-tiny_8xb128_in1k
python="$folder/venv/bin/python"
step=''
begin() { step="$1"; echo "== $step"; }
trap 'echo "check_wheel: this step failed: $step; read the message above" >&2' ERR

begin "make an environment with the tested set in $folder/venv"
git clone --quiet . "$folder/clone"
# Brings the clone itself too, to be replaced by the wheel: its ops need not be compiled.
MMLAPLACE_WITH_OPS=0 bash "$folder/clone/tools/setup_env.sh" --venv "$folder/venv"

begin 'build the wheel'
git -C "$folder/clone" clean --force -dx --quiet
MAX_JOBS="${MAX_JOBS:-$(nproc)}" "$python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$folder" \
    "$folder/clone"

begin 'install it; remove the clone'
"$python" -m pip uninstall --quiet --yes mmlaplace
"$python" -m pip install --quiet "$folder"/mmlaplace-*.whl
rm -rf "$folder/clone"
mkdir "$folder/elsewhere"
cd "$folder/elsewhere"

begin 'python -m mmlaplace.check'
"$python" -m mmlaplace.check
begin 'models by name'
"$python" - "$model" <<'PYTHON'
import sys

import mmlaplace

names = mmlaplace.list_models()
backbone = mmlaplace.get_model(sys.argv[1], backbone_only=True)
print(f'   {len(names)} models; {sys.argv[1]} has the backbone {type(backbone).__name__}')
PYTHON

begin 'install openmim'
# Last, as its dependencies pin a setuptools that is too old to build mmlaplace.
"$python" -m pip install --quiet openmim
mim() { "$python" -m mim "$@"; }
begin "mim finds $model, and its config builds"
mim list | grep mmlaplace
mim search mmlaplace --config "$model" --json found.json
"$python" - "$model" <<'PYTHON'
import json
import sys
from pathlib import Path

import mmlaplace
from mmengine.config import Config
from mmengine.registry import MODELS

(name,) = sys.argv[1:]
config = json.loads(Path('found.json').read_text())['config'][name]
path = Path(mmlaplace.__file__).parent / '.mim' / config
backbone = MODELS.build(Config.fromfile(path).model.backbone)
print(f'   {config} builds a {type(backbone).__name__}')
PYTHON
begin 'mim runs our tools'
mim run mmlaplace get_flops "$model"
echo "== the wheel works: $(basename "$folder"/mmlaplace-*.whl)"
