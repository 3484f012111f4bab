"""Functions of the command line tools for arguments, trained backbones and files."""

import argparse
import json
import os
import re
import sys
from pathlib import Path
from typing import Any, Iterable, List, Optional

import torch.nn as nn
from mmengine.config import Config
from mmengine.registry import MODELS

from ..checkpoints import UnsafeCheckpointError, load_weights


class ToolParser(argparse.ArgumentParser):
    """A parser that shows the tool's docstring as help, and protects existing output files.

    Args:
        doc: ``__doc__`` of the tool, with an example.
    """

    def __init__(self, doc: str) -> None:
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.outputs: List[str] = []

    def add_output(self, *names: str, **kwargs: Any) -> None:
        """Add an argument for an output file. The first one also adds ``--force``."""
        if not self.outputs:
            self.add_argument('--force', action='store_true', help='replace files that are there')
        self.outputs.append(self.add_argument(*names, type=Path, **kwargs).dest)

    def add_trained_model(self, kind: str) -> None:
        """Add the arguments ``config`` and ``checkpoint``."""
        self.add_argument('config', help=f'of a trained {kind}')
        self.add_argument(
            'checkpoint', help='its weights: a path, an address, hf://OWNER/NAME or timm://NAME'
        )

    def parse_args(self, args: Optional[Iterable[str]] = None, namespace: Any = None) -> Any:
        """Parse the arguments. The tool ends with an error if an output file already exists.

        With ``--force`` it may exist. A folder is an error in any case.
        """
        parsed = super().parse_args(args, namespace)
        for path in (getattr(parsed, name) for name in self.outputs):
            if path is not None and path.is_dir():
                self.error(f'{path} is a folder; name a file in it')
            if path is not None and path.exists() and not parsed.force:
                self.error(f'{path} is there already; --force replaces it')
        return parsed


def without_hint(error: ValueError) -> str:
    """The message of :func:`load_weights` without its hint at an argument.

    That argument is for Python code. The tools have no option for it.
    """
    return re.split('(?:;|, or,) if that is meant', str(error))[0]


def read_config(path: str) -> Config:
    """Read a config. The tool ends with an error if there is no such file."""
    if not os.path.isfile(path):
        sys.exit(f'{Path(sys.argv[0]).name}: error: there is no config {path}; check the path')
    return Config.fromfile(path)


def load_or_exit(model: nn.Module, checkpoint: str, **kwargs: Any) -> None:
    """Call :func:`load_weights`. If it refuses the checkpoint, the tool ends with its message."""
    try:
        load_weights(model, checkpoint, **kwargs)
    except (UnsafeCheckpointError, FileNotFoundError, ImportError) as error:
        sys.exit(f'{Path(sys.argv[0]).name}: error: {error}')
    except ValueError as error:
        sys.exit(f'{Path(sys.argv[0]).name}: error: {without_hint(error)}')


def build_backbone(config: str, checkpoint: Optional[str] = None) -> nn.Module:
    """Build the backbone of a config in eval mode. Without a checkpoint its weights are random."""
    backbone = MODELS.build(dict(read_config(config).model.backbone, init_cfg=None)).eval()
    if checkpoint is not None:
        load_or_exit(backbone, checkpoint)
    return backbone


def write_whole(path: Path, text: str) -> None:
    """Write a file in one step. If the process is killed, no partial file is left in its place."""
    beside = path.with_name(f'{path.name}.{os.getpid()}.part')
    beside.write_text(text)
    os.replace(beside, path)


def write_json(path: Path, content: dict) -> None:
    """Write a JSON file as :func:`write_whole` does. Its folder is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(content, indent=2) + '\n')
