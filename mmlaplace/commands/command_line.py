"""What the command line tools share: their arguments, trained backbones, and files."""

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
    """Takes its help from the tool's docstring, and keeps files that are there already.

    Args:
        doc: ``__doc__`` of the tool, with an example.
    """

    def __init__(self, doc: str) -> None:
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.outputs: List[str] = []

    def add_output(self, *names: str, **kwargs: Any) -> None:
        """An argument that is a file to write; ``--force`` comes with the first."""
        if not self.outputs:
            self.add_argument('--force', action='store_true', help='replace files that are there')
        self.outputs.append(self.add_argument(*names, type=Path, **kwargs).dest)

    def add_trained_model(self, kind: str) -> None:
        """A config and a checkpoint."""
        self.add_argument('config', help=f'of a trained {kind}')
        self.add_argument('checkpoint', help='its weights')

    def parse_args(self, args: Optional[Iterable[str]] = None, namespace: Any = None) -> Any:
        """The arguments, unless a file to write is there and may not be replaced."""
        parsed = super().parse_args(args, namespace)
        for path in (getattr(parsed, name) for name in self.outputs):
            if path is not None and path.is_dir():
                self.error(f'{path} is a folder; name a file in it')
            if path is not None and path.exists() and not parsed.force:
                self.error(f'{path} is there already; --force replaces it')
        return parsed


def without_hint(error: ValueError) -> str:
    """What :func:`load_weights` says, but for its hint at an argument, for who writes no Python."""
    return re.split('(?:;|, or,) if that is meant', str(error))[0]


def read_config(path: str) -> Config:
    """The config of a file; where there is none, the tool ends with a message."""
    if not os.path.isfile(path):
        sys.exit(f'{Path(sys.argv[0]).name}: error: there is no config {path}; check the path')
    return Config.fromfile(path)


def load_or_exit(model: nn.Module, checkpoint: str, **kwargs: Any) -> None:
    """:func:`load_weights`; a checkpoint that it refuses ends the tool with its message."""
    try:
        load_weights(model, checkpoint, **kwargs)
    except (UnsafeCheckpointError, FileNotFoundError) as error:
        sys.exit(f'{Path(sys.argv[0]).name}: error: {error}')
    except ValueError as error:
        sys.exit(f'{Path(sys.argv[0]).name}: error: {without_hint(error)}')


def build_backbone(config: str, checkpoint: Optional[str] = None) -> nn.Module:
    """The backbone of a config, in eval mode. Without a checkpoint its weights are random."""
    backbone = MODELS.build(dict(read_config(config).model.backbone, init_cfg=None)).eval()
    if checkpoint is not None:
        load_or_exit(backbone, checkpoint)
    return backbone


def write_whole(path: Path, text: str) -> None:
    """Write a file in one step, so that it is there whole or not at all."""
    beside = path.with_name(f'{path.name}.{os.getpid()}.part')
    beside.write_text(text)
    os.replace(beside, path)


def write_json(path: Path, content: dict) -> None:
    """Write a file whole, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(content, indent=2) + '\n')
