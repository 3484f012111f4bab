#!/usr/bin/env bash
# Sets everything up and runs the test suite; arguments go to pytest.
#
#   bash tools/run_tests.sh            # all tests
#   bash tools/run_tests.sh -k kernel  # some
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash tools/setup_env.sh
exec .venv/bin/python -m pytest "$@"
