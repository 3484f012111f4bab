#!/usr/bin/env bash
# Compiles the CUDA sources without a GPU, to see that they compile, link and load, and that the code
# for 8.0 and 9.0 keeps to the limits of check_cuda_code.py; needs nvcc alone.
#
#   bash .dev_scripts/compile_cuda.sh ["8.0;9.0+PTX"]     # architectures, as torch takes them
#
# Uses .venv (tools/setup_env.sh). The library stays in build/cuda; the installed one is not touched.
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case "${1:-}" in -h | --help) sed -n '2,/^set /{s/^# \{0,1\}//;/^set /!p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
if ! command -v nvcc >/dev/null; then
    echo 'compile_cuda: nvcc is missing; install the CUDA toolkit that matches torch, with nvcc on the PATH' >&2
    exit 1
fi
architectures="${1:-8.0;9.0+PTX}"
mkdir -p build/cuda
echo "== compile the CUDA sources for $architectures (log: build/cuda/log.txt)"
if ! FORCE_CUDA=1 TORCH_CUDA_ARCH_LIST="$architectures" MAX_JOBS="${MAX_JOBS:-$(nproc)}" .venv/bin/python setup.py \
    build_ext --build-temp build/cuda/objects --build-lib build/cuda/library >build/cuda/log.txt 2>&1; then
    grep -iE -A3 'error' build/cuda/log.txt | head -40 >&2 || true # none of them, or more, is no other failure
    echo 'compile_cuda: the CUDA sources do not compile; read build/cuda/log.txt' >&2
    exit 1
fi
.venv/bin/python - <<'PYTHON'
from pathlib import Path

import torch

(library,) = Path('build/cuda/library/mmlaplace').glob('_C*.so')
torch.ops.load_library(str(library))  # before the package loads its own
native = sorted(name for name in torch._C._dispatch_get_all_op_names() if name.startswith('mmlaplace::'))
# FFNs and the features of PolaFormer on a GPU are torch's own operations.
for_cpus = {
    f'mmlaplace::{name}'
    for name in (
        '_signed_powers', '_signed_powers_backward',
        '_pola_streams',
    )
}
without = [
    name for name in native
    if name not in for_cpus and not torch._C._dispatch_has_kernel_for_dispatch_key(name, 'CUDA')
]
assert native and not without, f'{library} has no CUDA kernels for {without}'
print(f'   {library} loads; {len(native) - len(for_cpus)} ops have CUDA kernels')
PYTHON
case "$architectures" in
    *8.0* | *9.0*) .venv/bin/python .dev_scripts/check_cuda_code.py build/cuda/library/mmlaplace/_C*.so ;;
    *) echo '   check_cuda_code.py reads code for 8.0 and 9.0, and none was compiled' ;;
esac
