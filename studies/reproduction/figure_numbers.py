"""The numbers in the papers' figures. They are measured, or read from studies/tables."""

import json
import re
import time
from argparse import Namespace
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ContextManager, Dict, List, Optional, Tuple

import torch
import torch.nn as nn
from mmengine.config import Config
from PIL import Image
from rich.progress import track
from torch import Tensor

from mmlaplace.analysis.attention_rows import attention_row
from mmlaplace.analysis.measuring import model_job, seconds_of, tensor_memory
from mmlaplace.analysis.networks import image_size, network_of
from mmlaplace.analysis.recording import Mixed, mixed_by, normalized, photographs, steps_watched
from mmlaplace.commands.command_line import build_backbone, preprocessor_of
from mmlaplace.models import BaseAttention, PolaAttention, SOFTAttention
from mmlaplace.models.layers import Landmarks, TransformerBlock
from mmlaplace.ops import gaussian_kernel, newton_schulz_inverse
from mmlaplace.ops.newton_start_scale import newton_start_scale

from .paper_tables import Row, read_table

SIZES = r'-(tiny|small|medium|large|T|S|M|L|B|Ti\+|[SML]36|b\d|\d+)(?=$|[-/ ])'
SUFFIXES = ('.png', '.jpg', '.jpeg')
STEPS = 36  # steps of the Newton iteration in the paper's figure
QUERIES = 32  # number of queries whose rows are taken
# SOFT++ Figure 1b: sizes of the paper's host, and its attentions in the paper's order.
DIMS, HEADS, SIDE = 384, 12, 28
ATTENTIONS: Dict[str, Dict[str, Any]] = {
    'Transformer, matrices kept': dict(type='SoftmaxAttention'),
    'Transformer, fused': dict(type='SoftmaxAttention'),
    'Linformer': dict(type='LinformerAttention', num_landmarks=49),
    'Nyströmformer': dict(type='NystromformerAttention', num_landmarks=49),
    'Performer': dict(type='PerformerAttention'),
    'SOFT': dict(type='SOFTAttention', normalized=False),
}


def family(label: str) -> str:
    """The family of a model, from its printed name: SOFT++ for SOFT++-Tiny."""
    return re.sub(SIZES, '', label, count=1, flags=re.IGNORECASE)


def published(table: str, *columns: str) -> List[dict]:
    """The published values of the rows of a table that have all of these columns.

    Returns:
        A dict for each row with its name, label, kind, family and the columns.
    """
    return [
        dict(
            name=row.name,
            label=row.label,
            kind=row.kind,
            family=family(row.label),
            **{column: row.runs[0].published[column] for column in columns},
        )
        for row in read_table(table).rows
        if row.runs and set(columns) <= set(row.runs[0].published)
    ]


def last_top1(path: Path) -> float:
    """The last top-1 in a result file, or in a training log with a JSON object in each line."""
    text = path.read_text(encoding='utf-8')
    try:
        contents = [json.loads(text)]
    except json.JSONDecodeError:
        contents = [json.loads(line) for line in text.splitlines()]
    scores = [content.get('scores', content) for content in contents]
    return [score['accuracy/top1'] for score in scores if 'accuracy/top1' in score][-1]


def parameters(args: Namespace) -> dict:
    """SOFT++ Figure 1a: published models, and trained small twins with their parameters."""
    twins = []
    for config, result, label in args.run:
        network = network_of(Config.fromfile(config))
        count = sum(parameter.numel() for parameter in network.parameters())
        twins.append({'label': label, 'parameters': count / 1e6, 'top-1': last_top1(Path(result))})
    return dict(published=published('softpp_table_3', 'parameters', 'top-1'), twins=twins)


class Layers(nn.Module):
    """Transformer layers for the tokens ``(B, N, C)`` of a map with 28 columns."""

    def __init__(self, attn_cfg: dict, depth: int) -> None:
        super().__init__()
        sizes = dict(embed_dims=DIMS, num_heads=HEADS, input_resolution=(SIDE, SIDE))
        cfg = dict(attn_cfg, **sizes)
        self.layers = nn.ModuleList(TransformerBlock(DIMS, cfg) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, (x.shape[1] // SIDE, SIDE))
        return x


def without_fused_kernels() -> ContextManager:
    """A context in which PyTorch's softmax attention stores the matrix of tokens by tokens."""
    if find_spec('torch.nn.attention') is None:  # before torch 2.3
        return torch.backends.cuda.sdp_kernel(enable_flash=False, enable_mem_efficient=False)
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(SDPBackend.MATH)


def memory(args: Namespace) -> dict:
    """SOFT++ Figure 1b: peak memory of torch in MB, in a training pass of one sequence."""
    device, lines = torch.device(args.device), {}
    for name, cfg in track(ATTENTIONS.items(), 'attentions', transient=True):
        layers = Layers(cfg, args.depth).to(device).train()
        line: List[Dict[str, float]] = []
        for multiple in sorted(args.multiples):
            tokens = SIDE * SIDE * multiple
            growth = (tokens / line[-1]['tokens']) ** 2 if line else 1
            if line and line[-1]['MB'] * growth > args.memory * 1e3:
                break  # memory may grow with the square of the tokens
            x = torch.randn(1, tokens, DIMS, device=device)
            kept = name == 'Transformer, matrices kept'
            with without_fused_kernels() if kept else nullcontext():
                bytes_held = tensor_memory(model_job(layers, x, train=True), device)
            assert bytes_held is not None  # as a training pass returns no tensor
            line.append(dict(tokens=tokens, MB=bytes_held / 1e6))
        lines[name] = line
    return dict(depth=args.depth, dims=DIMS, heads=HEADS, lines=lines)


def timed(chosen: List[Row], args: Namespace) -> Dict[str, dict]:
    """Seconds per image of a forward pass of each row's full-size network, the best of rounds.

    On a CPU they are processor time, which other processes do not change.
    """
    device, jobs = torch.device(args.device), {}
    for row in track(chosen, 'models', transient=True):
        spec = row.runs[0].full
        assert spec is not None, f'{row.label} has no config of its full size'
        cfg = spec.load()
        size = image_size(cfg)
        images = torch.randn(args.batch_size, 3, *size, device=device)
        jobs[row.name] = model_job(network_of(cfg).to(device), images, train=False)
    for job in jobs.values():
        job()
    rounds = [
        {
            name: seconds_of(job, device, time.process_time) / args.batch_size
            for name, job in jobs.items()
        }
        for _ in range(args.rounds)
    ]
    return {name: min(each[name] for each in rounds) for name in jobs}


def with_seconds(
    table: str, families: Tuple[str, ...], columns: Tuple[str, ...], args: Namespace
) -> dict:
    """The published rows of a table, with a measured time for the rows of some families.

    Args:
        table: Name of the table.
        families: The families that are timed, unless ``args.rows`` names rows.
        columns: The published columns to return.
        args: Arguments of the tool.
    """
    points = published(table, *columns)
    names = args.rows or [point['name'] for point in points if point['family'] in families]
    chosen = [read_table(table).row(name) for name in names]
    left_out = [row.label for row in chosen if not row.covered]
    seconds = timed([row for row in chosen if row.covered], args)
    for point in points:
        if point['name'] in seconds:
            point['seconds'] = seconds[point['name']]
    return dict(
        points=points,
        left_out=left_out,
        batch_size=args.batch_size,
        device=args.device,
    )


def speed(args: Namespace) -> dict:
    """SOFT++ Figure 3: published top-1 and measured speed."""
    return with_seconds('softpp_table_3', ('SOFT++', 'Swin', 'ConvNext'), ('top-1',), args)


def speed_and_macs(args: Namespace) -> dict:
    """PolaFormer Figure 4: published top-1 and MACs, and measured time."""
    hosts = ('PVT', 'PVT-FLatten', 'PVT-PolaFormer', 'Swin', 'Swin-FLatten', 'Swin-PolaFormer')
    return with_seconds('polaformer_table_5', hosts, ('MACs', 'top-1'), args)


def images_of(
    args: Namespace, size: Tuple[int, int], config: Optional[str] = None
) -> Dict[str, List[Tensor]]:
    """Images ``(1, 3, H, W)`` by the name of the data set, evenly spread over its folder.

    Without ``args.images`` they are photographs of scikit-image. They are normalised as ``config``
    asks, by default the first of ``args.model``.

    Raises:
        ValueError: If a folder has no images.
    """
    size, preprocessor = tuple(args.image_size or size), preprocessor_of(config or args.model[0][0])
    if not args.images:
        return {'photographs': photographs(size, preprocessor)}
    found = {}
    for name, folder in args.images:
        paths = sorted(p for p in Path(folder).rglob('*') if p.suffix.lower() in SUFFIXES)
        if not paths:
            raise ValueError(f'{folder} has no images; they must end with {", ".join(SUFFIXES)}')
        paths = paths[:: max(1, len(paths) // args.count)][: args.count]
        found[name] = [normalized(Image.open(path), size, preprocessor) for path in paths]
    return found


def name_of(model: List[str]) -> str:
    """The label and the config's name of a model, without the folders of this machine."""
    config, _, label = model
    return f'{label}, {Path(config).name}'


def model_of(args: Namespace) -> nn.Module:
    config, checkpoint, _ = args.model[0]
    return build_backbone(config, checkpoint)


def default_size(args: Namespace, smallest: int = 0) -> Tuple[int, int]:
    size = Config.fromfile(args.model[0][0]).model.backbone.get('img_size', 224)
    height, width = (size, size) if isinstance(size, int) else size
    return max(height, smallest), max(width, smallest)


def landmark_kernel(mixed: Mixed, landmarks: Optional[int] = None, double: bool = False) -> Tensor:
    """SOFT's landmark kernel W of an image, ``(1, heads, m, m)``.

    Args:
        mixed: The recorded queries of a SOFTAttention.
        landmarks: Number m of landmarks, which are averages over cells of the map. Default: None,
            the landmarks of the attention.
        double: Whether the kernel of these landmarks is computed in fp64. Default: False, in fp32.
    """
    attention = mixed.attention
    sample = attention.landmarks if landmarks is None else Landmarks(landmarks)
    query = mixed.q * attention.head_dims**-0.25
    with torch.no_grad():
        marks = attention.landmark_norm(sample(query, mixed.hw_shape))
        marks = marks.double() if double else marks
        return gaussian_kernel(marks, marks, 1.0)


def residuals(attention: SOFTAttention, kernel: Tensor) -> Tensor:
    r"""``||A A_k A - A|| / ||A||`` in spectral norms for k from 0 on, ``(heads, STEPS + 1)``.

    A is the landmark kernel ``(1, heads, m, m)`` with the attention's ridge, and A_k its inverse
    after k steps of the Newton iteration.
    """
    matrix = kernel + attention.ridge * torch.eye(kernel.shape[-1])
    normalized, shared = attention.normalized, attention.newton_start_per == 'batch'
    factor = 2.0 if normalized else 1.8
    scale = newton_start_scale(kernel, factor, halve=normalized, per_batch=shared)
    inverse, found = scale[..., None, None] * matrix, []
    wide = matrix.double()
    size = torch.linalg.matrix_norm(wide, 2)
    for _ in range(STEPS + 1):
        left = torch.linalg.matrix_norm(wide @ inverse.double() @ wide - wide, 2)
        found.append((left / size).flatten())
        inverse = newton_schulz_inverse(kernel, 1, attention.ridge, start=inverse, check=False)
    return torch.stack(found, dim=-1)


def newton(args: Namespace) -> dict:
    """SOFT++ Figure 5: residuals of the Newton iteration, for each data set and stage.

    The numbers are the mean and the range over images, blocks and heads.
    """
    backbone = model_of(args)
    sets: Dict[str, Dict[str, Any]] = {}
    for name, images in images_of(args, default_size(args)).items():
        by_stage: Dict[int, List[Tensor]] = {}
        for image in track(images, name, transient=True):
            for mixed in mixed_by(backbone, SOFTAttention, image):
                found = residuals(mixed.attention, landmark_kernel(mixed))
                by_stage.setdefault(mixed.stage + 1, []).append(found)
        sets[name] = dict(images=len(images), stages=[])
        for stage, matrices in sorted(by_stage.items()):
            values = torch.cat(matrices)
            curves = dict(mean=values.mean(0), low=values.amin(0), high=values.amax(0))
            line = {key: each.tolist() for key, each in curves.items()}
            sets[name]['stages'].append(dict(stage=stage, **line))
    return dict(model=name_of(args.model[0]), sets=sets)


def eigenvalues(args: Namespace) -> dict:
    """SOFT++ Figure 6a: eigenvalues of the kernel of many landmarks, in the first head.

    They are those of one image, in the first block of each stage with enough tokens.

    Raises:
        ValueError: If no stage has enough tokens.
    """
    side = 4 * round(args.landmarks**0.5)  # a token of the first stage has 4 x 4 pixels
    images = images_of(args, default_size(args, side))
    (name, (image, *_)), stages = next(iter(images.items())), []
    for mixed in mixed_by(model_of(args), SOFTAttention, image):
        if mixed.block == 0 and min(mixed.hw_shape) ** 2 >= args.landmarks:
            kernel = landmark_kernel(mixed, args.landmarks)[0].double()
            values = torch.linalg.eigvalsh(kernel[0]).flip(0).clamp(min=0)
            stages.append(dict(stage=mixed.stage + 1, values=values.tolist()))
    if not stages:
        raise ValueError(
            f'no stage has {args.landmarks} tokens at {tuple(image.shape[2:])} pixels; raise '
            '--image-size or lower --landmarks'
        )
    return dict(model=name_of(args.model[0]), image=name, stages=stages)


def gates(args: Namespace) -> dict:
    """PolaFormer Figure 3: the gate G of one image in each block, split into its two streams.

    Raises:
        ValueError: If the model has no PolaAttention with a gate.
    """
    ((_, (image, *_)),) = list(images_of(args, default_size(args)).items())[:1]
    backbone, blocks = model_of(args), []

    def see(name, attention, step, arguments, made):
        if made.gate is not None:
            halves = made.gate[0].unflatten(-1, (attention.num_heads, -1)).transpose(0, 1)
            same, opposite = halves.split((attention.head_dims + 1) // 2, dim=-1)
            first = dict(same=listed(same[0]), opposite=listed(opposite[0]))  # the first head
            blocks.append(dict(first, **spread(same, opposite)))

    with steps_watched(backbone, PolaAttention, ('project',), see), torch.no_grad():
        backbone(image)
    if not blocks:
        raise ValueError(
            f'{args.model[0][0]} has no PolaAttention with a gate; give --model a PolaFormer'
        )
    first = next(part for part in backbone.modules() if isinstance(part, PolaAttention))
    return dict(model=name_of(args.model[0]), matrix=first.gate_matrix is not None, blocks=blocks)


def listed(values: Tensor) -> list:
    """Nested lists of the values with four decimals, which is enough for a plot."""
    return values.double().numpy().round(4).tolist()


def spread(same: Tensor, opposite: Tensor) -> Dict[str, float]:
    """Means and standard deviations of the entries of two streams, and their correlation."""
    columns = min(same.shape[-1], opposite.shape[-1])
    pair = torch.stack([same[..., :columns].flatten(), opposite[..., :columns].flatten()])
    return dict(
        correlation=torch.corrcoef(pair)[0, 1].item(),
        mean_same=same.mean().item(),
        mean_opposite=opposite.mean().item(),
        deviation_same=same.std().item(),
        deviation_opposite=opposite.std().item(),
    )


def rows(args: Namespace) -> dict:
    """PolaFormer Figure 5: the mean of sorted rows, and the mean entropy, for each block."""
    models = {}
    for config, checkpoint, label in args.model:
        backbone = build_backbone(config, checkpoint)
        ((_, images),) = list(images_of(args, default_size(args), config).items())[:1]
        blocks: Dict[str, List[Tensor]] = {}
        for image in track(images[:3], label, transient=True):
            for mixed in mixed_by(backbone, BaseAttention, image):
                tokens = mixed.q.shape[2]
                places = torch.linspace(0, tokens - 1, min(tokens, QUERIES)).long().tolist()
                streams = (0, -1) if isinstance(mixed.attention, PolaAttention) else (0,)
                weights = torch.stack(
                    [
                        attention_row(mixed, place, head, channel).abs()
                        for place in places
                        for head in range(mixed.q.shape[1])
                        for channel in streams
                    ]
                )
                name = f'{mixed.stage + 1}.{mixed.block + 1}'
                blocks.setdefault(name, []).append(weights)
        models[label] = {name: of_block(torch.cat(found)) for name, found in blocks.items()}
    return dict(models=models)


def of_block(weights: Tensor) -> dict:
    """Statistics of rows ``(rows, n)``: their mean entropy, and the mean of the sorted shares.

    The entropy is divided by log n, so that equal weights have 1.
    """
    shares = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    most = torch.tensor(float(max(2, shares.shape[-1]))).log()
    entropy = -torch.xlogy(shares, shares).sum(-1) / most
    ordered = shares.sort(-1, descending=True).values.mean(0)
    return dict(entropy=entropy.mean().item(), keys=shares.shape[-1], weights=ordered.tolist())
