"""Released weights at the sizes of detectors and segmentors: what depends on the size is resized.

The images are 512 x 683 and 800 x 1333, which the toolboxes pad to multiples of 32. Weights are
random, and have the authors' names.
"""

import gzip
import json
import math

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT, quiet_init
from mmengine.config import ConfigDict
from mmengine.registry import MODELS
from test_golden import MODEL_CONFIGS, read

from mmlaplace.checkpoints import load_weights

SIZES = (512, 704), (800, 1344)
# mmdet's modules, which read the authors' files: our backbone, theirs, and the divisor of widths
# that are multiples of a number.
MMDET = {
    'pvt_tiny': (
        dict(type='PVT'),
        dict(type='PyramidVisionTransformer', num_layers=[2, 2, 2, 2]), 64, 8,
    ),
    'pvt_v2_b0': (
        dict(type='PVTv2', stage_norms=True),
        dict(type='PyramidVisionTransformerV2', num_layers=[2, 2, 2, 2]), 32, 4,
    ),
    'swin_tiny': (dict(type='Swin'), dict(type='SwinTransformer', num_heads=(3, 6, 12, 24)), 96, 8),
}  # fmt: skip
KINDS = [
    'agent_pvt_small', 'agent_swin_small', 'flatten_pvt_small', 'flatten_swin_small',
    'inline_swin_small', 'pola_pvt_small',
]  # fmt: skip


def draw(shapes, width, divisor):
    """Random weights of the authors' names, in narrower layers."""
    weights = {}
    for name, shape in shapes.items():
        positions = name.startswith('pos_embed')
        shape = [
            side // divisor if side % width == 0 and not (positions and axis == 1) else side
            for axis, side in enumerate(shape)
        ]
        std = math.prod(shape[1:]) ** -0.5 if len(shape) > 1 and not positions else 0.3
        mean = 1.0 if len(shape) == 1 and name.endswith('weight') else 0.0
        weights[name] = mean + std * torch.randn(shape)
    return {name: value for name, value in weights.items() if not name.endswith('index')}


@pytest.mark.slow
@pytest.mark.sampled(3, 3)
@pytest.mark.parametrize('name', MMDET)
def test_maps_of_large_images_are_those_of_mmdets_module(name, tmp_path):
    kinds = pytest.importorskip('mmdet.models')
    ours, theirs, width, divisor = MMDET[name]
    manifest = json.loads(
        gzip.decompress((ROOT / f'tests/data/manifests/{name}.json.gz').read_bytes())
    )
    torch.manual_seed(0)
    torch.save(dict(model=draw(manifest['authors']['shapes'], width, divisor)), tmp_path / 'a.pth')
    init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / 'a.pth'))
    size = 'b0' if name.endswith('b0') else 'tiny'
    arch = dict(MODELS.get(ours['type']).arch_zoo[size])
    arch['embed_dims'] = tuple(dims // divisor for dims in arch['embed_dims'])
    own = MODELS.build(dict(ours, arch=arch, init_cfg=init_cfg)).eval()
    quiet_init(own)
    if name == 'pvt_tiny':  # a classifier without its class token is another model
        alone = MODELS.build(dict(ours, arch=arch, out_indices=-1, init_cfg=init_cfg))
        with pytest.raises(ValueError, match='cls_'):
            quiet_init(alone)
    dims = arch['embed_dims'][0]
    options = dict(theirs, embed_dims=dims, convert_weights=True, init_cfg=init_cfg)
    other = getattr(kinds, options.pop('type'))(**ConfigDict(options))
    other.eval()  # returns nothing
    quiet_init(other)
    for path, module in other.named_modules():
        if path.endswith(('.0.norm', '.attn.norm')):
            module.eps = 1e-5  # as in the authors' code, which mmdet's PVT is not
    for i in range(4):  # the authors' detectors do not take the norm of the classifier
        if hasattr(own, f'norm{i}'):
            getattr(own, f'norm{i}').load_state_dict(getattr(other, f'norm{i}').state_dict())
    for side in SIZES:
        images = torch.randn(1, 3, *side)
        with torch.no_grad():
            for a, b in zip(own(images), other(images)):
                assert a.shape == b.shape
                assert (a - b).abs().max() <= 1e-4 * b.abs().max()


def converted(name, tmp_path, **options):
    """A backbone of the golden file's weights, with options changed."""
    weights = {key: value.float() for key, value in read(name)[1].items()}
    torch.save(dict(model=weights), tmp_path / 'theirs.pth')
    config = {**MODEL_CONFIGS[name], 'out_indices': (0, 1, 2, 3), 'out_norms': False, **options}
    backbone = MODELS.build(config).eval()
    quiet_init(backbone)
    load_weights(backbone, tmp_path / 'theirs.pth')
    return backbone, weights


@pytest.mark.slow
@pytest.mark.parametrize('name', KINDS)
def test_weights_are_resized_alike_when_loaded_and_in_the_forward(name, tmp_path):
    small, _ = converted(name, tmp_path)
    for side in SIZES:
        large, _ = converted(name, tmp_path, img_size=side)
        images = torch.randn(1, 3, *side)
        with torch.no_grad():
            for a, b in zip(small(images), large(images)):
                assert a.isfinite().all()
                assert (a - b).abs().max() <= 1e-4 * b.abs().max()


def grown(table, hw_shape, grid):
    """Biases ``(heads, s * s, h, w)`` as the authors resize them: to the tokens, then agents."""
    heads, agents = table.shape[:2]
    tokens = F.interpolate(table, hw_shape, mode='bilinear').flatten(2).transpose(1, 2)
    grids = tokens.reshape(heads, -1, *[math.isqrt(agents)] * 2)
    return F.interpolate(grids, grid, mode='bilinear').flatten(2).transpose(1, 2)


@pytest.mark.parametrize('side', SIZES)
def test_biases_of_agents_grow_as_in_the_authors_detectors(side, tmp_path):
    grids = [(12, 12), (16, 16), (28, 28), (28, 28)]
    attn_cfg = dict(MODEL_CONFIGS['agent_pvt_small']['attn_cfg'])
    attn_cfg['per_stage'] = dict(attn_cfg['per_stage'], agent_shape=grids)
    backbone, weights = converted('agent_pvt_small', tmp_path, attn_cfg=attn_cfg)
    for i, grid in enumerate(grids):
        hw_shape = tuple(length // (4 << i) for length in side)
        attention = backbone.stages[i]['blocks'][0].attn
        own = {k.rpartition('.')[2]: v for k, v in weights.items() if f'block{i + 1}.0.attn' in k}
        for name, whole, lines in (
            ('gather', own['an_bias'], own['ah_bias'] + own['aw_bias']),
            ('spread', own['na_bias'], (own['ha_bias'] + own['wa_bias']).permute(0, 1, 4, 2, 3)),
        ):
            expected = grown(whole, hw_shape, grid) + grown(lines[0], hw_shape, grid)
            torch.testing.assert_close(attention.bias(name, hw_shape), expected)
