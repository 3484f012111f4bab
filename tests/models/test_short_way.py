"""A forward meets few files and functions of ours, most of which compute."""

import sys

import pytest
import torch
from conftest import ROOT

from mmlaplace.models import LaplacianFormer, PVTv2
from mmlaplace.ops import _native

PACKAGE = str(ROOT / 'mmlaplace')


def calls_of(function) -> list:
    """The files of our functions that a call of ``function`` calls, one for each call."""
    files = []

    def note(frame, event, argument):
        if event == 'call' and frame.f_code.co_filename.startswith(PACKAGE):
            files.append(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return files


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
        met = calls_of(lambda: model(images))
    assert len(met) <= calls
    assert len(set(met)) <= files, sorted(set(met))
