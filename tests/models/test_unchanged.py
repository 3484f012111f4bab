"""Backbones without a file of their authors compute what was recorded.

LaplacianFormer's authors have released no code. Of PolaFormer on PVTv2 and on DeiT,
``tests/data/golden`` has the attention and the hosts, but not the two together.
"""

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.registry import MODELS

from mmlaplace.models.pyramid import arch

DATA = np.load(Path(__file__).parent.parent / 'data' / 'backbones.npz')
SIZES = ((64, 64), (80, 52))  # that of the training images, and one that is odd somewhere
FOUR = arch((32, 64, 96, 128), (1, 2, 2, 1), ffn_ratios=(2, 2, 2, 2))
LAPLACIAN = dict(type='LaplacianFormer')
CASES = {
    'laplacian': LAPLACIAN,
    'laplacian_pool_ratio': dict(LAPLACIAN, attn_cfg=dict(per_stage=dict(pool_ratio=(8, 4, 2, 1)))),
    'pola_pvtv2': dict(type='PolaFormerPVTv2'),
    'pola_deit': dict(type='PolaFormerDeiT', arch=arch((48,), (2,), (3,), (2,))),
}


def made_up_weights(names_and_shapes):
    """Values that depend on nothing but their names."""
    weights = {}
    for name, shape in names_and_shapes:
        chance = np.random.default_rng(zlib.crc32(name.encode()))
        value = chance.standard_normal(shape) if shape else np.zeros(())
        if name.endswith('running_var'):
            value = np.abs(value) + 0.5
        elif 'norm' in name and name.endswith('weight'):
            value = 1 + 0.1 * value
        elif len(shape) > 1:
            value = value * (0.5 / max(np.prod(shape[1:]), 1) ** 0.5)
        else:
            value = 0.1 * value
        weights[name] = torch.from_numpy(np.asarray(value))
    return weights


@pytest.mark.parametrize('case', CASES)
def test_the_same_weights_give_the_recorded_outputs(case):
    model = MODELS.build(dict(dict(arch=FOUR, img_size=64), **CASES[case])).double().eval()
    model.load_state_dict(made_up_weights(json.loads(str(DATA[f'{case}/names']))))
    for size in SIZES:
        chance = np.random.default_rng(1)
        with torch.no_grad():
            outs = model(torch.from_numpy(chance.standard_normal((2, 3, *size))))
        for i, out in enumerate(outs):
            expected = torch.from_numpy(DATA[f'{case}/{size[0]}x{size[1]}/{i}'])
            found = out.flatten()[:: max(out.numel() // 250, 1)][:250]
            # The same sums in fp64. Another machine may add in another order.
            torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)
