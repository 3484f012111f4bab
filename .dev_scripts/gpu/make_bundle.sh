#!/usr/bin/env bash
# Makes one archive of what the scripts of this folder need on a machine with a GPU and without a network: the committed
# sources, the library with CUDA kernels for 8.0, 9.0 and, as PTX, later, a few images to train on, and the Python
# packages that a Python 3.12 with torch 2.11 for CUDA 13 usually lacks.
#
#   bash .dev_scripts/gpu/make_bundle.sh [FOLDER]     # default: .gpu, which git ignores
#
# On that machine:
#
#   mkdir -p /tmp/mmlaplace && tar xJf bundle.tar.xz -C /tmp/mmlaplace && cd /tmp/mmlaplace/project
#   OUT=/tmp/out bash .dev_scripts/gpu/run1.sh      # then run2.sh and run3.sh
#
# Uses .venv (tools/setup_env.sh), and nvcc through .dev_scripts/compile_cuda.sh, which takes a core a quarter of an hour;
# MAX_JOBS=N chooses the compilers. LIBRARY=FILE takes a library that is there already. FBI_LA=FOLDER adds a checkout of
# https://github.com/hp-l33/flash-bidirectional-linear-attention, which is on no package index.
set -Eeuo pipefail
case "${1:-}" in -h | --help) sed -n '2,/^set /{s/^# \{0,1\}//;/^set /!p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
called_from=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
case "${1:-}" in '') folder="$PWD/.gpu" ;; /*) folder="$1" ;; *) folder="$called_from/$1" ;; esac
python="$PWD/.venv/bin/python"
largest=$((40 << 20)) # bytes of the archive

if [ -z "${LIBRARY:-}" ]; then
    bash .dev_scripts/compile_cuda.sh '8.0;9.0+PTX'
    LIBRARY=$(ls build/cuda/library/mmlaplace/_C.abi3.so)
fi
state=$("$python" -c "
import runpy
from pathlib import Path
print(runpy.run_path('mmlaplace/ops/_sources.py')['source_state'](Path('ops')))")
if ! grep -aq "mmlaplace built for sources=$state" "$LIBRARY"; then
    echo "make_bundle: $LIBRARY was compiled from other sources than those in ops/; compile it again" >&2
    exit 1
fi
if ! git diff --quiet HEAD; then
    echo 'make_bundle: there are changes that are not committed, and the bundle has what is; commit them first' >&2
    exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
project="$work/bundle/project" packages="$work/bundle/bundled_packages"
mkdir -p "$project" "$packages" "$folder"

echo '== sources and library'
# The tests that run on a GPU need no file of other projects' results.
git archive HEAD -- . ':!docs' ':!studies' ':!demo' ':!tests/data/golden' ':!tests/data/manifests' | tar -xf - -C "$project"
cp "$LIBRARY" "$project/mmlaplace/_C.abi3.so"
strip --strip-debug "$project/mmlaplace/_C.abi3.so"

echo '== packages'
site=$("$python" -c 'import mmengine, pathlib; print(pathlib.Path(mmengine.__file__).parent.parent)')
tar -C "$site" --exclude __pycache__ --exclude '_ext*.so' --exclude '.mim/configs' --exclude '.mim/model-index.yml' \
    --exclude '.mim/demo' -cf - mmcv mmdet mmengine mmpretrain | tar -xf - -C "$packages"
# The ops of mmcv are compiled for another Python. What imports them gets names that raise when they are called.
cat >"$packages/mmcv/_ext.py" <<'PYTHON'
def get_compiling_cuda_version():  # python -m mmlaplace check prints it
    return '(none: its ops are left out of this bundle)'


def __getattr__(name):
    if name.startswith('__'):
        raise AttributeError(name)

    def missing(*args, **kwargs):
        raise RuntimeError(f'{name} of mmcv is not compiled here')

    return missing
PYTHON
# mmpretrain cannot be imported beside transformers 5. It looks for the version alone, and takes 0 for none.
mkdir "$packages/transformers-0.dist-info"
printf '%s\n' 'Metadata-Version: 2.1' 'Name: transformers' 'Version: 0' >"$packages/transformers-0.dist-info/METADATA"
needed=(addict yapf termcolor terminaltables pycocotools mat4py modelindex platformdirs tomli)
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.12 \
    --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
    --platform manylinux2014_x86_64 --platform any -d "$work/wheels" "${needed[@]}"
for wheel in "$work"/wheels/*.whl; do
    "$python" -m zipfile -e "$wheel" "$packages"
done
if [ -n "${FBI_LA:-}" ]; then
    cp -r "$FBI_LA/fbi_la" "$packages/"
    cp "$FBI_LA/LICENSE" "$packages/fbi_la/"
fi

echo '== images to train on'
"$python" tools/dataset_converters/make_mini_datasets.py --tasks classification --out "$work/mini" >/dev/null
# Every fifth of them makes an epoch of seconds.
(cd "$work/mini" && find classification -type f \( ! -name '*.png' -o -name '*0.png' -o -name '*5.png' \) -print0 |
    tar --null -T - -cf -) | (mkdir -p "$project/data/mini" && tar -xf - -C "$project/data/mini")

echo '== archive'
tar -C "$work/bundle" -cJf "$folder/bundle.tar.xz" project bundled_packages
size=$(stat -c %s "$folder/bundle.tar.xz")
if [ "$size" -gt $largest ]; then
    echo "make_bundle: $folder/bundle.tar.xz has $size bytes, and must have at most $largest; leave files out" >&2
    exit 1
fi
echo "$folder/bundle.tar.xz: $((size >> 20)) MB of commit $(git rev-parse --short HEAD)"
sha256sum "$folder/bundle.tar.xz"
