#!/usr/bin/env bash
# Makes a virtual environment with a tested set of packages and installs mmlaplace into it.
#
#   bash tools/setup_env.sh                                        # .venv, requirements/onedl.txt
#   bash tools/setup_env.sh --set openmmlab --venv .venv-openmmlab # the upstream releases
#   bash tools/setup_env.sh --task classification                  # without mmcv's ops, see below
#
# mmcv's compiled ops come as source only: they are built once (2 minutes on 2 cores) and
# kept in ${XDG_CACHE_HOME:-~/.cache}/mmlaplace/wheels, keyed by what they depend on. mmdet, mmseg
# and the tests need them. mmpretrain does not: for --task classification it comes alone, with an
# mmcv without ops, where they are not built yet. A later run without --task adds what is missing.
#
# Safe to run again: a second run takes seconds. PYTHON=… chooses the interpreter, MAX_JOBS=… the
# compilers.
set -Eeuo pipefail
called_from=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."

package_set=onedl
venv=.venv given=
all=mmpretrain,mmdet,mmseg
toolboxes=$all
usage() { sed -n '2,/^set /{s/^# \{0,1\}//;/^set /!p}' "${BASH_SOURCE[0]}"; }
while [ $# -gt 0 ]; do
    case "$1" in
        --set) package_set="${2:?--set needs a name: onedl or openmmlab}"; shift 2 ;;
        --venv) venv="${2:?--venv needs a folder}" given=1; shift 2 ;;
        --task)
            case "${2:?--task needs a name: classification, detection or segmentation}" in
                classification) toolboxes=mmpretrain ;;
                detection | segmentation) toolboxes=$all ;;
                *) echo "setup_env: no task '$2'; there are: classification detection segmentation" >&2; exit 2 ;;
            esac
            shift 2 ;;
        -h | --help) usage; exit 0 ;;
        *) echo "setup_env: unknown option '$1' (see --help)" >&2; exit 2 ;;
    esac
done
# A folder given from outside is relative to where the command was called.
case "$venv" in /*) ;; *) [ -z "$given" ] || venv="$called_from/$venv" ;; esac
case "${PYTHON:-}" in ./* | ../*) PYTHON="$called_from/$PYTHON" ;; esac
requirements="requirements/$package_set.txt"
if [ ! -f "$requirements" ]; then
    echo "setup_env: no package set '$package_set'; there are:" requirements/{onedl,openmmlab}.txt >&2
    exit 2
fi

step='' fix=''
begin() { step="$1" fix="$2"; echo "== $step"; }
failed() {
    echo "setup_env: FAILED at: $step" >&2
    echo "setup_env: to fix it: $fix" >&2
}
trap failed ERR

python="$venv/bin/python"
pip() { "$python" -m pip --disable-pip-version-check "$@"; }
mmcv_ops_import() { "$python" -c 'from mmcv.ops import nms, RoIAlign' 2>/dev/null; }
# Whether our own ops are there. A library that is gone, or that is for another torch, machine or state of the
# sources, gives another answer than the one that the last set-up wrote down.
own_ops() {
    "$python" -c "import $1
from mmlaplace.check import library_problem
problem = library_problem()
print(f'without compiled ops: {problem}' if problem else 'with compiled ops')"
}

# Flags for C++ against torch that take a fourth of the default ones' time: no debug information, and under GCC torch's
# headers parsed once, into a folder. GCC parses them as always where the result does not fit its flags.
fast_flags() {
    local flags='-O2 -g0' macros
    macros=$("${CXX:-c++}" -dM -E -x c++ /dev/null 2>/dev/null || true)
    # Clang has the macros of GCC, too.
    if [[ $macros == *__GNUC__* && $macros != *__clang__* ]]; then
        mkdir "$1/header"
        echo '#include <torch/types.h>' >"$1/header/torch_types.h"
        # shellcheck disable=SC2046 # words
        if "${CXX:-c++}" $flags -fPIC -std=c++17 $("$python" -c '
import torch
from torch.utils.cpp_extension import include_paths
print(*(f"-I{path}" for path in include_paths()))
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7):  # which names the ABI on the command line
    print(f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}")
') -x c++-header "$1/header/torch_types.h" -o "$1/header/torch_types.h.gch" >&2; then
            flags="$flags -include $1/header/torch_types.h"
        fi
    fi
    echo "$flags"
}

begin 'find Python' \
    'install Python 3.10 to 3.12 (3.10 or 3.11 for the openmmlab set) with its venv module (Debian: apt-get install python3-venv), or name one: PYTHON=python3.11'
# Everything an installation depends on; when none of it changed there is nothing to do.
version=$("${PYTHON:-python3}" --version)
state=$(echo "$version $package_set $PWD ${MMLAPLACE_WITH_OPS:-} ${FORCE_CUDA:-} ${TORCH_CUDA_ARCH_LIST:-}"
    cat requirements/*.txt pyproject.toml setup.py tools/setup_env.sh
    find ops -type f -print0 | sort -z | xargs -0 cat)
state=$(echo "$state" | sha256sum | cut -d ' ' -f 1)
read -r before installed ops_before <<<"$(cat "$venv/.mmlaplace-state" 2>/dev/null || true)"
# Whether the last set-up wrote down what is asked for now, or more, and it is still there.
is_there() {
    [ "$before" = "$state" ] || return
    case "$installed" in
        "$all") mmcv_ops_import ;;
        "$toolboxes") "$python" -c "import $toolboxes" 2>/dev/null ;;
        *) false ;;
    esac
}
if is_there; then
    ops=$(own_ops mmlaplace 2>/dev/null || true)
    if [ "$ops_before" = "${ops%%:*}" ]; then
        echo "== $venv is ready ($package_set set)"
        exit 0
    fi
    echo "== install again: mmlaplace is ${ops:-not importable}"
fi

begin "make the virtual environment $venv for the $package_set set" \
    'install Python with its venv module (Debian: apt-get install python3-venv); the two sets overwrite one another, so give each an environment of its own: --venv FOLDER'
[ "$(cat "$venv/.mmlaplace-set" 2>/dev/null || echo "$package_set")" = "$package_set" ]
[ -x "$python" ] || "${PYTHON:-python3}" -m venv "$venv"
rm -f "$venv/.mmlaplace-state"
echo "$package_set" >"$venv/.mmlaplace-set"
pip install --quiet --upgrade pip
pip install --quiet -r requirements/build.txt

begin "install torch (several GB the first time)" \
    'check the network and the free disk space (about 8 GB), then run this again; what was downloaded is kept'
pip install $(grep -E '^(torch|torchvision|numpy)[=<]' "$requirements")

mmcv=$(grep -E '^(onedl-)?mmcv==' "$requirements")
key=$("$python" -c "
import os, platform, sys, torch
cuda = torch.cuda.is_available() or os.environ.get('FORCE_CUDA') == '1'
accelerator = f'cu{torch.version.cuda}-{os.environ.get(\"TORCH_CUDA_ARCH_LIST\", \"native\")}' if cuda else 'cpu'
print('-'.join(['${mmcv/==/-}', f'torch{torch.__version__}', f'cp{sys.version_info[0]}{sys.version_info[1]}',
                platform.machine(), accelerator]).replace(' ', '_').replace(';', '_'))")
wheels="${XDG_CACHE_HOME:-$HOME/.cache}/mmlaplace/wheels/$key"
built() { ls "$wheels"/*.whl >/dev/null 2>&1; }
# What is there stays, and what is built costs nothing.
if built || mmcv_ops_import; then toolboxes=$all; fi
# The set comes while mmcv and our ops are compiled: but for mmcv itself, and for setuptools, which compiles.
rest=$(grep -vE '^(#|(onedl-)?mmcv==|setuptools)' "$requirements")
if [ "$toolboxes" = "$all" ]; then
    rest="$rest -r requirements/tests.txt"
else
    # Of what tests need, that which makes the mini data sets.
    rest="$(grep -vE '^(onedl-)?mm(det|seg)' <<<"$rest") $(grep -E '^(pillow|scikit-image|scikit-learn)==' requirements/tests.txt)"
fi
# shellcheck disable=SC2086 # words
"$python" -m pip --disable-pip-version-check install --quiet --no-build-isolation $rest &
set_install=$!
building=$(mktemp -d)
trap 'rm -rf "$building"; kill $set_install 2>/dev/null || true' EXIT
if [ "$toolboxes" != "$all" ]; then
    begin "install $mmcv without its compiled ops, which classification does not need" \
        'check the network, then run this again; or leave out --task classification, to build it with its ops'
    # In isolation, where it sees no torch and so leaves its ops out: the fork does not read MMCV_WITH_OPS=0.
    # Without pip's cache, so that nobody takes this wheel for one with ops.
    pip install --quiet --no-cache-dir --no-deps --build-constraint requirements/build.txt "$mmcv"
elif ! built; then
    begin "build $mmcv with its compiled ops into $wheels (2 minutes on 2 cores with GCC)" \
        'install a C++17 compiler (Debian: apt-get install g++); if memory ran out, set MAX_JOBS=1; for a GPU build install the CUDA toolkit that matches torch and set CUDA_HOME'
    # Headers of torch 2.14 need C++20, and mmcv's setup asks for C++17.
    if "$python" -c 'import sys, torch; sys.exit(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14))'; then
        printf '#!/usr/bin/env bash\nexec %s "${@/#-std=c++17/-std=c++20}"\n' "${CXX:-c++}" >"$building/c++20"
        chmod +x "$building/c++20"
        export CXX="$building/c++20"
    fi
    # Without build isolation: an isolated build has no torch and then silently leaves the ops out.
    # Without pip's cache: it may hold the wheel of such a build.
    MAX_JOBS="${MAX_JOBS:-$(nproc)}" CFLAGS="${CFLAGS:-$(fast_flags "$building")}" \
        pip wheel --no-cache-dir --no-build-isolation --no-deps --wheel-dir "$building" "$mmcv"
    # Only a finished wheel may enter the cache.
    mkdir -p "$wheels"
    mv "$building"/*.whl "$wheels/"
fi

begin 'install mmlaplace with its compiled ops (a minute on 2 cores; without a compiler their PyTorch references compute)' \
    'read the message above: install a C++17 compiler that works (Debian: apt-get install g++), or leave the ops out with MMLAPLACE_WITH_OPS=0'
# A library that stays from before would hide that none could be compiled.
rm -f mmlaplace/_C.abi3.so "mmlaplace/_C_torch$(sed -n 's/^torch==\([0-9]*\)\.\([0-9]*\).*/\1\2/p' "$requirements").so"
# Without build isolation, where there is no torch.
# setuptools warns at length that an editable package is a folder.
MAX_JOBS="${MAX_JOBS:-$(nproc)}" PYTHONWARNINGS=ignore \
    pip install --quiet --no-deps --no-build-isolation --editable .

begin "install the $package_set set" \
    'read the message of pip above; if packages of the other set are in this environment, remove the folder '"$venv"' and run this again'
wait $set_install
trap 'rm -rf "$building"' EXIT
if [ "$toolboxes" = "$all" ]; then
    # By force, as this version may be there without ops.
    pip install --quiet --no-deps --force-reinstall "$wheels"/*.whl
    pip install --quiet --no-deps --upgrade --target "$venv/hosts" -r requirements/hosts.txt
fi
# shellcheck disable=SC2046 # words
pip install --quiet $(grep -E '^((onedl-)?mmcv==|setuptools)' "$requirements")

imports="mmlaplace,$toolboxes"
if [ "$toolboxes" = "$all" ]; then imports="$imports,mmcv.ops"; fi
begin "check that these import: $imports" \
    "remove $venv, and $wheels where mmcv was built without its ops or for another torch, and run this again"
ops=$(own_ops "$imports")
echo "   $ops"
[ "$toolboxes" = "$all" ] || echo '   classification alone; for detection and segmentation run this without --task classification'
echo "$state $toolboxes ${ops%%:*}" >"$venv/.mmlaplace-state"
echo "== $venv is ready ($package_set set); activate it with: source $venv/bin/activate"
