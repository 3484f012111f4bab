#!/usr/bin/env bash
# What run1.sh, run2.sh and run3.sh share; they read it by "source".
#
# It goes to the project's root, and defines step, which runs a command for some seconds, prints its lines and keeps them
# in $OUT/NAME.txt; a step that fails does not keep the next from running. Variables:
#
#   OUT=FOLDER       where logs and figures go (default: work_dirs/gpu_check)
#   PYTHON=PROGRAM   default: .venv/bin/python, else python3
#   PATIENCE=N       multiplies the seconds of all steps (default: 1)
#   WORKERS=N        processes that run tests at once (default: as many as there are cores, at most 12)
#   REHEARSE=1       on a CPU, in small sizes
set -Eeuo pipefail
mkdir -p "${OUT:=work_dirs/gpu_check}"
OUT=$(cd "$OUT" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
kit=.dev_scripts/gpu
python="${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}"
cores=$(nproc)
workers="${WORKERS:-$((cores < 12 ? cores : 12))}"
patience="${PATIENCE:-${REHEARSE:+10}}"
patience="${patience:-1}"
export PYTHONUNBUFFERED=1 KINETO_LOG_LEVEL=5
export PYTHONPATH="$PWD:$PWD/../bundled_packages${PYTHONPATH:+:$PYTHONPATH}"
failed=()

if [ -z "${REHEARSE:-}" ]; then
    "$python" -c '
import sys, torch
if not torch.cuda.is_available():
    sys.exit(f"torch {torch.__version__} sees no GPU; nvidia-smi must list one, and torch must be a build for CUDA. "
             "REHEARSE=1 runs everything on a CPU, in small sizes")
print(torch.cuda.get_device_name(), "torch", torch.__version__)' || exit 1
fi

seconds() { # N: N seconds, as long as the steps may take
    echo $(($1 * patience))
}

step() { # NAME SECONDS COMMAND...; of the lines only those that match $show are printed
    local name="$1" limit began=$SECONDS status
    limit=$(seconds "$2")
    shift 2
    echo "== $name, at most $limit s: $*"
    set +e
    timeout "$limit" "$@" 2>&1 | tee "$OUT/$name.txt" | grep --line-buffered -E "${show:-}" | sed -u 's/\(.\{200\}\).*/\1/'
    status=${PIPESTATUS[0]}
    set -e
    case $status in
        0) echo "   $name: done in $((SECONDS - began)) s" ;;
        124) echo "   $name: STOPPED after $limit s; what it measured until then is in $OUT"; failed+=("$name") ;;
        *) echo "   $name: FAILED after $((SECONDS - began)) s, see $OUT/$name.txt"; failed+=("$name") ;;
    esac
}

step_under() { # NAME SECONDS TOOL OPTIONS... -- COMMAND...: the command under a tool of the CUDA toolkit
    local name="$1" limit="$2" tool=()
    shift 2
    while [ "$1" != -- ]; do tool+=("$1"); shift; done
    shift
    if [ -n "${REHEARSE:-}" ]; then
        step "$name" "$limit" "$@"
    elif command -v "${tool[0]}" >/dev/null; then
        step "$name" "$limit" "${tool[@]}" "$@"
    else
        echo "== $name: does not run, as ${tool[0]} is missing; the CUDA toolkit has it"
    fi
}

end_of_steps() {
    if [ ${#failed[@]} -gt 0 ]; then
        echo "these steps failed: ${failed[*]}; read their logs in $OUT" >&2
        exit 1
    fi
    echo "all steps passed; logs and figures are in $OUT"
}
