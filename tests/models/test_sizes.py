"""Every named size is what it was: its parameters, heads and blocks."""

import pytest
import torch
from mmengine.registry import MODELS
from test_backbones import BACKBONES

# Parameters of the backbone alone, with all norms. docs/model_zoo.md has the published figures,
# which tests/configs/test_configs.py compares with whole classifiers.
PARAMETERS = {
    'LaplacianFormer': {
        'micro': (679_437, (1, 1, 2, 1), (1, 2, 3, 4)),
        'tiny': (11_548_416, (2, 2, 2, 2), (2, 4, 10, 16)),
        'small': (25_123_646, (3, 4, 8, 3), (2, 4, 11, 16)),
        'medium': (45_939_154, (3, 4, 13, 6), (2, 4, 12, 16)),
        'large': (62_343_110, (3, 4, 24, 5), (2, 4, 12, 16)),
        'huge': (77_883_501, (3, 4, 29, 4), (3, 6, 12, 20)),
    },
    'PolaFormerDeiT': {'tiny': (6_444_864, (12,), (3,))},
    'PolaFormerPVT': {
        'micro': (984_448, (1, 1, 2, 1), (1, 2, 3, 4)),
        'tiny': (12_410_624, (2, 2, 2, 2), (1, 2, 5, 8)),
        'small': (22_643_200, (3, 4, 6, 3), (1, 2, 5, 8)),
        'medium': (39_451_648, (3, 4, 18, 3), (1, 2, 5, 8)),
        'large': (53_852_544, (3, 8, 27, 3), (1, 2, 5, 8)),
    },
    'PolaFormerPVTv2': {
        'b0': (3_532_384, (2, 2, 2, 2), (1, 2, 5, 8)),
        'b1': (13_192_384, (2, 2, 2, 2), (1, 2, 5, 8)),
        'b2': (23_522_240, (3, 4, 6, 3), (1, 2, 5, 8)),
    },
    'PolaFormerSwin': {
        'micro': (1_585_712, (1, 1, 2, 1), (1, 2, 4, 8)),
        'tiny': (28_518_040, (2, 2, 6, 2), (3, 6, 12, 24)),
        'small': (49_835_944, (2, 2, 18, 2), (3, 6, 12, 24)),
        'base': (88_114_656, (2, 2, 18, 2), (4, 8, 16, 32)),
    },
    'SOFT': {
        'micro': (932_633, (1, 1, 2, 1), (1, 2, 3, 4)),
        'tiny': (12_557_080, (1, 2, 3, 2), (2, 4, 10, 16)),
        'small': (23_598_116, (1, 3, 7, 4), (2, 4, 10, 16)),
        'small-deep': (38_346_486, (1, 3, 20, 4), (2, 4, 10, 16)),
        'medium': (45_300_667, (1, 3, 29, 5), (2, 4, 9, 16)),
        'large': (64_188_670, (1, 3, 40, 5), (2, 4, 10, 16)),
        'huge': (86_596_361, (1, 5, 49, 5), (2, 4, 11, 16)),
    },
    'SOFTPlusPlus': {
        'micro': (932_633, (1, 1, 2, 1), (1, 2, 3, 4)),
        'tiny': (12_557_080, (1, 2, 3, 2), (2, 4, 10, 16)),
        'small': (27_610_542, (2, 2, 5, 2), (3, 6, 12, 24)),
        'medium': (48_812_138, (2, 2, 18, 2), (3, 6, 12, 24)),
        'large': (86_266_200, (2, 2, 18, 2), (4, 8, 16, 32)),
    },
    # With the head of ImageNet's classes these are the published 13.2, 24.5, 44.2 and 61.4 M.
    'PVT': {
        'micro': (950_336, (1, 1, 2, 1), (1, 2, 3, 4)),
        'tiny': (12_714_240, (2, 2, 2, 2), (1, 2, 5, 8)),
        'small': (23_970_816, (3, 4, 6, 3), (1, 2, 5, 8)),
        'medium': (43_693_056, (3, 4, 18, 3), (1, 2, 5, 8)),
        'large': (60_854_272, (3, 8, 27, 3), (1, 2, 5, 8)),
    },
    # 3.7, 14.0 and 25.4 M.
    'PVTv2': {
        'b0': (3_409_760, (2, 2, 2, 2), (1, 2, 5, 8)),
        'b1': (13_496_000, (2, 2, 2, 2), (1, 2, 5, 8)),
        'b2': (24_849_856, (3, 4, 6, 3), (1, 2, 5, 8)),
    },
    # 28.3, 49.6 and 87.8 M.
    'Swin': {
        'micro': (1_428_619, (1, 1, 2, 1), (1, 2, 4, 8)),
        'tiny': (27_520_698, (2, 2, 6, 2), (3, 6, 12, 24)),
        'small': (48_838_602, (2, 2, 18, 2), (3, 6, 12, 24)),
        'base': (86_745_016, (2, 2, 18, 2), (4, 8, 16, 32)),
    },
    # 5.7, 22.1 and 86.6 M.
    'ViT': {
        'micro': (917_120, (4,), (4,)),
        'tiny': (5_524_416, (12,), (3,)),
        'small': (21_665_664, (12,), (6,)),
        'base': (85_798_656, (12,), (12,)),
    },
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize('name', BACKBONES)
def test_sizes_have_their_parameters(name):
    assert set(PARAMETERS[name]) == set(MODELS.get(name).arch_zoo)
    for arch, expected in PARAMETERS[name].items():
        with torch.device('meta'):
            backbone = MODELS.build(dict(type=name, arch=arch))
        blocks = [stage['blocks'] for stage in backbone.stages]
        assert tuple(map(len, blocks)) == backbone.depths
        heads = tuple(
            next(m.num_heads for m in found[0].modules() if hasattr(m, 'num_heads'))
            for found in blocks
        )
        parameters = sum(p.numel() for p in backbone.parameters())
        assert (parameters, backbone.depths, heads) == expected, arch
