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
    # Those that are configs of their own.
    *[((f'soft/{name}_1xb32_mini',) * 2, []) for name in ('soft-micro-exact', 'softpp-vit-micro')],
]  # fmt: skip


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


@pytest.mark.slow
@pytest.mark.parametrize(('configs', 'options'), ROWS)
def test_a_row_builds_at_full_size_and_trains_at_mini_size(configs, options):
    full, mini = configs
    with torch.device('meta'):
        toolbox_model(with_options(full, options))
    step(with_options(mini, options))
