"""A small backbone, and its training by mmengine's Runner."""

import copy
from unittest import mock

import torch
from mmengine.registry import MODELS
from mmengine.runner import Runner

ARCH = dict(
    embed_dims=(8, 16, 16, 32), depths=(1, 1, 2, 1), num_heads=(1, 1, 2, 2), ffn_ratios=(2,) * 4
)


def build(**kwargs):
    return MODELS.build(dict(dict(type='LaplacianFormer', arch=ARCH, img_size=32), **kwargs))


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
