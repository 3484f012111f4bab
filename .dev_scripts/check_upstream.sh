#!/usr/bin/env bash
# Checks the upstream set (requirements/openmmlab.txt) in an environment of its own: the ops, the models, the
# build, which has an old setuptools there, and training steps, inference and loading in each of the three toolboxes.
#
#   bash .dev_scripts/check_upstream.sh       # environment: .venv-openmmlab
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash tools/setup_env.sh --set openmmlab --venv "$PWD/.venv-openmmlab"
exec .venv-openmmlab/bin/python -m pytest tests/ops tests/models tests/engine tests/checkpoints \
    tests/test_package.py tests/tools/test_inference.py "$@"
