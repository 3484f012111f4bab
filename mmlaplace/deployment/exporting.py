"""Write whole models as ONNX, OpenVINO, torch.export or AOTInductor files, and run such files."""

import contextlib
import json
from importlib import import_module
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Callable, ContextManager, Dict, Iterator, Optional, Sequence, Tuple

import torch
from torch import Tensor

from ..dependencies import missing_package
from ..ops.backend import only_native, use_backend
from ..ops.inverse_steps import STEPS
from ..writing import whole_file
from . import onnx_forms, onnx_ops, openvino_runtime
from .deployable import Deployable, NotDeployableError

SUFFIXES = {'onnx': '.onnx', 'openvino': '.xml', 'pt2': '.pt2', 'aoti': '.aoti.pt2'}
NEEDED = {
    'onnx': ('onnx', 'onnxscript'),
    'openvino': ('onnx', 'onnxscript', 'openvino'),
    'pt2': (),
    'aoti': (),
}
EXTRAS = {'openvino': 'openvino'}  # of packages that others do not bring
OPSET = 18
STRIDE = 32  # of the last maps
MULTIPLES = (1, 16, STRIDE)  # of sides in a dynamic file: the first that works
DEFERRED = 'prefer_deferred_runtime_asserts_over_guards'  # an option of torch.export
LARGEST = 4096  # side, in pixels, and number of images in a batch
KEY = 'mmlaplace'  # what the file says of itself is found under it


def require_packages(*names: str) -> None:
    """Raise an ImportError for a missing package. It names the extra that installs the package."""
    for name in names:
        try:
            import_module(name)
        except ImportError as error:
            raise missing_package(name, EXTRAS.get(name, 'deploy'), error) from error


def describe(
    form: Deployable,
    size: Tuple[int, int],
    program: torch.export.ExportedProgram,
    pipeline: Dict[str, Any],
    **more: Any,
) -> Dict[str, Any]:
    """The metadata of an exported file, which users of the file need.

    Args:
        form: The model.
        size: Height and width of its example.
        program: Its graph.
        pipeline: How images are prepared, see
            :func:`~mmlaplace.deployment.toolbox_pipeline.described_pipeline`.
        **more: Further facts, such as ``classes``, the names of the classes by their labels.
    """
    shape = next(node.meta['val'].shape for node in program.graph.nodes if node.target == 'images')
    fixed = all(isinstance(side, int) for side in shape[2:])
    multiple = form.multiple if fixed else _multiple(shape[3])
    # What the preprocessor pads is mean + value * std of the pixels that it normalises.
    padding = (form.mean + form.pad_value * form.std).flatten().tolist()
    return dict(
        task=form.task,
        inputs=list(form.inputs),
        outputs=list(form.outputs),
        batch=shape[0] if isinstance(shape[0], int) else None,
        size=list(size) if fixed else None,
        multiple=multiple,
        least=1 if fixed else least_side(multiple),
        mean=form.mean.flatten().tolist(),
        std=form.std.flatten().tolist(),
        pad=dict(multiple=form.multiple, size=form.least_size, value=padding),
        **pipeline,
        **form.details,
        **more,
    )


def _multiple(side: Any) -> int:
    """The number of which a symbolic side is a multiple."""
    return int(side.node.expr.as_coeff_Mul()[0])


def capture(
    form: Deployable,
    size: Tuple[int, int],
    batch: int = 1,
    dynamic: bool = False,
    tell: Optional[Callable[[str], Any]] = None,
) -> torch.export.ExportedProgram:
    """The graph of a model.

    Args:
        form: The model.
        size: Height and width of the images; with ``dynamic`` an example.
        batch: Number of images. Default: 1.
        dynamic: Whether the number and the size of images may differ. The sides may then be any
            above 32, or, where the model does not allow for that, multiples of 16 or 32 that
            ``size`` is one of. With windows the size is fixed, and the number of images may differ.
            Default: False.
        tell: Called with a sentence before each of the attempts, which take up to minutes. Default:
            None.

    Raises:
        NotDeployableError: If the model cannot be captured. The message says why.
    """
    if not hasattr(torch.export, 'Dim'):
        raise NotDeployableError(
            f'torch.export of torch {torch.__version__} has no dynamic sizes; export with '
            'torch >= 2.6. An ONNX file then runs without torch, and the other files with that '
            'torch'
        )
    if form.max_batch is not None and batch > form.max_batch:
        raise NotDeployableError(
            f'a detector can only be exported for one image at a time, got a batch of {batch}'
        )
    if any(side % form.multiple for side in size):
        raise NotDeployableError(
            f'height and width must be multiples of {form.multiple}, got {size[0]} x {size[1]}; '
            'take the next larger ones, to which images are padded'
        )
    reasons = []
    # The exporter cannot prove for sides of any length that 4 rows of a map are fewer than all.
    # With this option, of torch 2.9 and later, it leaves such questions to the run.
    known = signature(torch.export.export).parameters
    options: Dict[str, Any] = {DEFERRED: True} if DEFERRED in known else {}
    for what, shapes, example in _choices(form, size, batch, dynamic):
        if tell is not None:
            tell(f'exporting for {what}')
        try:
            with torch.no_grad():
                return torch.export.export(
                    form, example, dynamic_shapes=shapes, strict=False, **options
                )
        except Exception as error:  # the exporter raises errors of many classes
            reasons.append(f'{type(error).__name__}: {_first_lines(error)}')
    hint = '; try it without --dynamic' if dynamic else ''
    raise NotDeployableError(
        f'torch.export cannot export this {type(form.model).__name__}{hint}: {reasons[-1]}'
    )


def _choices(form: Deployable, size: Tuple[int, int], batch: int, dynamic: bool) -> Iterator[tuple]:
    """Ranges of shapes in words and numbers, the widest first, each with inputs as an example."""
    if not dynamic:
        images = torch.zeros(batch, form.channels, *size)
        yield f'{batch} x {size[0]} x {size[1]}', None, form.given(images)
        return
    batches = {} if form.max_batch else {0: torch.export.Dim('batch', min=1, max=LARGEST)}
    example = 1 if form.max_batch else max(batch, 2)
    others = (None,) * (len(form.inputs) - 1)
    if form.has_windows:
        if form.max_batch:
            raise NotDeployableError(
                '--dynamic has no effect for a detector with windows, which takes one image of a '
                'fixed size; export it once for each --image-size, without --dynamic'
            )
        images = torch.zeros(example, form.channels, *size)
        yield f'any number of {size[0]} x {size[1]}', (batches, *others), form.given(images)
        return
    # The graph must take images of the size, and all that the preprocessor pads.
    multiples = {form.multiple}
    for multiple in MULTIPLES:
        if multiple % form.multiple == 0 and not any(side % multiple for side in size):
            multiples.add(multiple)
    for multiple in sorted(multiples):
        sides = {2: _side('height', multiple), 3: _side('width', multiple)}
        least = least_side(multiple)
        height, width = (max(-(-side // multiple) * multiple, least) for side in size)
        if height == width:  # which would be taken for one size
            width += max(multiple, STRIDE)
        images = torch.zeros(example, form.channels, height, width)
        what = 'sides of any length' if multiple == 1 else f'sides that are multiples of {multiple}'
        yield what, ({**batches, **sides}, *others), form.given(images)


def least_side(multiple: int) -> int:
    """The least side of images for a dynamic file whose sides are multiples of a number."""
    # Of 32 pixels the last map would be 1, which is a case of its own.
    return (STRIDE // multiple + 1) * multiple


def _side(name: str, multiple: int) -> Any:
    least, most = least_side(multiple) // multiple, LARGEST // multiple
    if multiple == 1:
        return torch.export.Dim(name, min=least, max=most)
    return multiple * torch.export.Dim(f'{name}_{multiple}', min=least, max=most)


def _first_lines(error: Exception, count: int = 3) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ' '.join(lines[:count])


def backend_of(kind: str, backend: str) -> ContextManager[None]:
    """The context in which a model is captured for a format, with ``'reference'`` or ``'native'``.

    For ONNX and OpenVINO only the ops of :data:`~mmlaplace.deployment.onnx_ops.OPS` can be native.
    Without them, their graphs have the steps of an inverse as one node, which
    :mod:`~mmlaplace.deployment.onnx_forms` writes as standard operators.
    """
    if kind not in ('onnx', 'openvino'):
        return use_backend(backend)
    return only_native((*onnx_ops.OPS, STEPS) if backend == 'native' else (STEPS,))


def write_onnx(program: torch.export.ExportedProgram, path: Path, about: dict) -> None:
    """An ONNX file of one piece, by the exporter of torch.onnx."""
    require_packages(*NEEDED['onnx'])
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass
    from onnxscript import optimizer

    translations = onnx_forms.forms()
    if about.get('backend') == 'native':
        translations.update(onnx_ops.translations())
    # It names what it does not translate, and the versions of onnxscript.
    exported = torch.onnx.export(
        program,
        (),
        input_names=about['inputs'],
        output_names=about['outputs'],
        opset_version=OPSET,
        custom_translation_table=translations,
        dynamo=True,
        verbose=False,
        optimize=False,
    )
    assert exported is not None  # by the exporter of torch.export, which dynamo=True asks for
    # The exporter's own optimisation has these and a search for patterns, whose time is quadratic
    # in the nodes: minutes for a LaplacianFormer. Runtimes search for patterns themselves.
    optimizer.inline(exported.model)
    optimizer.fold_constants(exported.model)
    optimizer.remove_unused_nodes(exported.model)
    # The exporter's notes of where nodes come from are up to half of a small file, and some have
    # the folders of this machine.
    ClearMetadataAndDocStringPass()(exported.model)
    exported.model.metadata_props[KEY] = json.dumps(about)
    exported.save(str(path), external_data=False)


def write_openvino(program: torch.export.ExportedProgram, path: Path, about: dict) -> None:
    """A file of OpenVINO, and its weights beside it, whose name ends with ``.bin``.

    Raises:
        FileNotFoundError: If it is to call our operators, and their library is missing.
    """
    with TemporaryDirectory() as folder:
        onnx_file = Path(folder, 'model.onnx')
        write_onnx(program, onnx_file, about)
        convert_to_openvino(onnx_file, path, about)


def convert_to_openvino(onnx_file: Path, path: Path, about: dict) -> None:
    """As :func:`write_openvino`, from an ONNX file."""
    model = openvino_runtime.read_model(onnx_file, openvino_runtime.core_with())
    save_openvino(model, path, about)


def save_openvino(model: Any, path: Path, about: dict) -> None:
    """Write a model of OpenVINO, its weights beside it, and the metadata."""
    openvino = openvino_runtime.require_openvino()
    model.set_rt_info(json.dumps(about), [KEY])
    with TemporaryDirectory() as folder:
        written = Path(folder, 'model.xml')
        openvino.save_model(model, str(written), compress_to_fp16=about.get('precision') == 'fp16')
        with whole_file(path.with_suffix('.bin')) as weights, whole_file(path) as graph:
            weights.write_bytes(written.with_suffix('.bin').read_bytes())
            graph.write_bytes(written.read_bytes())


def write_pt2(program: torch.export.ExportedProgram, path: Path, about: dict) -> None:
    """A file of torch.export."""
    torch.export.save(program, str(path), extra_files={KEY: json.dumps(about)})


def write_aoti(program: torch.export.ExportedProgram, path: Path, about: dict) -> None:
    """A package of AOTInductor: a library for machines like this one, with the weights."""
    from torch._inductor import aoti_compile_and_package

    options = {'aot_inductor.metadata': {KEY: json.dumps(about)}}
    aoti_compile_and_package(program, package_path=str(path), inductor_configs=options)


WRITERS = {
    'onnx': write_onnx,
    'openvino': write_openvino,
    'pt2': write_pt2,
    'aoti': write_aoti,
}


def write(kind: str, program: torch.export.ExportedProgram, path: Path, about: dict) -> None:
    """Write a file whole or not at all."""
    if kind == 'openvino':  # which are two files
        return write_openvino(program, path, about)
    with whole_file(path) as temporary:
        WRITERS[kind](program, temporary, about)


def check_providers(providers: Sequence[str]) -> None:
    """Raise a ValueError for an execution provider that this ONNX Runtime does not have.

    ONNX Runtime itself would take the CPU in its place.
    """
    require_packages('onnxruntime')
    import onnxruntime

    available = onnxruntime.get_available_providers()
    missing = [name for name in providers if name not in available]
    if missing:
        raise ValueError(
            f'ONNX Runtime has no provider {", ".join(missing)} here, but {", ".join(available)}; '
            'take one of them, or install a build of ONNX Runtime with that provider'
        )


def open_onnx(
    path: Path, providers: Sequence[str] = ('CPUExecutionProvider',), threads: Optional[int] = None
) -> Tuple[Callable, dict]:
    """A function that runs an ONNX file, and the file's metadata.

    Args:
        path: The file.
        providers: Execution providers of ONNX Runtime, in order of preference. Default:
            ``('CPUExecutionProvider',)``.
        threads: Threads of an operator. Default: as many as torch has.

    Raises:
        FileNotFoundError: If the file calls mmlaplace's operators and their library is missing.
        ValueError: If the file is damaged, or was not made by ``export.py``, or if a provider is
            missing or cannot start.
    """
    check_providers(providers)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = threads or torch.get_num_threads()
    # Its idle threads would wait busily after a run, and take the cores of what runs next.
    options.add_session_config_entry('session.force_spinning_stop', '1')
    if onnx_ops.LIBRARY.exists():
        options.register_custom_ops_library(str(onnx_ops.LIBRARY))
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=list(providers))
    except Exception as error:  # it has classes of its own
        missing = onnx_ops.why_missing(error)
        if not missing:
            raise ValueError(f'{path} cannot be read as ONNX ({error}); export it again') from error
        raise FileNotFoundError(f'{path}: {missing}') from error
    if fallen := [name for name in providers if name not in session.get_providers()]:
        raise ValueError(f'the provider {", ".join(fallen)} cannot start here; take another one')
    if KEY not in session.get_modelmeta().custom_metadata_map:
        raise ValueError(
            f'{path} was not made by export.py, as it does not say for what task it is'
        )

    names = [value.name for value in session.get_inputs()]

    def run(*inputs: Tensor) -> Tuple[Tensor, ...]:
        arrays = {name: value.numpy() for name, value in zip(names, inputs)}
        return tuple(torch.from_numpy(output) for output in session.run(None, arrays))

    return run, json.loads(session.get_modelmeta().custom_metadata_map[KEY])


def open_openvino(
    path: Path, precision: str = 'f32', threads: Optional[int] = None
) -> Tuple[Callable, dict]:
    """A function that runs a file in OpenVINO, and the file's metadata.

    Args:
        path: A file of OpenVINO, with its weights beside it, or an ONNX file.
        precision: ``'f32'`` (default), ``'bf16'``, ``'f16'``, or ``'default'``, which OpenVINO
            chooses by the processor.
        threads: Default: as many as torch has.

    Raises:
        FileNotFoundError: If a part of it is missing, or the library of operators that it calls.
        ValueError: If it is damaged, or was not made by ``export.py``, or for a precision that the
            processor does not have.
    """
    core = openvino_runtime.core_with()
    model = openvino_runtime.read_model(path, core)
    about = openvino_runtime.facts_of(model)
    if about is None:
        raise ValueError(
            f'{path} was not made by export.py, as it does not say for what task it is'
        )
    threads = threads or torch.get_num_threads()
    run_arrays = openvino_runtime.runner(openvino_runtime.compiled(core, model, precision, threads))

    def run(*inputs: Tensor) -> Tuple[Tensor, ...]:
        return tuple(torch.from_numpy(one) for one in run_arrays(*(x.numpy() for x in inputs)))

    return run, json.loads(about)


def open_pt2(path: Path) -> Tuple[Callable, dict]:
    with contextlib.suppress(ImportError):
        import torchvision  # noqa: F401  (a detector has its NMS and RoIAlign)
    extra = {KEY: ''}
    module = torch.export.load(str(path), extra_files=extra).module()
    return _no_grad(module), json.loads(extra[KEY])


def open_aoti(path: Path) -> Tuple[Callable, dict]:
    package = torch._inductor.aoti_load_package(str(path))
    return _no_grad(package), json.loads(package.get_metadata()[KEY])


def _no_grad(run: Callable) -> Callable:
    @torch.no_grad()
    def tensors(*inputs: Tensor) -> Tuple[Tensor, ...]:
        return tuple(run(*inputs))

    return tensors


OPENERS: Dict[str, Callable] = {
    'onnx': open_onnx,
    'openvino': open_openvino,
    'pt2': open_pt2,
    'aoti': open_aoti,
}


def open_exported(path: Path, **options: Any) -> Tuple[Callable, dict]:
    """A function that runs a file, from its inputs to tuples of tensors, and the file's metadata.

    Args:
        path: The file. Its name ends with one of ``SUFFIXES``.
        **options: Arguments of :func:`open_onnx` or :func:`open_openvino`.

    Raises:
        FileNotFoundError: If it is not there, or as in :func:`open_onnx`.
        ValueError: If its name has another ending, or as in :func:`open_onnx`.
    """
    if not path.is_file():
        raise FileNotFoundError(f'there is no file {path}; export.py makes it')
    kinds = [kind for kind, suffix in SUFFIXES.items() if path.name.endswith(suffix)]
    if not kinds:
        raise ValueError(f'a file must end with one of {tuple(SUFFIXES.values())}, got {path}')
    kind = max(kinds, key=lambda kind: len(SUFFIXES[kind]))  # .aoti.pt2 ends with .pt2 too
    return OPENERS[kind](path, **options)
