"""Run files of export.py in OpenVINO, with mmlaplace's operators where they call them.

On processors with instructions for bf16, OpenVINO computes in bf16 unless it is told otherwise. Our
operators are in fp32 in any case. An inverse of standard operators has few right digits in bf16
where landmarks are nearly equal.

This file needs openvino and numpy. It needs neither torch nor mmlaplace: a copy beside run_onnx.py
is enough on another machine.
"""

from functools import cache
from pathlib import Path
from typing import Any, Callable, List, Optional, Tuple

import numpy as np

KEY = 'mmlaplace'
BUILD = 'python tools/deployment/build_openvino_ops.py'
CAPABILITIES = dict(f32='FP32', bf16='BF16', f16='FP16')
PRECISIONS = ('default', *CAPABILITIES)


def require_openvino() -> Any:
    """The package of OpenVINO, or an ImportError that names the extra that installs it."""
    try:
        import openvino
    except ImportError as error:
        raise ImportError(
            f'this needs openvino, which cannot be imported ({error}); install it with pip install '
            '"mmlaplace[openvino]"'
        ) from error
    return openvino


def version() -> str:
    """The version of the OpenVINO that is installed, such as ``'2026.4.1'``."""
    return require_openvino().__version__.split('-')[0]


def library_path() -> Path:
    """Where the library of our operators is for the OpenVINO that is installed."""
    folder = Path(__file__).resolve().parent.parent / 'lib'
    return folder / f'openvino_ops_{version()}.so'


def core_with(library: Optional[Path] = None) -> Any:
    """A ``Core`` of OpenVINO with our operators, always the same one for a library.

    It lives as long as the process. OpenVINO 2026.4 gives the thread a stack for signals with each
    core. If the first of two cores ends before the second, that stack is gone, and the next signal
    ends the process, such as that of a worker of torch's DataLoader which ends.

    Args:
        library: The library of the operators. Default: None, that of :func:`library_path` if it is
            there.

    Raises:
        ValueError: If the library cannot be loaded, as one for another version.
    """
    path = library or library_path()
    if library is None and not path.exists():
        return _core_with('')
    try:
        return _core_with(str(path.resolve()))
    except RuntimeError as error:
        raise ValueError(
            f'{path} cannot be loaded into OpenVINO {version()}; build it for this version: '
            f'{BUILD} ({error})'
        ) from error


_CORES: List[Any] = []  # of this process, also those that a library could not be loaded into


@cache
def _core_with(library: str) -> Any:
    _CORES.append(require_openvino().Core())
    if library:
        _CORES[-1].add_extension(library)
    return _CORES[-1]


def read_model(path: Path, core: Any) -> Any:
    """The model of an ONNX file or of a file of OpenVINO.

    Raises:
        FileNotFoundError: If its weights are missing, or the library of the operators it calls.
        ValueError: If it is damaged.
    """
    weights = path.with_suffix('.bin')
    if path.suffix == '.xml' and not weights.is_file():
        raise FileNotFoundError(f'{weights} is missing, which has the weights of {path}; copy both')
    try:
        return core.read_model(str(path))
    except RuntimeError as error:
        if 'mmlaplace' not in str(error):
            raise ValueError(
                f'{path} cannot be read by OpenVINO {version()} ({error}); export it again'
            ) from error
        raise FileNotFoundError(
            f'{path} calls operators of mmlaplace, and their library for OpenVINO {version()} is '
            f"missing: '{BUILD}' in a clone of mmlaplace makes it ({library_path()}); or export "
            'with --backend reference'
        ) from error


def facts_of(model: Any) -> Optional[str]:
    """The JSON that ``export.py`` wrote into a file, or None."""
    for place in ([KEY], ['framework', KEY]):  # of files of OpenVINO, and of ONNX files
        if model.has_rt_info(place):
            return str(model.get_rt_info(place).astype(str))
    return None


def default_precision(core: Any) -> str:
    """The precision that OpenVINO takes on this processor unless it is told otherwise."""
    chosen = core.get_property('CPU', 'INFERENCE_PRECISION_HINT').to_string()
    return dict(bfloat16='bf16', float32='f32', float16='f16').get(chosen, chosen)


def check_precision(core: Any, precision: str) -> None:
    """Raise a ValueError for a precision that this processor has no instructions for."""
    if precision not in PRECISIONS:
        raise ValueError(f'precision must be one of {PRECISIONS}, got {precision!r}')
    known = core.get_property('CPU', 'OPTIMIZATION_CAPABILITIES')
    if CAPABILITIES.get(precision, 'FP32') not in known:
        raise ValueError(
            f'OpenVINO has no {precision} on this processor, but {", ".join(known)}; take f32'
        )


def compiled(core: Any, model: Any, precision: str, threads: Optional[int] = None) -> Any:
    """A model compiled for the CPU, to answer one image as soon as possible.

    Args:
        core: Of :func:`core_with`.
        model: Of :func:`read_model`.
        precision: One of ``PRECISIONS``.
        threads: Default: None, all that OpenVINO takes.

    Raises:
        ValueError: As :func:`check_precision`.
    """
    check_precision(core, precision)
    options: dict = dict(PERFORMANCE_HINT='LATENCY')
    if precision != 'default':
        options['INFERENCE_PRECISION_HINT'] = precision
    if threads is not None:
        options['INFERENCE_NUM_THREADS'] = threads
    return core.compile_model(model, 'CPU', options)


def runner(model: Any) -> Callable[..., Tuple[np.ndarray, ...]]:
    """A function of arrays, of a compiled model. It is for one thread at a time."""
    request = model.create_infer_request()
    outputs = range(len(model.outputs))

    def run(*inputs: np.ndarray) -> Tuple[np.ndarray, ...]:
        # Not by infer(), which in OpenVINO 2026.4 gives memory without values where a node fails.
        request.start_async(dict(enumerate(inputs)))
        request.wait()
        # A later run writes over them.
        return tuple(request.get_output_tensor(place).data.copy() for place in outputs)

    return run
