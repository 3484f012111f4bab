"""What hybrids of softmax and linear attention keep: the tasks, the model and the runs."""

import time
from functools import cache, partial
from itertools import islice, product
from pathlib import Path
from typing import (
    Any,
    Callable,
    Dict,
    FrozenSet,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.model import BaseModel
from mmengine.registry import MODELS
from PIL import Image
from torch import Tensor

from mmlaplace.checkpoints import load_weights, write_weights
from mmlaplace.lab.mini_datasets.fashion import read_part
from mmlaplace.lab.probes.results import append_result, by_key, key_of, read_results
from mmlaplace.lab.side_by_side.attention_study import config_of
from mmlaplace.linearizing import (
    Schedule,
    TaskSearch,
    distill,
    fit,
    keep_weights,
    linear_config,
    softmax_blocks,
    softmax_places,
)
from mmlaplace.linearizing.hybrids import LEARN, MEASURE, WHOLE, harm_of, put_all

SIDE = 64  # of the training images; the large ones have twice that, and four times the tokens
HOST = dict(
    type='ViT',
    arch=dict(embed_dims=[64], depths=[6], num_heads=[2], ffn_ratios=[4]),
    patch_size=8,
    with_cls_token=False,
    cpe_kernel=3,
    img_size=SIDE,
)
OPTIONS: Dict[str, dict] = {
    'FLattenAttention': {},
    'AgentAttention': dict(num_landmarks=16),
    'LaplacianAttention': dict(num_landmarks=16),
    'InLineAttention': {},
    'LaplacianAttention, rows': dict(
        type='LaplacianAttention',
        num_landmarks=16,
        normalization='rows',
        landmarks_from='queries',
    ),
}
MAIN, *OTHERS = OPTIONS  # the one of the ablations, and the others
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
LABELS = 'labels, λ = '  # a variant that learns the task's loss, and attentions with this weight
Run = Tuple[str, str, int]  # attention, variant and number of kept blocks
# The most important runs first.
PLAN: List[List[Run]] = [
    [(MAIN, 'harm', 0), (MAIN, 'harm', 2)],
    [(MAIN, 'new FFNs', 0), (MAIN, 'new attentions', 0)],
    [(name, 'harm', 0) for name in OTHERS],
    [(MAIN, 'no layer steps', 0), (MAIN, 'windows', 0), (MAIN, 'random blocks', 2)],
    [(MAIN, 'harm', 1), (MAIN, 'harm', 4), (MAIN, 'harm', 3)],
    [(MAIN, 'both new', 0), (MAIN, 'only windows', 0), *((name, 'harm', 2) for name in OTHERS)],
    [(name, 'harm', keep) for name in OTHERS for keep in (1, 3, 4)],
]


def linear_cfg(attention: str) -> dict:
    """The config of a key of ``OPTIONS``, or of an attention with options in its name."""
    if attention in OPTIONS:
        return {**dict(type=attention), **OPTIONS[attention]}
    return config_of(attention)


class Data(NamedTuple):
    """Images of bytes ``(n, 3, h, w)``, and classes ``(n,)``, labels ``(n, h, w)`` or maps.

    Attributes:
        train, small, large: Images and targets. Large ones have twice the side of small ones.
        search: Those of the size of small ones by whose score blocks are chosen. No other has them.
        outputs: Classes or channels.
    """

    train: Tuple[Tensor, Tensor]
    small: Tuple[Tensor, Tensor]
    large: Tuple[Tensor, Tensor]
    search: Tuple[Tensor, Tensor]
    outputs: int


def pictures(paths: Sequence[Path], mode: str = 'RGB') -> Tensor:
    """Images ``(n, 3, h, w)``, or label maps ``(n, h, w)``."""
    found = torch.from_numpy(np.stack([np.asarray(Image.open(p).convert(mode)) for p in paths]))
    return found.movedim(-1, 1) if mode == 'RGB' else found


def quarters(x: Tensor) -> Tensor:
    """The four quarters of each map ``(n, ..., h, w)``, as maps of their own."""
    rows = [part.chunk(2, -1) for part in x.chunk(2, -2)]
    return torch.stack([part for row in rows for part in row], 1).flatten(0, 1)


def read_textures(folder: Path) -> Data:
    def split(name: str, first: int = 0) -> Tuple[Tensor, Tensor]:
        paths = sorted((folder / name).glob('*/*.png'))[first :: 1 if name == 'train' else 5]
        names = [path.parent.name for path in paths]
        return pictures(paths), torch.tensor(np.unique(names, return_inverse=True)[1])

    return Data(split('train'), split('val'), split(f'val_{2 * SIDE}'), split('val', 1), 15)


def read_fashion(folder: Path) -> Data:
    def split(part: str, side: int, count: int, first: int = 0) -> Tuple[Tensor, Tensor]:
        chosen = slice(first, first + count)
        images, classes = (torch.from_numpy(one[chosen].copy()) for one in read_part(folder, part))
        grown = F.interpolate(images[:, None].float(), size=(side, side), mode='bilinear')
        return grown.byte().expand(-1, 3, -1, -1), classes.long()

    small, large = (split('t10k', n * SIDE, 300) for n in (1, 2))
    return Data(split('train', SIDE, 20000), small, large, split('t10k', SIDE, 300, 300), 10)


def read_dense(folder: Path, kind: str, mode: str, outputs: int) -> Data:
    def split(name: str, *ends: Optional[int]) -> Tuple[Tensor, Tensor]:
        paths = sorted((folder / 'images' / name).iterdir())[slice(*ends or (None,))]
        wanted = pictures([folder / kind / name / path.name for path in paths], mode)
        # Label 0, the soft edges, becomes 255, which no loss counts.
        return pictures(paths), wanted - 1 if mode == 'L' else wanted

    large, others = split('validation', 40), split('validation', 40, 80)
    small, search = ((quarters(x), quarters(y)) for x, y in (large, others))
    return Data(split('training'), small, large, search, outputs)


READERS: Dict[str, Callable[[Path], Data]] = {
    'textures': read_textures,
    'segmentation': partial(read_dense, kind='annotations', mode='L', outputs=11),
    'rendered': partial(read_dense, kind='targets', mode='RGB', outputs=3),
    'fashion': read_fashion,
}


class Model(BaseModel):
    """A backbone, and a linear on the mean of its map, or from each token to its pixels."""

    def __init__(self, cfg: dict, data: Data) -> None:
        super().__init__()
        self.backbone: Any = MODELS.build(cfg)  # with the weights that torch gives
        dims, dense = 64, data.train[1].dim() > 1
        self.head: Any = None if dense else nn.Linear(dims, data.outputs)  # what distill knows
        self.decode: Any = (
            nn.Sequential(nn.Conv2d(dims, 64 * data.outputs, 1), nn.PixelShuffle(8))
            if dense
            else None
        )

    def neck(self, maps: Any) -> Tensor:
        return maps[-1].mean((2, 3))

    def forward(
        self, inputs: Tensor, data_samples: Optional[Tensor] = None, mode: str = 'tensor'
    ) -> Any:
        if mode == 'loss':
            return dict(loss=loss_of(self, (inputs, data_samples)))
        maps = self.backbone(inputs)
        return self.head(self.neck(maps)) if self.decode is None else self.decode(maps[-1])


def normal(images: Tensor) -> Tensor:
    return images.float() / 128 - 1


def batches_of(data: Data, seed: int, step: int = 0) -> Iterator[Tuple[Tensor, Tensor]]:
    """Random images, or cuts of larger ones, and their targets, the same for each step."""
    while True:
        random = torch.Generator().manual_seed(seed * 1_000_000 + step)
        chosen = torch.randint(len(data.train[0]), (BATCH,), generator=random)
        x, y = (one[chosen] for one in data.train)
        if x.shape[-1] > SIDE:
            top, left = torch.randint(x.shape[-1] - SIDE + 1, (2,), generator=random).tolist()
            x, y = (one[..., top : top + SIDE, left : left + SIDE] for one in (x, y))
        yield normal(x), y
        step += 1


def images_of_batches(data: Data, seed: int, step: int) -> Iterator[Tensor]:
    return (images for images, _ in batches_of(data, seed, step))


def labelled_batches(data: Data, seed: int, step: int) -> Iterator[Dict[str, Tensor]]:
    return (dict(inputs=x, data_samples=y) for x, y in batches_of(data, seed, step))


def loss_of(model: Model, batch: Tuple[Tensor, Any]) -> Tensor:
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


class Study:
    """All runs of the tasks whose data is there, whose results go into a log.

    Args:
        log: The log, a JSON object on each line.
        data_root: Folder with a folder of data for each task.
        work_dir: Folder for the weights of the models with softmax.
        ended: Function that gets each result without its losses. Default: nothing.
        num_heads: Heads of the model, which has 64 channels. Default: 2.
    """

    def __init__(
        self,
        log: Path,
        data_root: Path,
        work_dir: Path,
        ended: Optional[Callable[[dict], Any]] = None,
        num_heads: int = 2,
    ) -> None:
        arch: Any = HOST['arch']
        self.host = dict(HOST, arch=dict(arch, num_heads=[num_heads]))
        self.log, self.work_dir, self.ended = log, work_dir, ended
        self.results = by_key(read_results(log))
        self.data = cache(lambda task: READERS[task](data_root / task))
        self.trunk = cache(self.trained)

    def run(self, work: Callable[..., dict], **settings: Any) -> dict:
        """The result of some work with these settings, which the log may have."""
        key = key_of(settings)
        if key not in self.results:
            start = time.process_time()
            found = dict(settings=settings, **work(**settings))
            found['seconds'] = round(time.process_time() - start, 1)
            append_result(self.log, found)
            self.results[key] = found
            if self.ended is not None:
                self.ended({name: found[name] for name in found if name != 'losses'})
        return self.results[key]

    def trained(self, task: str) -> Model:
        """The model with softmax, trained or loaded."""
        torch.manual_seed(0)
        model, file = Model(self.host, self.data(task)), self.work_dir / f'{task}.pth'

        def train(task: str, variant: str, steps: int) -> dict:
            made = fit(
                model.train(),
                list(model.parameters()),
                partial(loss_of, model),
                partial(batches_of, self.data(task), 1000),
                steps,
                Schedule(lr=TRUNK_LR),
            )
            write_weights(file, model.state_dict(), {})
            return dict(losses=made['losses'], score=scores(model, self.data(task)))

        settings = dict(task=task, variant='softmax', steps=TRUNK_STEPS[task])
        if not file.is_file():
            self.results.pop(key_of(settings), None)
        self.run(train, **settings)
        load_weights(model, str(file))
        return model.eval()

    def swapped(
        self, task: str, attention: str, variant: str = 'harm', keep: Sequence[str] = ()
    ) -> Model:
        old, linear = self.trunk(task).backbone, linear_cfg(attention)
        places = list(softmax_places(old))
        windows = {'windows': places[1::2], 'only windows': places}.get(variant, [])
        plan = {place: WINDOWS if place in windows else linear for place in places}
        return Model(linear_config(self.host, old, plan, keep=keep), self.data(task))

    def harms(self, task: str, attention: str, variant: str, steps: int) -> dict:
        return dict(harms=list(self.learned(task, attention, steps)[0].values()))

    def learned(
        self, task: str, attention: str, steps: int
    ) -> Tuple[Dict[str, float], Dict[str, nn.Module]]:
        """The harm of each block, and the attentions that have learned for it."""
        torch.manual_seed(0)
        old, new = self.trunk(task).backbone, self.swapped(task, attention).backbone
        places = softmax_places(old)
        keep_weights(new, old, places)
        images = [x for x, _ in islice(batches_of(self.data(task), 999), LEARN + MEASURE)]
        learned: Dict[str, nn.Module] = {}
        harms = {p: harm_of(new, old, p, images, steps, LR, learned=learned) for p in places}
        return harms, learned

    def searched(self, task: str, attention: str, variant: str, steps: int) -> dict:
        """The blocks that stay, by their number, if a score chooses; a beam is in the variant."""
        model, (harms, learned) = self.trunk(task), self.learned(task, attention, steps)

        def score_with(linear: FrozenSet[str]) -> float:
            with put_all(model.backbone, {place: learned[place] for place in linear}):
                return score(model, *self.data(task).search)

        search = TaskSearch(score_with, beam=int(variant.rpartition(' ')[2]))
        alike = dict.fromkeys(harms, 1.0)
        costs = {WHOLE: dict(softmax=2.0, linear=1.0), 'softmax': alike, 'linear': alike}
        plans = {keep: search(harms, costs, keep=keep).keep for keep in range(1, BLOCKS)}
        kept = {n: [list(harms).index(p) for p in places] for n, places in plans.items()}
        return dict(kept={str(n): blocks for n, blocks in kept.items()}, scores=search.scores)

    def hybrid(
        self,
        task: str,
        attention: str,
        variant: str,
        keep: int,
        seed: int,
        layer_steps: int,
        whole_steps: int,
    ) -> dict:
        """Linearize all blocks but some, and imitate the trunk."""
        data, old = self.data(task), self.trunk(task)
        places = softmax_places(old.backbone)
        torch.manual_seed(seed)
        order = torch.randperm(BLOCKS).tolist()
        if keep and variant == 'harm':
            names = dict(task=task, attention=attention, variant='harms', steps=HARM_STEPS)
            harms = self.run(self.harms, **names)['harms']
            order = sorted(range(BLOCKS), key=lambda block: -harms[block])
        kept = sorted(order[:keep])
        if keep and variant.startswith('task'):
            beam = variant.partition(', beam ')[2] or '1'
            names = dict(task=task, attention=attention, variant=f'search, beam {beam}')
            kept = self.run(self.searched, **names, steps=HARM_STEPS)['kept'][str(keep)]
        torch.manual_seed(seed)
        staying = softmax_blocks(list(places), kept)
        new = self.swapped(task, attention, variant, staying)
        changed = {place: i for place, i in places.items() if place not in staying}
        again = {
            name: value.clone()
            for name, value in new.state_dict().items()
            if any(part in name for part in NEW_PARTS.get(variant, ()))
        }
        new.load_state_dict(
            {k: v for k, v in old.state_dict().items() if 'backbone' not in k}, strict=False
        )
        keep_weights(new.backbone, old.backbone, changed)
        new.load_state_dict(again, strict=False)
        swapped = round(score(new, *data.small), 2)
        schedule = Schedule(layer_steps, whole_steps, LR)
        batches: Callable[[int], Iterator] = partial(images_of_batches, data, seed)
        if variant.startswith(LABELS):
            weight = float(variant[len(LABELS) :])
            schedule = schedule._replace(loss='task', loss_weight=weight)
            batches = partial(labelled_batches, data, seed)
        done = distill(new, old, changed, batches, schedule)
        losses = {phase: made['losses'] for phase, made in done.items()}
        return dict(kept=kept, swapped=swapped, losses=losses, score=scores(new, data))

    def run_all(self, tasks: Sequence[str], plan: Sequence[Sequence[Run]] = PLAN) -> None:
        """All runs, the most important first."""
        without = dict(layer_steps=0, whole_steps=sum(STEPS.values()))
        for part in plan:
            for task, seed, (attention, variant, keep) in product(tasks, SEEDS, part):
                self.run(
                    self.hybrid,
                    task=task,
                    attention=attention,
                    variant=variant,
                    keep=keep,
                    seed=seed,
                    **(without if variant == 'no layer steps' else STEPS),
                )
