"""Functions of the command line tools for arguments, trained backbones and files."""

import argparse
import json
import os
import re
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, Mapping, NoReturn, Optional, Tuple, Type, Union

import torch
import torch.nn as nn
from mmengine.config import Config
from mmengine.registry import MODELS

from ..analysis.recording import IMAGENET
from ..checkpoints import UnsafeCheckpointError, load_weights, refuse_code
from ..config_files import config_file
from ..model_zoo import build_model
from ..models.known_options import KnownOptions
from ..writing import print_in_any_locale, write_whole
from .terminal import keep_noise_from_terminal

FOLDERS = ('out_dir', 'work_dir')  # arguments of tools that write several files
PICTURES = ('.jpeg', '.jpg', '.pdf', '.png', '.svg', '.webp')  # which matplotlib writes


def at_least(least: int, text: str) -> int:
    """An integer, for ``type=`` of an argument, with the least value filled in."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f'must be an integer of at least {least}, got {text}')
    return int(text)


positive = partial(at_least, 1)


class ToolParser(argparse.ArgumentParser):
    """A parser that shows the tool's docstring as help, and protects existing output files.

    Args:
        doc: ``__doc__`` of the tool, with an example. It is None under ``python -OO``.
        prog: Name of the command in messages. Default: None, that of the script.
    """

    def __init__(self, doc: Optional[str], prog: Optional[str] = None) -> None:
        print_in_any_locale()
        refuse_code()
        keep_noise_from_terminal()
        super().__init__(
            prog=prog, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        self.outputs: Dict[str, Tuple[str, ...]] = {}

    def error(self, message: str) -> NoReturn:
        """End with the error alone. The usage of a tool with many options would bury it."""
        of_argparse = message.startswith(('argument ', 'the following ', 'unrecognized '))
        self.exit(2, f'{self.prog}: error: {message}{"; see --help" if of_argparse else ""}\n')

    @contextmanager
    def refusing(self, *kinds: Type[Exception], start: str = '') -> Iterator[None]:
        """A context in which errors of these kinds end the tool with their text.

        Args:
            kinds: The classes of the errors.
            start: Text before that of the error.
        """
        try:
            yield
        except kinds as error:
            self.error(f'{start}{error}')

    def add_output(self, *names: str, suffixes: Tuple[str, ...] = (), **kwargs: Any) -> None:
        """Add an argument for an output file. The first one also adds ``--force``.

        Args:
            names: Of the argument.
            suffixes: With one of which the file's name must end. Default: any.
            kwargs: As of ``add_argument``.
        """
        if not self.outputs:
            self.add_argument('--force', action='store_true', help='replace files that are there')
        self.outputs[self.add_argument(*names, type=Path, **kwargs).dest] = suffixes

    def add_image_size(self, former: str = '', **kwargs: Any) -> None:
        """Add ``--image-size``, the one name of the size of images in all commands.

        Args:
            former: The name that it had before, which is still taken but in no help. Default: ''.
            kwargs: As of ``add_argument``.
        """
        self.add_argument('--image-size', **kwargs)
        if former:
            hidden = dict(dest='image_size', default=argparse.SUPPRESS, help=argparse.SUPPRESS)
            self.add_argument(former, **{**kwargs, **hidden})

    def add_trained_model(self, kind: str, named: bool = False) -> None:
        """Add the arguments ``config`` and ``checkpoint``.

        Args:
            kind: Of the model, for the help.
            named: Whether the checkpoint may be left out, as a config by the name of weights has
                these. Default: False.
        """
        self.add_argument('config', help=f'of a trained {kind}')
        self.add_argument(
            'checkpoint',
            nargs='?' if named else None,
            help='its weights: a path, an address, hf://OWNER/NAME, timm://NAME or mmlaplace://NAME',
        )

    def parse_args(self, args: Optional[Iterable[str]] = None, namespace: Any = None) -> Any:
        """Parse the arguments. The tool ends with an error if an output file already exists.

        With ``--force`` it may exist. A folder is an error in any case, and so are a place that
        cannot be written and a device that is not there.
        """
        parsed = super().parse_args(args, namespace)
        if str(getattr(parsed, 'device', '')).startswith('cuda') and not torch.cuda.is_available():
            self.error(f'--device {parsed.device}: torch finds no GPU; take --device cpu')
        if getattr(parsed, 'device', None):
            try:
                torch.empty(1, device=parsed.device)
            except (RuntimeError, AssertionError) as error:
                reason = str(error).splitlines()[0]
                self.error(
                    f'--device {parsed.device} does not work here ({reason}); try --device cpu'
                )
            device = torch.device(parsed.device)
            if device.type == 'cuda' and device.index is not None:
                torch.cuda.set_device(device)  # clocks and counters of memory ask the current one
        for name in FOLDERS:
            folder = getattr(parsed, name, None)
            if isinstance(folder, Path):
                self.check_folder(f'--{name.replace("_", "-")}', folder)
        for name, suffixes in self.outputs.items():
            path = getattr(parsed, name)
            if path is None:
                continue
            if suffixes and path.suffix.lower() not in suffixes:
                self.error(f'{path} must end with one of {", ".join(suffixes)}')
            self.check_output(path, parsed.force)
        return parsed

    def check_output(self, path: Path, force: bool) -> None:
        """End with an error if an output file is there and not to be replaced, or cannot be."""
        if path.is_dir():
            self.error(f'{path} is a folder; name a file in it')
        if path.exists() and not force:
            self.error(f'{path} is there already; --force replaces it')
        self.check_place(path)

    def check_folder(self, option: str, folder: Path) -> None:
        """End with an error if a folder for output is a file, or cannot be written."""
        if folder.is_file():
            self.error(f'{option} {folder} is a file; name a folder')
        self.check_place(folder)

    def check_place(self, path: Path) -> None:
        """End with an error if a file or folder cannot be written, before any work is done."""
        folders = [path] if path.is_dir() else path.absolute().parents
        above = next(folder for folder in folders if folder.exists())
        if not above.is_dir():
            self.error(f'{path} cannot be written, as {above} is a file; name another place')
        if not os.access(above, os.W_OK):
            self.error(f'{path} cannot be written, as {above} may not be; name another place')


def without_hint(error: ValueError) -> str:
    """The message of :func:`load_weights` without its hint at an argument.

    That argument is for Python code. The tools have no option for it.
    """
    return re.split('(?:;|, or,) if that is meant', str(error))[0]


def end_tool(message: str) -> NoReturn:
    """End the tool with its name and an error message."""
    name = Path(sys.argv[0]).name
    name = 'python -m mmlaplace' if name == '__main__.py' else name
    sys.exit(f'{name}: error: {message}')


def read_config(
    path: Union[str, os.PathLike], *keys: str, options: Optional[dict] = None
) -> Config:
    """Read a config by its path, or by a name as ``mmdet::…``, and change its options.

    The tool ends with an error if there is no such file, if it is no config, or if it lacks one of
    ``keys``, such as ``'model.backbone'``.
    """
    try:
        file = config_file(str(path))
    except (ImportError, OSError, ValueError) as error:
        end_tool(str(error))
    if not os.path.isfile(file):
        end_tool(f'there is no config {path}; check the path')
    try:
        cfg = Config.fromfile(file)
    except Exception as error:  # a config in Python can raise any
        reason = f'{type(error).__name__}: {error}'
        end_tool(f'{path} cannot be read as a config ({reason}); mend it, or name another one')
    change_options(cfg, options)
    for key in keys:
        value = cfg
        for part in key.split('.'):
            value = value.get(part) if isinstance(value, (Config, dict)) else None
        if value is None:
            end_tool(f'{path} has no {key}; name a whole config, and no base')
    return cfg


def read_json(path: Path, *keys: str) -> Any:
    """Read a JSON file.

    The tool ends with an error if there is none, if it is cut off, or if it has not all ``keys``.
    """
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        end_tool(f'{path} cannot be read as JSON ({error}); check the path, or make the file again')
    missing = [key for key in keys if not isinstance(content, dict) or key not in content]
    if missing:
        end_tool(
            f'{path} has no {missing}, so it is of another tool or an older version; --help says '
            'which file it must be'
        )
    return content


def load_or_exit(model: nn.Module, checkpoint: str, **kwargs: Any) -> None:
    """Call :func:`load_weights`. If it refuses the checkpoint, the tool ends with its message."""
    try:
        load_weights(model, checkpoint, **kwargs)
    except (UnsafeCheckpointError, FileNotFoundError, ImportError) as error:
        end_tool(str(error))
    except ValueError as error:
        end_tool(without_hint(error))


def trained_model(args: argparse.Namespace, *keys: str) -> Tuple[Config, Any]:
    """The config of a tool's arguments, and its model with the weights, in eval mode.

    Args:
        args: With ``config, checkpoint, device`` and ``cfg_options``.
        keys: What the config must have, beside a backbone.
    """
    needed = ('default_scope', 'model.backbone', *keys)
    cfg = read_config(args.config, *needed, options=args.cfg_options)
    if cfg.model.backbone.get('with_cp'):
        cfg.model.backbone.with_cp = False  # layers would run, and be recorded, twice
    check_backbone(cfg, args.config)
    model = build_model(cfg)
    load_or_exit(model, args.checkpoint, min_matched=1)
    model.to(args.device).eval()  # which returns nothing in some toolboxes
    return cfg, model


def check_backbone(cfg: Config, path: str) -> None:
    """End the tool with one sentence if a backbone of ours refuses its options.

    A tool calls it before the work begins, whose log would come between. Nothing is computed.
    """
    options = dict(cfg.get('model', {}).get('backbone') or {}, init_cfg=None)
    kind = options.get('type')
    cls = MODELS.get(kind) if isinstance(kind, str) else kind
    if not (isinstance(cls, type) and issubclass(cls, KnownOptions)):
        return
    try:
        with torch.device('meta'):
            MODELS.build(options)
    except (TypeError, ValueError) as error:
        end_tool(f'{path}: {error}')


def build_backbone(config: str, checkpoint: Optional[str] = None) -> nn.Module:
    """Build the backbone of a config in eval mode. Without a checkpoint its weights are random."""
    cfg = read_config(config, 'model.backbone')
    check_backbone(cfg, config)
    backbone_cfg = cfg.model.backbone
    try:
        backbone = MODELS.build(dict(backbone_cfg, init_cfg=None))
    except KeyError as error:  # of the registry, in many words
        end_tool(
            f'{config} has a backbone of type {backbone_cfg.get("type")!r}, which is none of '
            f'mmlaplace ({str(error).splitlines()[0]})'
        )
    if not hasattr(backbone, 'stages'):
        end_tool(f'{config} has a {type(backbone).__name__}, which has no stages of maps')
    backbone.eval()  # which returns nothing in some toolboxes
    if checkpoint is not None:
        load_or_exit(backbone, checkpoint)
    return backbone


def preprocessor_of(config: str) -> Mapping[str, Any]:
    """The ``data_preprocessor`` of a config, for :func:`~mmlaplace.analysis.recording.normalized`.

    A config without one, such as one of a backbone alone, gets ImageNet's.
    """
    cfg = read_config(config)
    return cfg.get('model', {}).get('data_preprocessor') or cfg.get('data_preprocessor') or IMAGENET


def write_json(path: Path, content: dict) -> None:
    """Write a JSON file as :func:`write_whole` does."""
    write_whole(path, json.dumps(content, indent=2) + '\n')


def change_options(cfg: Config, options: Optional[dict]) -> None:
    """Set the options of ``--cfg-options`` in a config.

    The tool ends with an error if one names a part of a value that has no parts, as with
    ``model.backbone.init_cfg.checkpoint`` where ``init_cfg`` is None.
    """
    try:
        cfg.merge_from_dict(options or {})
    except TypeError as error:
        given = ' '.join(f'{name}={value}' for name, value in (options or {}).items())
        reason = str(error).split('. ')[0]  # mmengine's advice behind it is for files
        whole = 'write the whole value into a config, with this one as its _base_'
        end_tool(f'--cfg-options {given} cannot be set: {reason}; {whole}')
