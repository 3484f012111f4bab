"""Configs for ImageNet, COCO and what is between with a user's attention."""

import re
import shutil
from pathlib import Path
from typing import Any, Callable, List, NamedTuple, Optional, Sequence

from mmengine.config import Config

from ...model_zoo import files_root, get_config
from ...models.backbones.swin import linear_window
from ...writing import write_whole


class Recipe(NamedTuple):
    """A config of the model zoo whose backbone gets another attention.

    Attributes:
        file: Name of the new file, in which ``NAME`` stands for the attention's.
        base: Name of the config in the zoo, or of a file of ``configs/own``.
        where: Where the attention goes, in words.
        give: Function that gives the attention's config to a config's ``model``.
    """

    file: str
    base: str
    where: str
    give: Callable[[Any, dict], None]


def _to_swin(model: Any, attn_cfg: dict) -> None:
    model.backbone.attn_cfg = [linear_window(56, **attn_cfg)] * 2 + [None] * 2


def _to_detector(model: Any, attn_cfg: dict) -> None:
    _to_swin(model, attn_cfg)
    name = attn_cfg['type'].removesuffix('Attention').lower()
    model.backbone.init_cfg.checkpoint = (
        f'work_dirs/{name}-swin-tiny_8xb128_in1k/epoch_300.pth'  # of the classifier above
    )


def _to_deit(model: Any, attn_cfg: dict) -> None:
    model.backbone.update(attn_cfg=attn_cfg, with_cls_token=False, out_type='featmap')
    model.neck = dict(type='GlobalAveragePooling')


def _to_all(model: Any, attn_cfg: dict) -> None:
    model.backbone.attn_cfg = attn_cfg


RECIPES = (
    Recipe(
        'NAME-swin-tiny_8xb128_in1k.py',
        'flatten-swin-tiny_8xb128_in1k',
        'in the first two stages of Swin-T, in windows of 56 x 56 tokens, as in FLatten-Swin '
        'and PolaFormer-Swin',
        _to_swin,
    ),
    Recipe(
        'NAME-deit-tiny_8xb128_in1k.py',
        'deit-tiny_8xb128_in1k',
        'in all blocks of DeiT-T, with the mean of the tokens in the place of the class token, '
        'as in PolaFormer-DeiT',
        _to_deit,
    ),
    Recipe(
        'NAME-pvt-tiny_8xb128_in1k.py',
        'flatten-pvt-tiny_8xb128_in1k',
        'in all stages of PVT-T, without the spatial reduction of the keys, as in FLatten-PVT',
        _to_all,
    ),
    Recipe(
        'mask-rcnn_NAME-swin-tiny_fpn_ms-1x_coco.py',
        'mask-rcnn_flatten-swin-tiny_fpn_ms-1x_coco',
        'in the first two stages of Swin-T, and with the weights of its classifier',
        _to_detector,
    ),
)


# A step between small images and ImageNet, from folders of images.
BETWEEN = (
    Recipe(
        'NAME-deit-tiny_cifar100.py',
        'cifar100',
        'in all blocks of DeiT-T with patches of 2 x 2 pixels, for CIFAR-100 in folders',
        _to_all,
    ),
    Recipe(
        'NAME-pvt-tiny_imagenet100.py',
        'imagenet100',
        'in all stages of PVT-T, without the spatial reduction of the keys, for 100 classes of '
        'ImageNet in folders',
        _to_all,
    ),
)


def _config_of(base: str) -> Config:
    own = files_root() / f'configs/own/{base}.py'
    return Config.fromfile(own) if own.is_file() else get_config(base)


def write_configs(
    cls: type,
    attn_cfg: dict,
    source: str,
    folder: Path,
    recipes: Optional[Sequence[Recipe]] = None,
    label: Optional[str] = None,
) -> List[Path]:
    """Write the configs, and a copy of the user's file beside them.

    Args:
        cls: The class.
        attn_cfg: The config of the attention.
        source: The file or module of the class, or ``''`` for one of mmlaplace.
        folder: The folder.
        recipes: The configs. Default: None, all.
        label: The attention in the names of the files, such as ``'Pola, power=3'``. Default: None,
            the name of the class.

    Returns:
        The paths of the configs, in the order of ``recipes``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    imports, head = ['mmlaplace'], ''
    if source.endswith('.py'):
        module = Path(source).stem
        shutil.copyfile(Path(source).expanduser(), folder / f'{module}.py')
        imports.append(module)
        head = (
            "import sys\n\nsys.path.insert(0, '{{ fileDirname }}')  # of "
            f'{module}.py, which is a copy\n\n'
        )
    elif source:
        imports.append(source)
    label = label or cls.__name__.removesuffix('Attention')
    name = re.sub('[^a-z0-9.]+', '-', label.lower())
    written = []
    for recipe in recipes or (*RECIPES, *BETWEEN):
        path = folder / recipe.file.replace('NAME', name)
        cfg = _config_of(recipe.base)
        cfg.custom_imports = dict(imports=imports, allow_failed_imports=False)
        recipe.give(cfg.model, attn_cfg)
        about = f'# {recipe.base} of mmlaplace, with {cls.__name__} {recipe.where}.\n'
        write_whole(path, f'{about}{head}{Config(cfg.to_dict()).pretty_text}')
        written.append(path)
    return written
