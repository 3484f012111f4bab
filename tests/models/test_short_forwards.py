"""What a forward asks of torch and of Python: operators that are no views, calls, and files."""

import pytest
import torch
from called_ops import Called, calls_of

import mmlaplace
from mmlaplace.ops import _native

# On a CPU, for an image of 224 x 224 pixels. Operators are at most those of timm's model (297 of
# Swin, 473 of SwinV2, 133 of PVTv2), or 1.1 times those of the authors' (1116 of CSWin, 727 of
# MLLA, 561 of RAVLT). There is no other LaplacianFormer. timm's EfficientViT has 260 and gives a
# vector. Ours copies maps to the memory format of the images: of channels-last images it has 259.
FORWARDS = {
    'swin-tiny': dict(ops=190, calls=400, files=11),
    'swinv2-tiny-w8': dict(ops=445, calls=520, files=14),
    'ravlt-tiny': dict(ops=370, calls=400, files=16),
    'cswin-tiny': dict(ops=730, calls=1650, files=12),
    'mlla-tiny': dict(ops=760, calls=950, files=16),
    'efficientvit-b1': dict(ops=264, calls=280, files=12),
    'pvtv2-b0': dict(ops=125, calls=180, files=8),
    'laplacianformer-tiny': dict(ops=150, calls=365, files=16),
    'agent-deit-tiny': dict(ops=285, calls=585, files=14),
}


@pytest.mark.skipif(_native.WHY_MISSING is not None, reason='the compiled library is missing')
@pytest.mark.parametrize('mode', [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize('name', FORWARDS)
def test_a_forward_takes_few_operators_and_calls(name, mode):
    most = FORWARDS[name]
    backbone, images = mmlaplace.create_backbone(name).eval(), torch.randn(1, 3, 224, 224)
    with mode():
        backbone(images)  # its tables are kept from now on
        met = [code.co_filename for code in calls_of(lambda: backbone(images))]
    with torch.no_grad(), Called() as called:
        backbone(images)
    assert len(called.computing) <= most['ops']
    assert len(met) <= most['calls']
    assert len(set(met)) <= most['files'], sorted(set(met))
