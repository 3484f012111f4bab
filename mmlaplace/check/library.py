"""Checks of the compiled library, and of its ops against their PyTorch references."""

import inspect
import re
from pathlib import Path
from typing import List, Optional, Tuple

import torch
from torch import Tensor

from .. import ops
from ..ops import _native
from ..ops._sources import source_state
from ..ops.table import OPS
from .finding import Finding, describe
from .fixes import PACKAGE, TESTED_SET, build_library, gpu_arches


def loaded_library() -> Path:
    """Path of the compiled library that torch has loaded."""
    (path,) = [
        path
        for path in _native.libraries_in(PACKAGE)
        if str(path.resolve()) in torch.ops.loaded_libraries
    ]
    return path


def library_problem() -> Optional[str]:
    """The reason why the compiled library must be compiled again, or None.

    Either the library is missing, or it was compiled from other sources than those of this clone.
    tools/setup_env.sh calls this function to decide whether to compile.
    """
    if _native.WHY_MISSING is not None:
        return _native.WHY_MISSING
    sources = PACKAGE.parent / 'ops'
    if not (PACKAGE.parent / 'setup.py').is_file():  # a package from a wheel has no sources
        return None
    path, here = loaded_library(), source_state(sources)
    compiled = _native.build_info(path).get('sources', 'unknown')
    if compiled != here:
        return f'{path.name} was compiled from other sources ({compiled}) than {sources} ({here})'
    return None


def check_library() -> List[Finding]:
    """Check that the compiled library is loaded, and which devices it has kernels for."""
    problem = library_problem()
    if problem is not None:
        return [Finding('mmlaplace._C', 'problem', problem, build_library())]
    path = loaded_library()
    info = _native.build_info(path)
    served = info.get('torch') or f'{info["torch_from"]} and later'
    findings = [Finding('mmlaplace._C', 'ok', f'{path.name}, compiled for torch {served}')]
    arches = ', '.join(
        f'{int(arch) / 100:.1f}' for arch in re.findall(r'\d+', info.get('arches', ''))
    )
    capability = torch.backends.cpu.get_cpu_capability()
    compiled_for = {
        'cpu': f'compiled; this CPU uses the instruction set {capability}',
        'cuda': f'compiled by CUDA {info.get("cuda")} for {arches}',
    }
    for device, text in compiled_for.items():
        lacking = [name for name in native_ops() if lacks(name, device)]
        title = f'{device.upper()} kernels'
        if not lacking:
            findings.append(Finding(title, 'ok', text))
        elif device == 'cuda' and not gpu_arches():
            findings.append(Finding(title, 'ok', 'not compiled, and there is no GPU'))
        else:
            text = f'the library has no {", ".join(lacking)} for {device}'
            findings.append(Finding(title, 'problem', text, build_library()))
    return findings


def lacks(name: str, device: str) -> bool:
    """Whether the library has no kernel of an op for a device, or for the GPU that is there."""
    if device == 'cuda' and not gpu_arches():  # no driver to ask which GPU it would be
        return device not in _native.AVAILABLE.get(name, ())
    return _native.why_not(name, device) is not None


def native_ops() -> List[str]:
    """The public ops that the compiled library can compute. They have an argument ``backend``."""
    return [
        name
        for name in ops.__all__
        if 'backend' in inspect.signature(getattr(ops, name)).parameters
    ]


# The largest accepted error, relative to the largest value. fp32 rounds by 6e-8. Short sums and
# condition numbers below 20 make this 1e-6 at most. A wrong kernel is wrong in the first digits.
TOLERANCE = 1e-5


def check_ops() -> List[Finding]:
    """Run every op forward and backward on every device, and compare with its fp64 reference."""
    devices = ['cpu', *(f'cuda:{index}' for index in range(len(gpu_arches())))]
    return [check_op(name, torch.device(device)) for device in devices for name in native_ops()]


def check_op(name: str, device: torch.device) -> Finding:
    title = f'{name}, {device}'
    native = _native.why_not(name, device.type) is None
    fix = build_library() if native else TESTED_SET
    try:
        forward, backward = relative_errors(name, device)
    except Exception as error:  # a broken build may raise any error, and the report quotes it
        return Finding(title, 'problem', describe(error), fix)
    text = (
        f'{"native" if native else "PyTorch reference"}, relative error {forward:.0e}, '
        f'of the gradients {backward:.0e}'
    )
    if not (forward <= TOLERANCE and backward <= TOLERANCE):  # also true for NaN
        text += f'; expected at most {TOLERANCE:.0e}'
        return Finding(title, 'problem', text, fix)
    return Finding(title, 'ok' if native else 'note', text)


def relative_errors(name: str, device: torch.device) -> Tuple[float, float]:
    """Relative errors of an op in fp32 against its fp64 reference: of its result and gradients."""
    example = OPS[name]
    inputs = example.tensors().values()

    def run(dtype: torch.dtype, backend: str) -> List[Tensor]:
        leaves = [x.detach().to(device, dtype).requires_grad_() for x in inputs]
        out = getattr(ops, name)(*leaves, backend=backend, **example.options)
        return [out, *torch.autograd.grad(out.square().sum(), leaves)]

    pairs = zip(run(torch.float32, 'auto'), run(torch.float64, 'reference'))
    relative = torch.stack([(x - truth).abs().max() / truth.abs().max() for x, truth in pairs])
    return relative[0].item(), relative[1:].max().item()
