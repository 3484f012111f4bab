"""The attentions, hosts and configs of a study that trains all attentions in the same way.

It trains each attention in the same host, on the mini data sets.
"""

from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import yaml
from mmengine.config import Config
from mmengine.utils import digit_version
from mmengine.utils.dl_utils import TORCH_VERSION

from ...model_zoo import files_root
from ..mini_datasets.fashion import DIGESTS as FASHION_FILES
from .attention_file import find_attention, name_and_options, registered_attentions

BASE = files_root() / 'configs/classification/laplacianformer/laplacianformer-micro_1xb32_mini.py'
SIZES = (224, 512, 1024, 2048)  # sides of the images for the measurement of time and memory
LANDMARKS = 16  # 64 x 64 pixels give 16 x 16 tokens in the first stage and 2 x 2 in the last


class Phase(NamedTuple):
    """One training: data set, side of its images, number of classes, epochs and learning rate."""

    data: str
    side: int
    classes: int
    epochs: int
    lr: float


class Column(NamedTuple):
    """A test, which is a column of the table.

    Attributes:
        data: The data set. The test follows the phase with this data set.
        folder: Its folder with the images. Fashion-MNIST has none.
        side: Side to which the images are enlarged. Default: they stay as they are.
        images: Number of test images, the first ones. Default: all.
    """

    data: str
    folder: str = ''
    side: Optional[int] = None
    images: Optional[int] = None


class Study(NamedTuple):
    """A sequence of trainings, and the tests after them.

    Attributes:
        phases: The trainings. Each starts from the weights of the one before.
        columns: The tests, by the titles of their columns.
        flip: Whether training images are mirrored at random.
        batch_size: Images in a step. Default: 32.
        shift: Pixels by which training images are shifted at most. Default: 3.
        dataset: Class of the data sets in mmpretrain. Default: folders of images.
        host: The host of its table, a key of ``HOSTS``. Default: ``'laplacianformer'``.
    """

    phases: Tuple[Phase, ...]
    columns: Dict[str, Column]
    flip: bool
    batch_size: int = 32
    shift: int = 3
    dataset: str = 'CustomDataset'
    host: str = 'laplacianformer'


STUDIES = {
    'textures': Study(
        (Phase('textures', 64, 15, 4, 1.5e-3),),
        {
            '64² (1×)': Column('textures', 'val'),
            '96² (1.5×)': Column('textures', 'val_96'),
            '128² (2×)': Column('textures', 'val_128'),
        },
        flip=True,
    ),
    # In a training on crowds from scratch, the loss stays at chance level for many epochs.
    'digits': Study(
        (Phase('classification', 48, 10, 11, 1e-3), Phase('crowds', 48, 10, 6, 1e-3)),
        {
            'single digits, 48²': Column('classification', 'val'),
            'crowds, 48² (1×)': Column('crowds', 'val'),
            'crowds, 72² (1.5×)': Column('crowds', 'val_72'),
            'crowds, 96² (2×)': Column('crowds', 'val_96'),
        },
        flip=False,
    ),
    'fashion': Study(
        (Phase('fashion', 28, 10, 2, 2e-3),),
        {
            '28²': Column('fashion'),
            '42² (1.5×)': Column('fashion', side=42, images=2000),
            '56² (2×)': Column('fashion', side=56, images=2000),
        },
        flip=True,
        batch_size=64,
        shift=1,
        dataset='FashionMNIST',
        host='small_images',
    ),
}


def in_windows(attn_cfg: dict) -> List:
    """An attention in Swin's first two stages, as in PolaFormer, and Swin's own in the others.

    The windows of these two stages cover the whole map of an image of 64 x 64 pixels.
    """
    return [dict(window_size=16, even_windows=True, attn_cfg=attn_cfg)] * 2 + [None] * 2


SMALL = dict(
    embed_dims=[16, 32, 64, 128],
    depths=[1, 1, 2, 1],
    num_heads=[1, 1, 2, 4],
    ffn_ratios=[4, 4, 4, 4],
)
SHORT = dict(embed_dims=[64], depths=[4], num_heads=[2], ffn_ratios=[4])
# Host: config of the backbone, channels of its last map, and function that makes ``attn_cfg`` from
# the attention's config.
HOSTS: Dict[str, Tuple[Dict[str, Any], int, Callable[[dict], Any]]] = {
    'laplacianformer': (dict(type='LaplacianFormer', arch='micro'), 128, lambda cfg: cfg),
    # 28 x 28 pixels give 14 x 14 tokens in the first stage.
    'small_images': (
        dict(type='LaplacianFormer', arch=SMALL, strides=[2, 2, 2, 2]),
        128,
        lambda cfg: cfg,
    ),
    'vit': (dict(type='ViT', arch=SHORT, patch_size=4, with_cls_token=False), 64, lambda cfg: cfg),
    'swin': (dict(type='Swin', arch='micro'), 256, in_windows),
    'pvt': (dict(type='PVT', arch='micro'), 128, lambda cfg: cfg),
}
# Further candidates: registered attentions with other options.
WITH_OPTIONS = {
    'LaplacianAttention, Gaussian': dict(type='LaplacianAttention', kernel='gaussian'),
    'LaplacianAttention, literal': dict(type='LaplacianAttention', whitening='literal'),
    'LaplacianAttention, rows': dict(
        type='LaplacianAttention', normalization='rows', landmarks_from='queries'
    ),
    'LaplacianAttention, Gaussian, rows': dict(
        type='LaplacianAttention',
        kernel='gaussian',
        normalization='rows',
        landmarks_from='queries',
    ),
    'KernelAttention, Laplacian': dict(type='KernelAttention', kernel='laplacian'),
    'PerformerAttention, ReLU': dict(type='PerformerAttention', features='relu'),
}
# What options of an attention do. The first of each question has the defaults. Options that are a
# key above have its name, so one training serves both tables.
ABLATIONS: Dict[str, Tuple[str, ...]] = {
    'bandwidth': (
        'LaplacianAttention',
        *(f'LaplacianAttention, bandwidth={x}' for x in (0.5, 1, 2, 8)),
    ),
    'kernel': ('LaplacianAttention', 'LaplacianAttention, Gaussian', 'NystromformerAttention'),
    'whitening': (
        'LaplacianAttention',
        'LaplacianAttention, literal',
        'LaplacianAttention, whitening=none',
    ),
    'landmarks': (
        'LaplacianAttention',
        *(f'LaplacianAttention, num_landmarks={x}' for x in (9, 25, 49, 100)),
    ),
    'soft': (
        'SOFTAttention',
        'SOFTAttention, normalized=false',
        'SOFTAttention, solver=cholesky',
        'SOFTAttention, landmark_method=pool',
        'SOFTAttention, lepe_kernel=0',
    ),
    'polaformer': (
        'PolaAttention',
        'PolaAttention, polarity=false',
        'PolaAttention, gate=false',
        'PolaAttention, power=1',
        'PolaAttention, power=3',
    ),
}


def candidates() -> Dict[str, dict]:
    """Configs of all registered attentions, and of some with options, by name."""
    return {name: config_of(name) for name in sorted([*registered_attentions(), *WITH_OPTIONS])}


def config_of(name: str, landmarks: Optional[int] = LANDMARKS) -> dict:
    """The config of an attention with the options that its name has.

    Args:
        name: A key of ``WITH_OPTIONS``, or an attention as in :func:`find_attention` with options
            in YAML after it, such as ``'PolaAttention, power=3, gate=false'``.
        landmarks: Landmarks of attentions that have them. Default: 16, as the small maps have room
            for few only. None: each attention's own default.

    Raises:
        ValueError: If there is no such attention or option.

    Examples:
        >>> from mmlaplace.lab.side_by_side.attention_study import config_of
        >>> config_of('LaplacianAttention, kernel=gaussian, bandwidth=2.0')
        {'type': 'LaplacianAttention', 'kernel': 'gaussian', 'bandwidth': 2.0, 'num_landmarks': 16}
    """
    kind, options = name_and_options(name)
    cfg: Dict[str, Any] = dict(WITH_OPTIONS.get(name, dict(type=kind)))
    if name not in WITH_OPTIONS:
        pairs = [option.partition('=') for option in options]
        try:
            cfg.update({option: yaml.safe_load(value) for option, _, value in pairs})
        except yaml.YAMLError as error:
            raise ValueError(f'options of {name!r} are no YAML, as power=3 is') from error
    attention: Any = find_attention(cfg['type'])
    cfg['type'] = attention.__name__
    known = attention.known_options()
    if unknown := [option for option in cfg if option not in ('type', *known)]:
        raise ValueError(f'{kind} has no options {unknown} (of {name!r}); it has {known}')
    if landmarks is not None and 'num_landmarks' in known and 'pool_ratio' not in cfg:
        cfg.setdefault('num_landmarks', landmarks)
    return cfg


def backbone_cfg(host: str, attn_cfg: dict, side: int) -> dict:
    """The config of a host with an attention, for images of ``side`` x ``side`` pixels."""
    backbone, _, give = HOSTS[host]
    return dict(backbone, img_size=side, out_indices=-1, attn_cfg=give(attn_cfg))


def phase_cfg(host: str, attn_cfg: dict, phase: Phase, study: Study, data_root: Path) -> Config:
    """The config of one training.

    Args:
        host: A key of ``HOSTS``.
        attn_cfg: Config of the attention.
        phase: Data set, image size, epochs and learning rate.
        study: The study, for what its trainings share.
        data_root: Folder with the mini data sets.
    """
    cfg = Config.fromfile(BASE)
    cfg.model.backbone = backbone_cfg(host, attn_cfg, phase.side)
    cfg.model.head.update(in_channels=HOSTS[host][1], num_classes=phase.classes)
    load, crop, pack = cfg.train_dataloader.dataset.pipeline
    crop.crop_size = phase.side
    crop.padding = study.shift
    flips = [dict(type='RandomFlip', prob=0.5)] if study.flip else []
    cfg.train_dataloader.dataset.pipeline = [load, crop, *flips, pack]
    cfg.train_dataloader.batch_size = study.batch_size
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        if study.dataset == 'FashionMNIST':
            # Grey images that need not be loaded. The model's normalisation repeats them for RGB.
            loader.dataset = dict(
                type=study.dataset,
                test_mode=loader is not cfg.train_dataloader,
                download=False,
                pipeline=loader.dataset.pipeline[1:],
                split='train' if loader is cfg.train_dataloader else 'test',
            )
        loader.dataset.data_root = str(data_root / phase.data)
        loader.update(num_workers=0, persistent_workers=False)  # parallel runs share the cores
    cfg.optim_wrapper.optimizer.lr = phase.lr
    if digit_version(TORCH_VERSION) >= digit_version('2.4'):  # it saves a tenth of a step's time
        cfg.optim_wrapper.optimizer.fused = True
    cfg.train_cfg.max_epochs = cfg.param_scheduler[-1]['end'] = phase.epochs
    cfg.train_cfg.val_interval = phase.epochs + 1  # the tests come after the training
    cfg.default_hooks.checkpoint.update(interval=1, max_keep_ckpts=1)
    return cfg


def settings_of(
    name: str, host: str, seed: int, study: str, epochs: Optional[int], device: str = 'cpu'
) -> dict:
    """The settings on which a result depends. They are stored with it.

    Args:
        name: The attention, as in :func:`config_of`.
        host: A key of ``HOSTS``.
        seed: Seed of the training.
        study: A key of ``STUDIES``.
        epochs: Epochs of each phase. None: those of the study.
        device: Where it is trained. Default: ``'cpu'``.

    Raises:
        ValueError: If there is no such attention or option.
    """
    phases = STUDIES[study].phases
    if epochs:
        phases = tuple(phase._replace(epochs=epochs) for phase in phases)
    return dict(
        attention=name,
        attn_cfg=config_of(name),
        host=host,
        seed=seed,
        study=study,
        phases=[phase._asdict() for phase in phases],
        **device_setting(device),
    )


def device_setting(device: str) -> dict:
    """The setting of a device. The CPU is none, as in logs from before there was a choice."""
    return {} if device == 'cpu' else dict(device=device)


def cost_settings(name: str, host: str, sizes: Sequence[int], device: str = 'cpu') -> dict:
    """The settings on which the cost of a host with an attention depends.

    Args:
        name: The attention, as in :func:`config_of`. It has its own default of landmarks.
        host: A key of ``HOSTS``.
        sizes: Sides of the images, in pixels.
        device: Where it is measured. Default: ``'cpu'``.
    """
    attn_cfg = config_of(name, landmarks=None)
    return dict(
        attention=name,
        attn_cfg=attn_cfg,
        host=host,
        sizes=list(sizes),
        **device_setting(device),
    )


def missing_data(study: str, data_root: Path) -> str:
    """A sentence with the command that makes the missing data of a study, or ``''``."""
    files = FASHION_FILES if STUDIES[study].dataset == 'FashionMNIST' else ('',)  # or any file
    missing = [
        phase.data
        for phase in STUDIES[study].phases
        if not all(list((data_root / phase.data).glob(f'{name}*')) for name in files)
    ]
    if not missing:
        return ''
    return (
        f'{data_root} has no {missing}; make them with python tools/dataset_converters/'
        f'make_mini_datasets.py --out {data_root} --tasks {" ".join(missing)}'
    )
