#!/usr/bin/env bash
# Sets everything up and runs the test suite in two processes; arguments go to pytest.
#
#   bash tools/run_tests.sh            # all that a user would notice, each with some of the models
#   bash tools/run_tests.sh --all      # also with the other models, in other ways and with sanitizers, as CI does
#   bash tools/run_tests.sh --fast     # while working: none that builds, trains or is slow, in .venv as it is
#   bash tools/run_tests.sh -k kernel  # some
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case "${1:-}" in -h | --help) sed -n '2,/^set /{s/^# \{0,1\}//;/^set /!p}' tools/run_tests.sh; exit 0 ;; esac
marks='not (thorough or sanitizer)' fast=''
case "${1:-}" in
    --all) shift; marks='' ;;
    --fast) shift; fast=yes marks='not (thorough or sanitizer or build or wheel or docs or training or slow)' ;;
esac
if [ -z "$fast" ] || [ ! -x .venv/bin/python ]; then
    bash tools/setup_env.sh
fi
# One thread each, as the processes would compete for the cores; tests of threads ask for more themselves.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
rm -f .pytest_cache/v/mmlaplace/died_in
.venv/bin/python -m pytest -n 2 --dist loadgroup -m "$marks" "$@" || {
    status=$?
    [ "$status" = 1 ] && .venv/bin/python tests/scheduling.py || exit "$status"
}
