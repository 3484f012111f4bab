"""A forward meets few files and functions of ours, most of which compute."""

import pytest
import torch
from conftest import calls_of

from mmlaplace.models import LaplacianFormer, PVTv2
from mmlaplace.ops import _native


@pytest.mark.skipif(_native.WHY_MISSING is not None, reason='the compiled library is missing')
@pytest.mark.parametrize('mode', [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    ('backbone', 'arch', 'files', 'calls'),
    [(PVTv2, 'b0', 8, 300), (LaplacianFormer, 'tiny', 14, 400)],
)
def test_a_forward_is_short(backbone, arch, files, calls, mode):
    model, images = backbone(arch).eval(), torch.randn(1, 3, 224, 224)
    with mode():
        model(images)  # tables of positions are kept from now on
        met = [code.co_filename for code in calls_of(lambda: model(images))]
    assert len(met) <= calls
    assert len(set(met)) <= files, sorted(set(met))
