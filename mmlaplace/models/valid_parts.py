"""The valid part of each image in a padded batch, and forwards of these parts alone."""

import math
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Proxy
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.weak import WeakTensorKeyDictionary

from mmlaplace.ops import exporting

from .layers.feature_map import memory_format_of

Shape = Tuple[int, int]  # height and width

# By batch, which forgets it when nobody else has the batch any more.
_KNOWN: Any = WeakTensorKeyDictionary()


def set_valid_shapes(images: Tensor, shapes: Sequence[Sequence[int]]) -> None:
    """Say which part of each image of a batch is valid; the rest, below and to the right, is not.

    A backbone with ``mask_padding=True`` that gets this very tensor leaves the rest out. Our data
    preprocessors call it. A tensor that is computed from ``images``, such as a cast one, is another
    batch.

    Args:
        images: The padded batch ``(B, C, H, W)``.
        shapes: Height and width of each of the B valid parts, in pixels. They begin at the upper
            left corner.

    Raises:
        ValueError: If there are not B shapes, or one of them is empty or larger than the batch.

    Examples:
        >>> import torch
        >>> from mmlaplace.models import LaplacianFormer, set_valid_shapes
        >>> backbone = LaplacianFormer('micro', out_indices=3, mask_padding=True).eval()
        >>> image = torch.randn(1, 3, 64, 96)
        >>> images = torch.cat([torch.nn.functional.pad(image, (0, 32)), torch.ones(1, 3, 64, 128)])
        >>> set_valid_shapes(images, [(64, 96), (64, 128)])
        >>> (in_batch,), (alone,) = backbone(images), backbone(image)
        >>> in_batch.shape, torch.allclose(in_batch[:1, :, :, :3], alone, atol=1e-5)
        (torch.Size([2, 128, 2, 4]), True)
    """
    height, width = images.shape[-2:]
    parts = [(int(rows), int(columns)) for rows, columns in shapes]
    inside = all(0 < rows <= height and 0 < columns <= width for rows, columns in parts)
    if len(parts) != len(images) or not inside:
        raise ValueError(
            f'shapes must be one (height, width) from (1, 1) to {(height, width)} for each of the '
            f'{len(images)} images {tuple(images.shape)}, got {parts}'
        )
    _KNOWN[images] = parts


def valid_shapes(images: Tensor) -> Optional[List[Shape]]:
    """What :func:`set_valid_shapes` was told about this very tensor, or None.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.valid_parts import set_valid_shapes, valid_shapes
        >>> images = torch.zeros(2, 3, 64, 64)
        >>> set_valid_shapes(images, [(64, 32), (64, 64)])
        >>> valid_shapes(images), valid_shapes(images + 1)
        ([(64, 32), (64, 64)], None)
    """
    return _KNOWN.get(images)


def parts_of(backbone: torch.nn.Module, images: Tensor) -> Tuple[Optional[List[Shape]], int]:
    """The valid parts of a batch for ``mask_padding=True``, and the forwards that they take.

    The parts are None where one forward of the whole batch will do. Exported graphs, and those of
    torch.fx, are for images that are valid as a whole.

    If layers of the backbone are sharded, all processes take as many forwards as the one with the
    most sizes, as each forward of a sharded layer waits for the others.

    Raises:
        RuntimeError: In training, for several images about which nothing is known, and for
            BatchNorms that train.
    """
    if isinstance(images, Proxy) or exporting():
        return None, 1
    if backbone.training:
        _refuse_batch_statistics(backbone)
    shapes = valid_shapes(images)
    if shapes is None and backbone.training and len(images) > 1:
        raise RuntimeError(
            'mask_padding=True needs to know the valid part of each image, and nobody has said it '
            f'for this batch {tuple(images.shape)}; set model.data_preprocessor.type to '
            "'ValidPartsDetDataPreprocessor' for mmdet or to 'ValidPartsSegDataPreProcessor' for "
            'mmseg, or call mmlaplace.models.set_valid_shapes(images, shapes) before the forward'
        )
    height, width = images.shape[-2:]
    shapes = shapes or [(height, width)] * len(images)
    forwards = len(set(shapes))
    if dist.is_available() and dist.is_initialized() and _has_sharded_layers(backbone):
        most = torch.tensor(forwards, device=images.device)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        forwards = int(most)
    if forwards < 2 and set(shapes) <= {(height, width)}:
        return None, 1
    return shapes, forwards


def _has_sharded_layers(backbone: torch.nn.Module) -> bool:
    """Whether FSDP, of the first or second kind, gathers the weights of a part by itself."""
    from torch.distributed import fsdp  # which takes long, and few need it

    first = fsdp.FullyShardedDataParallel
    kinds = first, getattr(fsdp, 'FSDPModule', first)  # which came with torch 2.6
    return any(isinstance(part, kinds) for part in backbone.modules() if part is not backbone)


def _refuse_batch_statistics(backbone: torch.nn.Module) -> None:
    for name, module in backbone.named_modules():
        if isinstance(module, _BatchNorm) and module.training:
            raise RuntimeError(
                f'mask_padding=True computes images of different sizes one after the other, so the '
                f'{type(module).__name__} {name} would take statistics of each size alone; set '
                'norm_eval=True of the backbone, or mask_padding=False'
            )


def forward_of_parts(
    forward: Callable[[Tensor], Tuple[Tensor, ...]],
    images: Tensor,
    shapes: Sequence[Shape],
    sizes: Sequence[Shape],
    forwards: int = 1,
) -> Tuple[Tensor, ...]:
    """The outputs of the valid parts, with zeros in the place of the padding.

    Images with equal parts are computed together. So no layer sees any padding, and what a layer
    computes for an image is what it computes for that image alone.

    Args:
        forward: Images ``(b, C, h, w)`` to maps ``(b, C_i, h_i, w_i)``, or to vectors ``(b, C)``.
        images: The padded batch ``(B, C, H, W)``.
        shapes: Height and width of the valid part of each image.
        sizes: Height and width of each of the returned maps of the whole batch.
        forwards: The least number of forwards. Those beyond the sizes compute the smallest image
            again, for outputs and gradients of zeros. Default: 1.
    """
    rows_of: Dict[Shape, List[int]] = {}
    for row, shape in enumerate(shapes):
        rows_of.setdefault(shape, []).append(row)
    memory_format = memory_format_of(images)
    outputs = []
    for (height, width), rows in rows_of.items():
        part = images[rows, :, :height, :width]
        outputs.append(forward(part.contiguous(memory_format=memory_format)))
    order = torch.tensor(sum(rows_of.values(), []), device=images.device).argsort()
    (height, width), (row, *_) = min(rows_of.items(), key=lambda item: math.prod(item[0]))
    for _ in range(len(rows_of), forwards):
        again = forward(images[row : row + 1, :, :height, :width].contiguous())
        outputs[0] = tuple(out + (0 * other).sum() for out, other in zip(outputs[0], again))
    joined = []
    for of_parts, size in zip(zip(*outputs), sizes):
        if of_parts[0].dim() == 4:
            maps = torch.cat(_to_size(of_parts, size))[order]
            joined.append(maps.contiguous(memory_format=memory_format))
        else:
            joined.append(torch.cat(of_parts)[order])
    return tuple(joined)


def _to_size(maps: Sequence[Tensor], size: Shape) -> List[Tensor]:
    """Maps with zeros below and to the right, up to a height and a width, or to the largest map."""
    height = max(size[0], *(x.shape[2] for x in maps))
    width = max(size[1], *(x.shape[3] for x in maps))
    return [F.pad(x, (0, width - x.shape[3], 0, height - x.shape[2])) for x in maps]
