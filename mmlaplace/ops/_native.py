"""Loads the compiled library and chooses the backend of each op.

The library is ``mmlaplace/_C*.so``, and on Windows ``mmlaplace/_C*.pyd``.

Every op has a plain PyTorch reference beside its public function. With the library, its ops are
``torch.ops.mmlaplace.<name>``, and ``backend='auto'`` uses them. Without it, the reference
computes, and one line of the log says so.
"""

import functools
import mmap
import platform
import re
from pathlib import Path
from typing import Any, Callable, ContextManager, Dict, List, Optional, Sequence, Tuple

import torch
import torch._functorch.utils
import torch.autograd.forward_ad as forward_ad
from mmengine.logging import print_log

from ._checks import is_compiling, is_transforming
from .backend import (
    _CHOSEN,
    _DEFAULT,
    check_backend,
    current_backend,
    exporting_to_onnx,
    native_ops,
)
from .precision import outside_autocast, widened


def build_info(library: Path) -> Dict[str, str]:
    """The build information of a compiled library, read from the file without loading it.

    Returns:
        ``torch_from`` (the oldest torch that it serves) or ``torch`` (the only one), ``machine``
        (such as ``'x86_64'``), ``sources`` (see :func:`~mmlaplace.ops._sources.source_state`), from
        torch 2.10 on ``namespace`` (of its ops) and, with CUDA sources, ``cuda`` and ``arches``
        (such as ``'800,900'``). Empty if the file is no library of mmlaplace.
    """
    stat = library.stat()
    return dict(_entries(library, stat.st_mtime_ns)) if stat.st_size else {}  # cannot be mapped


@functools.lru_cache  # a library for GPUs has tens of megabytes
def _entries(library: Path, changed: int) -> Tuple[Tuple[str, str], ...]:
    with library.open('rb') as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        entries = re.findall(rb'mmlaplace built for (\w+)=([\w.,]+)[;\0]', data)
    return tuple((key.decode(), value.decode()) for key, value in entries)


def this_machine() -> str:
    """The architecture of this machine, by its name in compilers."""
    name = platform.machine().lower()
    return {'amd64': 'x86_64', 'arm64': 'aarch64'}.get(name, name)


def serves(info: Dict[str, str], version: str) -> bool:
    """Whether a library with this build information serves torch ``version``.

    From torch 2.10 on, a library uses the stable ABI alone, and serves all later versions too. An
    older library serves the one version that it was compiled with, as C++ classes differ.
    """
    release = tuple(map(int, version.split('.')[:2]))
    if 'torch_from' in info:
        return release >= tuple(map(int, info['torch_from'].split('.')))
    return 'torch' not in info or release == tuple(map(int, info['torch'].split('.')))


def libraries_in(folder: Path) -> List[Path]:
    """The compiled libraries in ``folder``, by the endings of Linux and macOS, and of Windows."""
    return sorted(path for path in folder.glob('_C*') if path.suffix in ('.so', '.pyd'))


def load_library(folder: Path) -> Optional[str]:
    """Load the compiled library in ``folder``. Returns None, or the reason why this failed."""
    libraries = libraries_in(folder)
    if not libraries:
        return (
            'this installation of mmlaplace has no compiled library (mmlaplace/_C*.so); with a '
            "C++17 compiler, 'pip install --no-build-isolation -e .' in its source folder makes it"
        )
    infos = {library: build_info(library) for library in libraries}
    fitting = [library for library in libraries if serves(infos[library], torch.__version__)]
    if not fitting:  # the others are not even tried, as they may crash
        versions = ', '.join(
            info.get('torch') or f'{info["torch_from"]} and later' for info in infos.values()
        )
        return (
            f'{", ".join(library.name for library in libraries)} was compiled for torch '
            f'{versions}, and this is torch {torch.__version__}; run '
            "'pip install --no-build-isolation .' again"
        )
    machine = infos[fitting[0]].get('machine')
    if machine not in (None, this_machine()):
        return (
            f'{fitting[0].name} was compiled for {machine}, and this machine is {this_machine()}; '
            "run 'pip install --no-build-isolation .' again"
        )
    try:
        torch.ops.load_library(str(fitting[0]))
    except OSError as error:
        return f'{fitting[0].name} did not load with torch {torch.__version__}: {error}'
    return None


def serving_info(folder: Path) -> Dict[str, str]:
    """The build information of the library in ``folder`` that serves this torch, else empty."""
    infos = map(build_info, libraries_in(folder))
    return next((info for info in infos if serves(info, torch.__version__)), {})


FOLDER = Path(__file__).resolve().parent.parent
# Found once, at import, because a graph that torch.compile traces cannot look for files.
WHY_MISSING = load_library(FOLDER)
# A copy of the ops, as .dev_scripts/make_hf_kernel.py makes it, has another one.
NAMESPACE = serving_info(FOLDER).get('namespace', 'mmlaplace')
OPS = getattr(torch.ops, NAMESPACE)


def available() -> Dict[str, frozenset]:
    """The native ops, each with the device types that it has a kernel for."""
    if WHY_MISSING is not None:
        return {}
    return {
        name.split('::')[1].split('.')[0]: frozenset(
            device
            for device, key in (('cpu', 'CPU'), ('cuda', 'CUDA'))
            if torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
        )
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith(f'{NAMESPACE}::')
    }


AVAILABLE = available()
_LIBRARY = torch.library.Library(NAMESPACE, 'FRAGMENT')  # what it holds goes with it


def find(name: str) -> Optional[Callable]:
    """The compiled op ``torch.ops.mmlaplace.<name>``, or None if there is none."""
    return getattr(OPS, name).default if name in AVAILABLE else None


def compiled(name: str) -> Callable:
    """The compiled op, for code that runs only where :func:`find` has found it."""
    op = find(name)
    assert op is not None, name
    return op


def register(
    name: str, fake: Callable, autograd: Optional[Callable] = None, widen: bool = True
) -> None:
    """Register the device-independent parts of a compiled op. Without the op, do nothing.

    Args:
        name: The op's name. Its tensors come first, and numbers after them.
        fake: Makes its empty outputs, for tracing and meta tensors, see
            ``torch.library.register_fake``.
        autograd: Computes it and records its derivative, see :func:`below_autograd`. It is not
            called where nothing is recorded.
        widen: Whether an op with ``autograd`` gets its inputs in fp32 under autocast, see
            :func:`~.precision.fp32_under_autocast`. An op that reads fp16 and bf16 directly needs
            no such inputs. Default: True. Each op computes outside of autocast, as its derivative
            may call torch's products.
    """
    op = find(name)
    if op is None:
        return
    fake = _of_one_device(name, fake)
    if hasattr(torch.library, 'register_fake'):
        torch.library.register_fake(f'{NAMESPACE}::{name}')(fake)
    else:  # torch < 2.4
        _LIBRARY.impl(name, fake, 'Meta')
    if autograd is not None:
        _LIBRARY.impl(name, _where_recorded(op, autograd), 'Autograd')
    for device in ('CPU', 'CUDA'):
        rule = _without_autocast(op, device, widen and autograd is not None)
        _LIBRARY.impl(name, rule, f'Autocast{device}')


def _where_recorded(op: Callable, autograd: Callable) -> Callable:
    """``autograd``, where a derivative may be wanted, and else the op's kernel alone."""

    def compute(*inputs: Any) -> Any:
        recorded = torch.is_grad_enabled() and any(
            isinstance(value, torch.Tensor) and value.requires_grad for value in inputs
        )
        if recorded or forward_ad._current_level >= 0 or is_transforming():
            return autograd(*inputs)
        with below_autograd():
            return op(*inputs)

    return compute


def _without_autocast(op: Callable, device: str, widen: bool) -> Callable:
    """The op's rule under autocast on ``'CPU'`` or ``'CUDA'``, see :func:`register`."""
    autocast = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f'Autocast{device}'))

    def compute(*inputs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(autocast):
            return op(*(map(widened, inputs) if widen else inputs))

    return compute


def _of_one_device(name: str, fake: Callable) -> Callable:
    """``fake``, which raises if some tensors are meta and others are not.

    torch calls it if any of them is meta. Its outputs are made on the device of one tensor, and on
    a CPU they would be memory without values.
    """

    @functools.wraps(fake)
    def checked(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        devices = {value.device for value in given if isinstance(value, torch.Tensor)}
        if len(devices) > 1:
            raise RuntimeError(
                f'{name}: tensors are on several devices, {sorted(map(str, devices))}; move them '
                'to one, and give those on meta their values first'
            )
        return fake(*args, **kwargs)

    return checked


def define(schema: str, compute: Callable, fake: Callable, **others: Callable) -> None:
    """Define an op of Python for a CPU, which graphs of torch.compile hold as one node.

    Args:
        schema: Its name, arguments and results, such as ``'_twice(Tensor x) -> Tensor'``.
        compute: Computes it.
        fake: Makes its empty outputs, as for :func:`register`.
        **others: What computes it for further dispatch keys of torch, such as ``Autograd``.
    """
    name = schema.partition('(')[0]
    _LIBRARY.define(schema)
    fake = _of_one_device(name, fake)
    for key, function in dict(CPU=compute, Meta=fake, **others).items():
        _LIBRARY.impl(name, function, key)


def _below_autograd_in_old_torch() -> ContextManager:
    key = torch._C.DispatchKey
    keys = torch._C.DispatchKeySet(key.ADInplaceOrView)
    for autograd in (key.AutogradFunctionality, key.AutogradOther, key.AutogradNestedTensor):
        keys = keys | torch._C.DispatchKeySet(autograd)
    return torch._C._ExcludeDispatchKeyGuard(keys)


# A context in which an op is its kernel alone; registered derivatives compute in it. torch takes no
# note of views there: tokens whose heads a kernel wrote side by side are new memory to a user, who
# may change them in place.
below_autograd: Callable[[], ContextManager] = getattr(
    torch._C, '_AutoDispatchBelowADInplaceOrView', _below_autograd_in_old_torch
)


# An op refuses its inputs by the first, torch those that do not fit its schema by the others.
REFUSALS = (RuntimeError, TypeError, AttributeError)
# torch < 2.5 has it there alone.
OUT_OF_MEMORY = getattr(torch, 'OutOfMemoryError', torch.cuda.OutOfMemoryError)
# Bound here, as looking them up takes as long as calling them.
_is_tracing = torch._C._is_tracing
_is_transforming = torch._C._are_functorch_transforms_active
_is_grad_enabled = torch.is_grad_enabled


def door(name: str, can_run: Callable, call: Optional[Callable] = None) -> Callable[..., Any]:
    """The short way of a public function to its compiled op, for ``backend='auto'``.

    Checks in Python take longer than a small kernel. So the op comes first: torch's dispatcher
    chooses the kernel, the rule of autocast and whether autograd records, and C++ checks the
    inputs. ``can_run`` is asked after an error alone. If it gives a reason, the op has refused its
    inputs, and the public function goes the long way: checks that quote the values by their names,
    and then another kernel or the reference. Without a reason the error is of the op itself, such
    as too little memory, and is raised.

    Args:
        name: The op's name in :data:`NAMESPACE`.
        can_run: Gets the inputs of a call. It passes quietly if the compiled op takes them, and
            otherwise raises an error with the reason.
        call: Calls the op, if a public function has other inputs. Default: None, the op itself.

    Returns:
        ``(backend, *inputs) -> result``. The result is None where the long way decides.
    """
    call = call or find(name)

    def at_once(backend: str, *inputs: Any) -> Any:
        if (
            backend != 'auto'
            or is_compiling()
            or WHY_MISSING is not None
            or getattr(_CHOSEN, 'backend', _DEFAULT) != 'auto'  # current_backend(), without a call
            or _is_tracing()
            or _is_transforming()
        ):
            return None
        try:
            # A dual tensor has a derivative without a graph.
            if _is_grad_enabled() or forward_ad._current_level >= 0:
                return call(*inputs)  # type: ignore[misc]  # a TypeError without the op
            with below_autograd():
                return call(*inputs)  # type: ignore[misc]
        except OUT_OF_MEMORY:
            raise
        except REFUSALS:
            if _refuses(name, can_run, inputs):
                return None
            raise

    return at_once


def _refuses(name: str, can_run: Callable, inputs: Sequence[Any]) -> bool:
    """Whether a compiled op cannot run with these inputs, on their device or at all."""
    devices = [value.device for value in inputs if isinstance(value, torch.Tensor)]
    if not devices or why_not(name, devices[0].type) is not None:
        return True
    try:
        can_run(*inputs)
    except Exception:  # the long way has the same checks, and may raise it again
        return True
    return False


class Function(torch.autograd.Function):
    """torch's Function with a quicker ``apply``, whose backward computes outside of autocast.

    torch's own ``apply`` takes longer than a small kernel: it inspects the signature of ``forward``
    at each call, for default arguments. The functions here have none. A user may call backward
    under autocast, where torch's products would compute gradients in half precision.
    """

    bound_apply: Callable[..., Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.backward = staticmethod(outside_autocast(cls.backward))  # type: ignore[method-assign]
        # Bound here, for torch.compile. It traces ``apply`` where a backward runs outside of its
        # graphs, and a super() of such a class is an internal error there. A method of C++ breaks
        # the graph.
        base = super(torch.autograd.Function, cls)
        cls.bound_apply = base.apply  # type: ignore[attr-defined]  # torch's stub of it has no apply

    @classmethod
    def apply(cls, *args: Any) -> Any:
        if torch._C._are_functorch_transforms_active():
            return super().apply(*args)
        # torch's own does the rest in the same way.
        args = torch._functorch.utils.unwrap_dead_wrappers(args)
        return cls.bound_apply(*args)


def why_not(name: str, device_type: str) -> Optional[str]:
    """Why ``torch.ops.mmlaplace.<name>`` cannot run on ``device_type``, or None if it can."""
    if WHY_MISSING is not None:
        return WHY_MISSING
    if name not in AVAILABLE:
        return f'the compiled library has no op {name!r}'
    if device_type != 'meta' and device_type not in AVAILABLE[name]:
        return f'the compiled library was built without {name!r} for {device_type}'
    return why_not_on_this_gpu() if device_type == 'cuda' else None


def why_not_on_this_gpu() -> Optional[str]:
    """Why the library's code for GPUs does not run on the current one, or None if it does."""
    return _why_not_on_gpu(torch.cuda.current_device())


# Graphs cannot ask for it. torch.compiler.assume_constant_result sets this too, but imports all of
# torch._dynamo for it.
why_not_on_this_gpu._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _why_not_on_gpu(index: int) -> Optional[str]:
    return why_not_for(serving_info(FOLDER), torch.cuda.get_device_capability(index))


def why_not_for(info: Dict[str, str], capability: Tuple[int, int]) -> Optional[str]:
    """Why a library with this build information has no code for a GPU, or None if it has.

    Code for 8.0 runs on 8.6 too, but not on 7.5. For later GPUs the library has PTX, which the
    driver compiles.
    """
    arches = [
        (int(arch) // 100, int(arch) // 10 % 10)
        for arch in re.findall(r'\d+', info.get('arches', ''))
    ]
    fits = any(major == capability[0] and minor <= capability[1] for major, minor in arches)
    if fits or not arches or capability > max(arches):
        return None
    known = ', '.join(f'{major}.{minor}' for major, minor in arches)
    return (
        f'the compiled library is for GPUs of compute capability {known}, and this one has '
        f'{capability[0]}.{capability[1]}'
    )


def computes(name: str, device_type: str) -> bool:
    """Whether the compiled op computes, for an op without autograd and without ``backend=``."""
    return current_backend() != 'reference' and why_not(name, device_type) is None


def graph_gradients(
    function: Callable, needed: Sequence[bool], grad: torch.Tensor, *inputs: torch.Tensor
) -> Tuple[Optional[torch.Tensor], ...]:
    """The gradients of ``function(*inputs)`` by torch's own operations, which record a graph.

    A backward pass calls it for second derivatives. ``needed`` selects the inputs.
    """
    # Views, as an input may depend on another, and the gradients of a backward are partial ones.
    views = [tensor.view_as(tensor) for tensor in inputs]
    wanted = [tensor for tensor, need in zip(views, needed) if need]
    grads = iter(torch.autograd.grad(function(*views), wanted, grad, create_graph=True))
    return tuple(next(grads) if need else None for need in needed)


@functools.cache
def _log_fallback(reason: str) -> None:
    print_log(f'mmlaplace.ops: using the PyTorch reference, because {reason}.', logger='current')


def select(
    name: str, reference: Callable, device: torch.device, backend: str, pays: bool = True
) -> Callable:
    """The callable that computes op ``name`` on ``device``.

    Args:
        name: The op's name in :data:`NAMESPACE`.
        reference: Its plain PyTorch implementation, with the native op's positional arguments.
        device: Where the inputs are.
        backend: ``'auto'``, ``'native'`` or ``'reference'``. ``'auto'`` takes the backend of
            :func:`current_backend`. If this is ``'auto'`` too, the native op computes if it can
            run, and else the reference, with one line in the log.
        pays: Whether the native op is faster for these inputs. Otherwise ``'auto'`` takes the
            reference. Default: True.

    Raises:
        ValueError: For another ``backend``.
        RuntimeError: For ``'native'`` if the compiled op cannot run. The message says why and what
            to do.
    """
    check_backend(backend)
    if backend == 'auto':
        backend = 'native' if pays and name in native_ops() else current_backend()
    if backend == 'reference' or (backend == 'auto' and not pays):
        return reference
    to_onnx = exporting_to_onnx()
    if backend == 'auto' and to_onnx:
        return reference
    reason = why_not(name, device.type)
    if reason is None and not to_onnx:
        return getattr(OPS, name).default
    if backend == 'native':
        reason = 'ONNX has no such operator' if to_onnx else reason
        raise RuntimeError(
            f"backend='native' was asked for {name} on {device}, but {reason}. Use "
            "backend='auto' or 'reference', or install mmlaplace where it can compile its ops."
        )
    if not is_compiling():  # logging would break the graph
        _log_fallback(reason)
    return reference
