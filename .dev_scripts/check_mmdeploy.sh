#!/usr/bin/env bash
# Exports a classifier, a RetinaNet and a UPerNet by mmdeploy for ONNX Runtime, and compares both runtimes' results.
# In an environment of its own, with the upstream set (requirements/openmmlab.txt) and mmdeploy's last release.
#
#   bash .dev_scripts/check_mmdeploy.sh                      # environment: .venv-mmdeploy
#   bash .dev_scripts/check_mmdeploy.sh --venv FOLDER FILE…  # another one, and other configs
set -Eeuo pipefail
called_from=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv="$PWD/.venv-mmdeploy"
if [ "${1:-}" = --venv ]; then
    venv="${2:?--venv needs a folder}"
    case "$venv" in /*) ;; *) venv="$called_from/$venv" ;; esac
    shift 2
fi
bash tools/setup_env.sh --set openmmlab --venv "$venv"
# mmdeploy 1.3.1 wants protobuf <= 3.20.2. Its custom ops are linked with onnxruntime 1.15.1.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    mmdeploy==1.3.1 onnxruntime==1.15.1 onnx==1.15.0 'numpy<2'
exec "$venv/bin/python" .dev_scripts/check_mmdeploy.py "$@"
