"""The study of SOFT's inverse writes figures that agree with the theory, and a picture."""

import json

import pytest
import torch
from conftest import ROOT, run_script
from mmengine.config import Config
from mmengine.registry import MODELS
from PIL import Image


@pytest.mark.slow
def test_the_study_of_inverses_writes_figures_and_a_picture(tmp_path):
    config = ROOT / 'configs/classification/soft/softpp-micro_1xb32_mini.py'
    backbone = MODELS.build(Config.fromfile(config).model.backbone)
    torch.save(backbone.state_dict(), tmp_path / 'weights.pth')
    out, picture = tmp_path / 'figures.json', tmp_path / 'picture.png'
    command = [
        ROOT / 'tools/analysis_tools/compare_inverse_norms.py', config, tmp_path / 'weights.pth',
        '--landmarks', '4', '16', '--size', '96', '96', '--out', out, '--picture', picture,
    ]  # fmt: skip
    result = run_script(*command)
    assert result.returncode == 0, result.stderr
    assert min(Image.open(picture).size) > 300
    forms = json.loads(out.read_text())['norms']['trained']
    for few, many in zip(forms['without, exact'], forms['with, exact']):
        assert many['mean'] < few['mean']  # the row sums are larger than one
    result = run_script(*command)
    assert result.returncode == 2
    assert '--force replaces' in result.stderr
