"""tools/visualization/paper_figures.py: numbers that agree with the theory, and their pictures."""

import json
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, output_of, refusal_of
from mmengine.config import Config
from mmengine.registry import MODELS
from PIL import Image

from mmlaplace.lab.reproduction import figure_numbers as numbers
from mmlaplace.models import SOFTAttention
from mmlaplace.ops import gaussian_kernel

TOOL = ROOT / 'tools/visualization/paper_figures.py'
SOFTPP = ROOT / 'configs/classification/soft/softpp-micro_1xb32_mini.py'
POLA = ROOT / 'configs/classification/polaformer/polaformer-pvt-micro_1xb32_mini.py'


def draw(name, folder, *arguments) -> dict:
    """The numbers of a figure, which is drawn twice: as it is made, and from its numbers."""
    picture = folder / f'{name}.png'
    output_of(TOOL, name, '--out', picture, '--device', 'cpu', *arguments)
    again = folder / 'again.png'
    output_of(TOOL, name, '--out', again, '--force', '--numbers', picture.with_suffix('.json'))
    assert picture.stat().st_size > 5000 and again.read_bytes() == picture.read_bytes()
    return json.loads(picture.with_suffix('.json').read_text())


def model_of(config, folder, label) -> tuple:
    """The options for a model of random weights."""
    weights = folder / f'{config.stem}.pth'
    torch.save(MODELS.build(Config.fromfile(config).model.backbone).state_dict(), weights)
    return '--model', config, weights, label


@pytest.mark.parametrize('normalized', [False, True])
def test_residuals_fall_to_nothing_for_a_matrix_that_is_well_conditioned(normalized):
    attention = SOFTAttention(32, 1, (14, 14), pool_ratio=2, normalized=normalized)
    kernel = gaussian_kernel(*[0.2 * torch.randn(1, 1, 49, 32)] * 2, 1.0)  # entries of about 0.3
    found = numbers.residuals(attention, kernel)
    assert found.shape == (1, numbers.STEPS + 1)
    assert (found[:, 1:8] < found[:, :7]).all()  # it falls while it is far from its end
    assert found[0, -1] < 1e-5  # rounding in fp32, with a condition number of some tens


@pytest.mark.slow
def test_memory_over_tokens_is_quadratic_with_matrices_and_linear_without():
    args = SimpleNamespace(depth=1, multiples=[1, 2], memory=16, device='cpu')
    lines = numbers.memory(args)['lines']
    assert list(lines) == list(numbers.ATTENTIONS)
    growth = {name: line[1]['MB'] / line[0]['MB'] for name, line in lines.items()}
    assert growth.pop('Transformer, matrices kept') > 3
    assert all(ratio < 2.2 for ratio in growth.values())


def test_numbers_that_are_there_are_kept(tmp_path):
    numbers = tmp_path / 'figure.json'
    numbers.write_text('mine')
    told = refusal_of(TOOL, 'softpp-1a', '--out', numbers.with_suffix('.png'))
    assert f'{numbers} is there already; --force' in told
    assert numbers.read_text() == 'mine'


@pytest.mark.slow
def test_figures_of_published_points_are_drawn(tmp_path):
    (tmp_path / 'result.json').write_text('{"scores": {"accuracy/top1": 50.0}}')
    run = ('--run', SOFTPP, tmp_path / 'result.json', 'SOFT++ micro')
    found = draw('softpp-1a', tmp_path, *run)
    assert found['twins'][0]['top-1'] == 50.0 and 0.1 < found['twins'][0]['parameters'] < 5
    rows = ('--rows', 'pvtv2-b0', 'pvtv2-b0-mobiatt')
    found = draw('polaformer-4', tmp_path, '--rounds', '1', *rows)
    assert found['left_out'] == ['PVTv2-b0-MobiAtt']
    assert [point['name'] for point in found['points'] if 'seconds' in point] == ['pvtv2-b0']


@pytest.mark.slow
def test_figures_of_a_soft_model_are_drawn(tmp_path):
    model = (*model_of(SOFTPP, tmp_path, 'SOFT++'), '--image-size', '64', '64')
    (stages,) = (found['stages'] for found in draw('softpp-5', tmp_path, *model)['sets'].values())
    assert [stage['stage'] for stage in stages] == [1, 2, 3]
    assert all(s['low'][k] <= s['mean'][k] <= s['high'][k] for s in stages for k in (0, 20))
    found = draw('softpp-6a', tmp_path, *model, '--landmarks', '64')
    values = found['stages'][0]['values']
    # The trace of a Gaussian kernel is the number of landmarks.
    assert sum(values) == pytest.approx(64, rel=1e-4) and values == sorted(values, reverse=True)
    trained = draw('softpp-6b', tmp_path, *model)['norms']['trained']
    assert [row['landmarks'] for row in trained['with, exact']] == [49, 100, 196]


@pytest.mark.slow
def test_figures_of_a_pola_model_are_drawn(tmp_path):
    model = model_of(POLA, tmp_path, 'PolaFormer')
    found = draw('polaformer-3', tmp_path, *model)
    assert not found['matrix'] and all(-1 <= b['correlation'] <= 1 for b in found['blocks'])
    Image.new('RGB', (48, 48), 'teal').save(tmp_path / 'one.png')
    other = (*model_of(SOFTPP, tmp_path, 'SOFT++'), '--images', 'one', tmp_path)
    blocks = draw('polaformer-5', tmp_path, *model, *other)['models']['PolaFormer']
    assert all(0 <= block['entropy'] <= 1.001 for block in blocks.values())
