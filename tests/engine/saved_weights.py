"""A small backbone, its weights in files, whether they are those of another, and trainings."""

import copy
from unittest import mock

import pytest
import torch
from mmengine.registry import MODELS
from mmengine.runner import Runner

from mmlaplace.checkpoints import load_weights, read_state_dict

ARCH = dict(
    embed_dims=(8, 16, 16, 32), depths=(1, 1, 2, 1), num_heads=(1, 1, 2, 2), ffn_ratios=(2,) * 4
)


def build(**kwargs):
    return MODELS.build(dict(dict(type='LaplacianFormer', arch=ARCH, img_size=32), **kwargs))


def same(module, weights) -> bool:
    own = module.state_dict()
    return set(own) == set(weights) and all(torch.equal(own[k], weights[k]) for k in own)


def save(path, weights, prefix='', container='state_dict', **beside):
    content = {prefix + name: value for name, value in weights.items()}
    torch.save({container: content, **beside} if container else content, path)
    return str(path)


def assert_refused(module, file, message, **options):
    """The weights are refused with a message, and the module stays as it was."""
    before = {k: v.clone() for k, v in module.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        load_weights(module, file, **options)
    assert same(module, before)


def assert_unreadable(source, message):
    with pytest.raises((ValueError, OSError, ImportError), match=message):
        read_state_dict(source)


def without(weights, name):
    return {k: v for k, v in weights.items() if not k.startswith(name)}


def train(folder, model, iterations=4, **options) -> Runner:
    """mmengine's Runner after so many iterations on noise."""
    torch.manual_seed(1)
    # Of four batches: mmengine waits for two seconds before it begins with its data again.
    data = [dict(inputs=torch.randn(3, 32, 32), data_samples=None) for _ in range(16)]
    sampler = dict(type='DefaultSampler', shuffle=True)
    with mock.patch.object(Runner, '_log_env'):  # which asks all compilers for their version
        runner = Runner(
            model,
            str(folder),
            dict(dataset=data, batch_size=4, num_workers=0, sampler=sampler),
            train_cfg=dict(by_epoch=False, max_iters=iterations),
            optim_wrapper=dict(optimizer=dict(type='SGD', lr=1e-3)),
            log_processor=dict(by_epoch=False),
            log_level='ERROR',
            randomness=dict(seed=0),
            experiment_name=folder.name,
            **copy.deepcopy(options),  # which it changes
        )
    runner.train()
    return runner
