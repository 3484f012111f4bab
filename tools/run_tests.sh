#!/usr/bin/env bash
# Sets everything up and runs the test suite in two processes; arguments go to pytest.
#
#   bash tools/run_tests.sh            # all tests
#   bash tools/run_tests.sh --fast     # while working: none that builds, trains or is slow, in .venv as it is
#   bash tools/run_tests.sh -k kernel  # some
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
selection=()
if [ "${1:-}" = --fast ]; then
    shift
    selection=(-m 'not (build or sanitizer or wheel or docs or training or slow)')
fi
if [ ${#selection[@]} -eq 0 ] || [ ! -x .venv/bin/python ]; then
    bash tools/setup_env.sh
fi
# One thread each, as the processes would compete for the cores; tests of threads ask for more themselves.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec .venv/bin/python -m pytest -n 2 --dist loadgroup "${selection[@]}" "$@"
