"""The papers' ablations as ``--cfg-options``: they build at full size and train at mini size."""

import argparse

import pytest
import torch
from conftest import ROOT, quiet_init, toolbox_config, toolbox_model
from mmengine.config import DictAction

CONFIGS = ROOT / 'configs/classification'
SOFTPP = ('soft/softpp-tiny_8xb128_in1k', 'soft/softpp-micro_1xb32_mini')
DEIT = ('polaformer/polaformer-deit-tiny_8xb128_in1k', 'polaformer/polaformer-pvt-micro_1xb32_mini')
LAPLACIAN = (
    'laplacianformer/laplacianformer-tiny_8xb128_in1k',
    'laplacianformer/laplacianformer-micro_1xb32_mini',
)
ATTN = 'model.backbone.attn_cfg.'
# A method that is no convolution takes one of num_landmarks and pool_ratio. The mini config gives
# them for each stage.
PICKED = [f'{ATTN}landmark_method={{}}', f'{ATTN}pool_ratio=None']
PICKED_MINI = [*PICKED, f'{ATTN}per_stage.pool_ratio=None,None,None,None']
ROWS = [
    *[(SOFTPP, [f'{ATTN}{option}']) for option in (
        'qkv=qkv', 'solver=svd', 'solver=cholesky', 'normalized=False', 'newton_start_per=batch',
    )],
    (SOFTPP, ['model.backbone.overlapping_patches=False']),
    (SOFTPP, ['model.backbone.drop_path_per=element', 'model.backbone.drop_path_rate=0.1']),
    *[(DEIT, [f'{ATTN}{option}' for option in options.split()]) for options in (
        'polarity=False', 'gate=False', 'lepe_kernel=0', 'lepe_deformable=True', 'power=3',
        'power=1', 'alpha=3',
        *[f'gate_form=matrix gate_init={init}'
          for init in ('kaiming_uniform', 'zeros', 'normal', 'uniform', 'ones')],
    )],
    *[(LAPLACIAN, [f'{ATTN}{option}']) for option in (
        'solver=conjugate_gradient', 'solver=newton_schulz', 'whitening=none', 'whitening=literal',
        'kernel=gaussian', 'bandwidth=0.5',
    )],
    (LAPLACIAN, ['model.backbone.overlapping_patches=False']),
]  # fmt: skip
WITHOUT_OPTIONS = ['soft/soft-micro-exact_1xb32_mini', 'soft/softpp-vit-micro_1xb32_mini']


def with_options(name, options):
    """The config as ``--cfg-options`` changes it."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--cfg-options', nargs='+', action=DictAction)
    cfg = toolbox_config(CONFIGS / f'{name}.py')
    if options:
        cfg.merge_from_dict(parser.parse_args(['--cfg-options', *options]).cfg_options)
    return cfg


def step(cfg):
    """One step of training on random images of the mini data's size."""
    model = toolbox_model(cfg).train()
    quiet_init(model)
    images, labels = torch.randn(4, 3, 48, 48), torch.tensor([1, 2, 3, 4])
    features = model.extract_feat(images)
    score = model.head.fc(model.head.pre_logits(features))
    loss = torch.nn.functional.cross_entropy(score, labels)
    loss.backward()
    assert loss.isfinite()
    learned = [(name, p.grad) for name, p in model.named_parameters() if p.requires_grad]
    assert [name for name, g in learned if g is None or not g.isfinite().all()] == []


def attentions(options):
    """Those of the first three stages of SOFT++ at full size."""
    with torch.device('meta'):
        model = toolbox_model(with_options(SOFTPP[0], options))
    return [stage['blocks'][0].attn for stage in model.backbone.stages[:3]]


@pytest.mark.slow
@pytest.mark.parametrize(('configs', 'options'), ROWS)
def test_a_row_builds_at_full_size_and_trains_at_mini_size(configs, options):
    full, mini = configs
    with torch.device('meta'):
        toolbox_model(with_options(full, options))
    step(with_options(mini, options))


@pytest.mark.parametrize('name', WITHOUT_OPTIONS)
def test_a_row_that_is_a_config_trains_at_mini_size(name):
    step(with_options(name, []))


@pytest.mark.parametrize('count', [36, 49, 64, 81])
def test_numbers_of_landmarks_are_those_of_the_row(count):
    found = attentions([f'{ATTN}num_landmarks={count}', f'{ATTN}pool_ratio=None'])
    assert [attn.landmarks.num_landmarks for attn in found] == [count] * 3
    # The stride leaves no room for a further landmark on a side of 56, 28 and 14 tokens.
    for attn, side in zip(found, (56, 28, 14)):
        ratio = attn.landmarks.pool_ratio
        assert ratio * attn.landmarks.side <= side < (ratio + 1) * attn.landmarks.side


@pytest.mark.slow
@pytest.mark.parametrize('method', ['pool', 'random', 'first'])
def test_other_landmarks_than_the_convolutions(method):
    found = [a.landmarks for a in attentions([option.format(method) for option in PICKED])]
    assert [(one.method, one.num_landmarks) for one in found] == [(method, 49)] * 3
    step(with_options(SOFTPP[1], [option.format(method) for option in PICKED_MINI]))
