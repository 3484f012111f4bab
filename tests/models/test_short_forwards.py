"""What a forward asks of torch and of Python: operators that are no views, calls, and files."""

import pytest
import torch
from called_ops import Called, calls_of
from test_backbones import build

from mmlaplace.ops import _native

# On a CPU, for an image of 224 x 224 pixels. Operators are at most those of timm's model (297 of
# Swin, 133 of PVTv2), or 1.1 times those of the authors' (1116 of CSWin, 561 of RAVLT). There is
# no other LaplacianFormer.
FORWARDS = {
    ('Swin', 'tiny'): dict(ops=190, calls=400, files=11),
    ('RAVLT', 'tiny'): dict(ops=370, calls=400, files=16),
    ('CSWin', 'tiny'): dict(ops=730, calls=1650, files=12),
    ('MLLA', 'tiny'): dict(ops=760, calls=950, files=16),
    ('EfficientViT', 'b1'): dict(ops=271, calls=280, files=12),
    ('PVTv2', 'b0'): dict(ops=125, calls=180, files=8),
    ('LaplacianFormer', 'tiny'): dict(ops=150, calls=330, files=15),
}


@pytest.mark.skipif(_native.WHY_MISSING is not None, reason='the compiled library is missing')
@pytest.mark.parametrize('mode', [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize('model', FORWARDS, ids=lambda model: model[0])
def test_a_forward_takes_few_operators_and_calls(model, mode):
    most = FORWARDS[model]
    backbone, images = build(*model, img_size=224).eval(), torch.randn(1, 3, 224, 224)
    with mode():
        backbone(images)  # its tables are kept from now on
        met = [code.co_filename for code in calls_of(lambda: backbone(images))]
    with torch.no_grad(), Called() as called:
        backbone(images)
    assert len(called.computing) <= most['ops']
    assert len(met) <= most['calls']
    assert len(set(met)) <= most['files'], sorted(set(met))
