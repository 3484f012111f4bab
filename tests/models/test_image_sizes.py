"""Released weights at the size of segmentors: what depends on the size is resized."""

import pytest
import torch
from conftest import quiet_init
from mmengine.registry import MODELS
from test_golden import MODEL_CONFIGS, read

from mmlaplace.checkpoints import load_weights

KINDS = [
    'agent_pvt_small', 'agent_swin_small', 'flatten_pvt_small', 'flatten_swin_small',
    'inline_swin_small', 'pola_pvt_small',
]  # fmt: skip


def converted(name, tmp_path, **options):
    """A backbone of the golden file's weights, with options changed."""
    weights = {key: value.float() for key, value in read(name)[1].items()}
    torch.save(dict(model=weights), tmp_path / 'theirs.pth')
    config = {**MODEL_CONFIGS[name], 'out_indices': (0, 1, 2, 3), 'out_norms': False, **options}
    backbone = MODELS.build(config).eval()
    quiet_init(backbone)
    load_weights(backbone, tmp_path / 'theirs.pth')
    return backbone


@pytest.mark.slow
@pytest.mark.parametrize('name', KINDS)
def test_weights_are_resized_alike_when_loaded_and_in_the_forward(name, tmp_path):
    size = (512, 704)  # of 683 pixels, which the toolboxes pad to a multiple of 32
    small, large = converted(name, tmp_path), converted(name, tmp_path, img_size=size)
    images = torch.randn(1, 3, *size)
    with torch.no_grad():
        for a, b in zip(small(images), large(images)):
            assert a.isfinite().all()
            assert (a - b).abs().max() <= 1e-4 * b.abs().max()


def test_a_classifier_without_its_class_token_is_another_model(tmp_path):
    maps = dict(with_cls_token=False, out_type='featmap', out_indices=-1)
    with pytest.raises(ValueError, match='cls_'):
        converted('pvt_small_cls', tmp_path, **maps)
