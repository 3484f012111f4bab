"""The models of the explorer: attentions on hosts with random weights, and what was trained."""

import hashlib
import json
import warnings
from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

import torch
import torch.nn as nn
from mmengine.config import Config
from mmengine.registry import MODELS

from mmlaplace.analysis.recording import IMAGENET
from mmlaplace.commands.command_line import preprocessor_of, without_hint
from mmlaplace.engine import UnsafeCheckpointError, load_weights, read_state_dict
from mmlaplace.lab.side_by_side.attention_study import (
    BASE,
    HOSTS,
    STUDIES,
    backbone_cfg,
    candidates,
)

ATTENTIONS = candidates()
QUICK_START = 'quick start'
RANDOM = 'random weights'
SIDE = 224  # of the images that models with random weights are built for
MOST_BUILT = 32


class Source(NamedTuple):
    """How a model is made.

    Attributes:
        title: The attention and the host, or the name of the config.
        backbone: Config of the backbone.
        checkpoint: Its weights. Random ones if None.
        weights: What the weights are, in words.
        preprocessor: How images are normalised, as in a config. Default: ImageNet's.
    """

    title: str
    backbone: dict
    checkpoint: Union[Path, str, None] = None
    weights: str = RANDOM
    preprocessor: Mapping[str, Any] = IMAGENET


def untrained(attention: str, host: str, side: int = SIDE) -> Source:
    """An attention on a host, with random weights, for images of a side.

    Raises:
        ValueError: For an unknown attention or host; names those that there are.
    """
    for kind, name, known in (('attention', attention, ATTENTIONS), ('host', host, HOSTS)):
        if name not in known:
            raise ValueError(f'there is no {kind} {name!r}; choose one of {", ".join(known)}')
    return Source(f'{attention} on {host}', backbone_cfg(host, ATTENTIONS[attention], side))


def from_config(config: str, checkpoint: Optional[str], name: Optional[str]) -> Source:
    """A model of a config file."""
    title = name or Path(config).stem
    backbone = dict(Config.fromfile(config).model.backbone, init_cfg=None)
    weights = RANDOM if checkpoint is None else f'weights of {Path(checkpoint).name}'
    return Source(title, backbone, checkpoint, weights, preprocessor_of(config))


def quick_start(folder: Path) -> Dict[str, Source]:
    """The classifier that tools/quickstart.sh trained, if it did."""
    last = folder / 'last_checkpoint'
    if not last.is_file():
        return {}
    name = Path(last.read_text(encoding='utf-8').strip()).name
    source = from_config(str(BASE), str(folder / name), '')
    return {QUICK_START: source._replace(weights='trained by the quick start')}


def compared(folder: Path) -> Dict[str, Source]:
    """What python -m mmlaplace compare trainings trained, by its settings.

    A result that cannot be read, such as one that is half copied, is left out with a warning.
    """
    sources = {}
    for written in sorted(folder.glob('*/*/*/result.json')):
        try:
            sources.update(_compared(written))
        except (OSError, ValueError, LookupError, TypeError) as error:
            warnings.warn(
                f'{written} is not a complete result of a comparison and is left out '
                f'({type(error).__name__}: {error}); wait until it is written, or copy it again',
                stacklevel=2,
            )
    return sources


def _compared(written: Path) -> Dict[str, Source]:
    """A run of a comparison by its settings, or nothing where its model is not there."""
    settings = json.loads(written.read_bytes())['settings']
    name, host, study = settings['attention'], settings['host'], settings['study']
    phase = settings['phases'][-1]
    checkpoint = written.parent / phase['data'] / f'epoch_{phase["epochs"]}.pth'
    if host not in HOSTS or study not in STUDIES or not checkpoint.is_file():
        return {}
    source = Source(
        f'{name} on {host}',
        backbone_cfg(host, settings['attn_cfg'], phase['side']),
        checkpoint,
        f'trained on {study}, seed {settings["seed"]}',
    )
    return {f'{name} on {host}, {study}, seed {settings["seed"]}': source}


class Models:
    """Sources by name, and the backbones built of them, of which the last are kept."""

    def __init__(self, sources: Optional[Dict[str, Source]] = None) -> None:
        self.sources = dict(sources or {})
        self.built: OrderedDict[str, nn.Module] = OrderedDict()
        self.lock = Lock()  # random weights come from the one generator of the process

    def chosen(
        self, trained: Tuple[str, ...], attentions: Tuple[str, ...], hosts: Tuple[str, ...]
    ) -> List[Source]:
        """The sources of a view.

        Raises:
            ValueError: For a name that is not known, or no host for the attentions.
        """
        unknown = [name for name in trained if name not in self.sources]
        if unknown:
            raise ValueError(
                f'this server has no trained model {unknown[0]!r}; add its checkpoint again, or '
                'choose another'
            )
        if attentions and not hosts:
            raise ValueError('the attentions need a host; choose one')
        return [self.sources[name] for name in trained] + [
            untrained(attention, host) for host in hosts for attention in attentions
        ]

    def backbone(self, source: Source) -> nn.Module:
        """The backbone of a source.

        Raises:
            ValueError: As :func:`build`.
        """
        key = repr(source)
        with self.lock:
            if key not in self.built:
                self.built[key] = build(source)
            self.built.move_to_end(key)
            while len(self.built) > MOST_BUILT:
                self.built.popitem(last=False)
            return self.built[key]

    def add(self, path: Path, name: str, attention: str, host: str, side: int) -> str:
        """Keep a checkpoint of a model that is known; its name in the list of trained models.

        Args:
            path, name: The file, and what the user calls it.
            attention, host, side: What was trained, and the side of its images.

        Raises:
            ValueError: If it cannot be read, or is another model's; says what to do.
        """
        model = untrained(attention, host, side)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
        source = model._replace(checkpoint=path, weights=f'weights of {name}')
        try:
            self.backbone(source)
        except ValueError as error:
            raise ValueError(str(error).replace(str(path), name)) from error
        key = f'{name} ({digest}), {model.title}'
        self.sources[key] = source
        return key


def build(source: Source) -> nn.Module:
    """The backbone of a source, in eval mode. Random weights are the same each time.

    Raises:
        ValueError: For a model of another project or without stages, and a checkpoint that does not
            fit; says what to do.
    """
    checkpoint = source.checkpoint
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            built = MODELS.build(source.backbone)
        except KeyError as error:  # of the registry, in many words
            reason = str(error).splitlines()[0]
            raise ValueError(f'{source.title} is no model of this project ({reason})') from error
    if not hasattr(built, 'stages'):
        raise ValueError(
            f'{source.title} is a {type(built).__name__}, which has no stages; choose a backbone '
            'of this project'
        )
    built.eval()  # which returns nothing in some toolboxes
    if checkpoint is None:
        return built
    try:
        read_state_dict(checkpoint)
    except (UnsafeCheckpointError, FileNotFoundError, ImportError) as error:
        raise ValueError(str(error)) from error
    try:
        load_weights(built, checkpoint)
    except ValueError as error:
        if 'NaN or infinite' in str(error):  # it is this model's, and says what to do
            raise
        reason = without_hint(error).replace(f'{checkpoint} does not fit: ', '')
        raise ValueError(
            f'{checkpoint} is not a checkpoint of {source.title}; choose the attention, the host '
            f'and the size of images of its training. The difference: {reason}'
        ) from error
    return built
