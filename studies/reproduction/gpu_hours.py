"""Estimates of the GPU hours of a training, from its MACs. None is measured."""

import re
from pathlib import Path
from typing import Any, Optional

from mmlaplace.model_zoo import read_models

from .paper_tables import Run

PEAK = 312e12  # FLOPs a second of an NVIDIA A100 in half precision, by its data sheet
UTILISATION = 0.1  # of the peak, in a training of a vision transformer; an assumption
PASSES = 3  # the backward pass takes twice the forward pass
IMAGES = {'ImageNet': 1_281_167, 'CocoDataset': 117_266}  # of an epoch; in COCO those with objects
NOTE = (
    'GPU hours are estimated, not measured: 3 x 2 x MACs x images x epochs at '
    f'{100 * UTILISATION:.0f} % of the {PEAK / 1e12:.0f} TFLOPS of an A100 in half precision; '
    'detectors and segmentors by their backbones alone'
)


def gpu_hours(run: Run) -> Optional[float]:
    """Estimated hours of one GPU for the training of a row.

    MACs are the published ones, or those of the metafile. Detectors and segmentors have the MACs of
    their backbone's classifier, in proportion to the pixels, and no more for their heads.

    Args:
        run: A run of a row.

    Returns:
        The hours. None where nothing is trained, or where MACs or images are not known.

    Raises:
        ImportError: If the toolbox of the config is not installed.
    """
    if run.full is None or not run.trained or (run.weights and run.weights.use == 'test'):
        return None
    cfg = run.full.load()
    giga = run.published.get('MACs') or run.published.get('MACs with kernels')
    macs = 1e9 * float(giga) if giga else _counted(run.full.config, cfg)
    images = _images(run.full.config, cfg)
    if macs is None or images is None:
        return None
    return PASSES * 2 * macs * images / (UTILISATION * PEAK) / 3600


def _counted(config: str, cfg: Any) -> Optional[float]:
    """MACs of an image by the metafile of a classifier, for a config of ours."""
    name, best = Path(config).stem, None
    for model in read_models():
        if model.config is None or 'MACs' not in model.metadata:
            continue
        if model.name == name:
            return model.metadata['MACs']
        backbone = model.name.split('_')[0]
        if f'_{backbone}_' in f'_{name}_' and 'px' not in model.name:
            best = model.metadata['MACs']
    size = cfg.get('data_preprocessor', {}).get('size') or cfg.get('crop_size')
    height, width = size or (800, 1216)  # COCO's images have sides of 4 : 3 and 3 : 2
    return best and best * height * width / 224**2


def _images(config: str, cfg: Any) -> Optional[int]:
    """Images that a training sees."""
    loop = cfg.train_cfg
    if loop.get('max_iters'):
        sizes = re.search(r'(\d+)xb(\d+)', config)  # GPUs and images of each
        return loop.max_iters * int(sizes[1]) * int(sizes[2]) if sizes else None
    dataset = cfg.train_dataloader.dataset
    while 'dataset' in dataset:  # of a wrapper
        dataset = dataset.dataset
    count = IMAGES.get(dataset.type)
    return count * loop.max_epochs if count else None
