"""The tasks, the host and the runs of study_hybrids.py."""

from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence, Tuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.registry import MODELS
from PIL import Image
from torch import Tensor

from mmlaplace.lab.mini_datasets.fashion import read_part

SIDE = 64  # of the training images; the large ones have twice that, and four times the tokens
HOST = dict(
    type='ViT', arch=dict(embed_dims=[64], depths=[6], num_heads=[2], ffn_ratios=[4]),
    patch_size=8, with_cls_token=False, cpe_kernel=3, img_size=SIDE,
)  # fmt: skip
OPTIONS: Dict[str, dict] = {
    'FLattenAttention': {},
    'AgentAttention': dict(num_landmarks=16),
    'LaplacianAttention': dict(num_landmarks=16),
    'InLineAttention': {},
}
MAIN = 'FLattenAttention'  # the one of the ablations
TRUNK_STEPS = {'textures': 500, 'segmentation': 800, 'rendered': 350, 'fashion': 800}
STEPS = dict(layer_steps=20, whole_steps=20)
BLOCKS, BATCH, LR, TRUNK_LR, HARM_STEPS = 6, 16, 1e-3, 2e-3, 20
SEEDS = (0, 1, 2)
WINDOWS = dict(
    type='WindowAttention',
    window_size=4,
    attn_cfg=dict(type='SoftmaxAttention', relative_bias=False),
)
# Which parts keep the values that they were built with, by the variant of a run.
NEW_PARTS = {'new FFNs': ['.ffn.'], 'new attentions': ['.attn.'], 'both new': ['.ffn.', '.attn.']}
# Attention, variant and number of kept blocks, the most important runs first.
OTHERS = [name for name in OPTIONS if name != MAIN]
PLAN: List[List[Tuple[str, str, int]]] = [
    [(MAIN, 'harm', 0), (MAIN, 'harm', 2)],
    [(MAIN, 'new FFNs', 0), (MAIN, 'new attentions', 0)],
    [(name, 'harm', 0) for name in OTHERS],
    [(MAIN, 'no layer steps', 0), (MAIN, 'windows', 0), (MAIN, 'random blocks', 2)],
    [(MAIN, 'harm', 1), (MAIN, 'harm', 4), (MAIN, 'harm', 3)],
    [(MAIN, 'both new', 0), (MAIN, 'only windows', 0), *((name, 'harm', 2) for name in OTHERS)],
    [(name, 'harm', keep) for name in OTHERS for keep in (1, 3, 4)],
]


class Data(NamedTuple):
    """Images of bytes ``(n, 3, h, w)``, and classes ``(n,)``, labels ``(n, h, w)`` or maps.

    Attributes:
        train, small, large: Images and targets. Large ones have twice the side of small ones.
        outputs: Classes or channels.
    """

    train: Tuple[Tensor, Tensor]
    small: Tuple[Tensor, Tensor]
    large: Tuple[Tensor, Tensor]
    outputs: int


def pictures(paths: Sequence[Path], mode: str = 'RGB') -> Tensor:
    return torch.from_numpy(np.stack([np.asarray(Image.open(p).convert(mode)) for p in paths]))


def quarters(x: Tensor) -> Tensor:
    """The four quarters of each map ``(n, ..., h, w)``, as maps of their own."""
    rows = [part.chunk(2, -1) for part in x.chunk(2, -2)]
    return torch.stack([part for row in rows for part in row], 1).flatten(0, 1)


def read_textures(folder: Path) -> Data:
    def split(name: str) -> Tuple[Tensor, Tensor]:
        paths = sorted((folder / name).glob('*/*.png'))[:: 1 if name == 'train' else 5]
        names = sorted({path.parent.name for path in paths})
        classes = torch.tensor([names.index(path.parent.name) for path in paths])
        return pictures(paths).permute(0, 3, 1, 2), classes

    return Data(split('train'), split('val'), split(f'val_{2 * SIDE}'), 15)


def read_fashion(folder: Path) -> Data:
    def split(part: str, side: int, count: int) -> Tuple[Tensor, Tensor]:
        images, classes = (torch.from_numpy(one[:count].copy()) for one in read_part(folder, part))
        grown = F.interpolate(images[:, None].float(), size=(side, side), mode='bilinear')
        return grown.byte().expand(-1, 3, -1, -1), classes.long()

    return Data(split('train', SIDE, 20000), *(split('t10k', n * SIDE, 300) for n in (1, 2)), 10)


def read_dense(folder: Path, kind: str, mode: str, outputs: int) -> Data:
    def split(name: str) -> Tuple[Tensor, Tensor]:
        count = None if name == 'training' else 40
        paths = sorted((folder / 'images' / name).iterdir())[:count]
        images = pictures(paths).permute(0, 3, 1, 2)
        wanted = pictures([folder / kind / name / path.name for path in paths], mode)
        # Label 0, the soft edges, becomes 255, which no loss counts.
        return images, wanted - 1 if mode == 'L' else wanted.permute(0, 3, 1, 2)

    large = split('validation')
    return Data(split('training'), (quarters(large[0]), quarters(large[1])), large, outputs)


READERS: Dict[str, Callable[[Path], Data]] = {
    'textures': read_textures,
    'segmentation': partial(read_dense, kind='annotations', mode='L', outputs=11),
    'rendered': partial(read_dense, kind='targets', mode='RGB', outputs=3),
    'fashion': read_fashion,
}


class Model(nn.Module):
    """A backbone, and a linear on the mean of its map, or from each token to its pixels."""

    def __init__(self, cfg: dict, data: Data) -> None:
        super().__init__()
        self.backbone: Any = MODELS.build(cfg)  # with the weights that torch gives
        dims, dense = 64, data.train[1].dim() > 1
        self.head = None if dense else nn.Linear(dims, data.outputs)  # what distill knows
        self.decode = nn.Sequential(
            nn.Conv2d(dims, 64 * data.outputs, 1), nn.PixelShuffle(8)
        ) if dense else None  # fmt: skip

    def neck(self, maps: Any) -> Tensor:
        return maps[-1].mean((2, 3))

    def forward(self, images: Tensor) -> Tensor:
        maps = self.backbone(images)
        return self.head(self.neck(maps)) if self.decode is None else self.decode(maps[-1])


def normal(images: Tensor) -> Tensor:
    return images.float() / 128 - 1


def batches_of(data: Data, seed: int) -> Callable[[int], Iterator[Tuple[Tensor, Tensor]]]:
    """Random images, or cuts of larger ones, and their targets, the same for each step."""
    images, targets = data.train

    def batch(step: int) -> Tuple[Tensor, Tensor]:
        random = torch.Generator().manual_seed(seed * 1_000_000 + step)
        chosen = torch.randint(len(images), (BATCH,), generator=random)
        x, y = images[chosen], targets[chosen]
        if x.shape[-1] > SIDE:
            top, left = torch.randint(x.shape[-1] - SIDE + 1, (2,), generator=random).tolist()
            x, y = (one[..., top : top + SIDE, left : left + SIDE] for one in (x, y))
        return normal(x), y

    def following(step: int) -> Iterator[Tuple[Tensor, Tensor]]:
        while True:
            yield batch(step)
            step += 1

    return following


def loss_of(model: Model, batch: Tuple[Tensor, Tensor]) -> Tensor:
    out, wanted = model(batch[0]), batch[1]
    if wanted.dim() == 4:
        return F.mse_loss(out, wanted.float() / 255) / 0.05
    return F.cross_entropy(out, wanted.long(), ignore_index=255)


@torch.no_grad()
def score(model: Model, images: Tensor, wanted: Tensor) -> float:
    """Top-1, mIoU, or the mean R² of the channels, in percent."""
    model.eval()
    out = torch.cat([model(normal(part)) for part in images.split(64)])
    if wanted.dim() == 1:
        return 100 * (out.argmax(1) == wanted).float().mean().item()
    if wanted.dim() == 3:
        counted, classes = wanted != 255, out.shape[1]
        pairs = classes * wanted[counted].long() + out.argmax(1)[counted]
        table = torch.bincount(pairs, minlength=classes**2).view(classes, classes)
        same = table.diagonal()
        return 100 * (same / (table.sum(0) + table.sum(1) - same)).mean().item()
    wanted = wanted.float() / 255
    rest = wanted - wanted.mean((0, 2, 3), keepdim=True)
    errors, spread = (x.square().sum((0, 2, 3)) for x in (out - wanted, rest))
    return 100 * (1 - errors / spread).mean().item()


def scores(model: Model, data: Data) -> Dict[str, float]:
    pairs = dict(small=data.small, large=data.large)
    return {size: round(score(model, *pair), 2) for size, pair in pairs.items()}
