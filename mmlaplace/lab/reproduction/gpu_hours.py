"""Estimates of the GPU hours of a training, from its MACs. None is measured."""

from typing import Optional

from ...model_zoo import read_models
from .paper_tables import Run

PEAK = 312e12  # FLOPs a second of an NVIDIA A100 in half precision, by its data sheet
UTILISATION = 0.1  # of the peak, in a training of a vision transformer; an assumption
PASSES = 3  # the backward pass takes twice the forward pass
IMAGES = {'ImageNet': 1_281_167, 'CocoDataset': 117_266}  # of an epoch; in COCO those with objects
NOTE = (
    'GPU hours are estimated, not measured: 3 x 2 x MACs x images x epochs at '
    f'{100 * UTILISATION:.0f} % of the {PEAK / 1e12:.0f} TFLOPS of an A100 in half precision'
)


def gpu_hours(run: Run) -> Optional[float]:
    """Estimated hours of one GPU for the training of a row.

    Args:
        run: A run of a row.

    Returns:
        The hours. None where nothing is trained, or where MACs or images are not known.

    Raises:
        ImportError: If the toolbox of the config is not installed.
    """
    if run.full is None or not run.trained or (run.weights and run.weights.use == 'test'):
        return None
    giga = run.published.get('MACs') or run.published.get('MACs with kernels')
    macs = 1e9 * float(giga) if giga else _counted(run.full.config)
    images = _images(run.full.load())
    if macs is None or images is None:
        return None
    return PASSES * 2 * macs * images / (UTILISATION * PEAK) / 3600


def _counted(config: str) -> Optional[float]:
    """MACs that the metafile of a config of ours has."""
    for model in read_models():
        if model.config is not None and model.config.as_posix().endswith(config):
            return model.metadata.get('MACs')
    return None


def _images(cfg) -> Optional[int]:
    """Images that a training sees."""
    loop = cfg.train_cfg
    if loop.get('max_iters'):
        batch = cfg.get('auto_scale_lr', {}).get('base_batch_size')
        return loop.max_iters * batch if batch else None
    dataset = cfg.train_dataloader.dataset
    while 'dataset' in dataset:  # of a wrapper
        dataset = dataset.dataset
    count = IMAGES.get(dataset.type)
    return count * loop.max_epochs if count else None
