"""The authors' weights, converted, give the authors' outputs."""

from pathlib import Path

import golden_files
import numpy as np
import pytest
import torch
from conftest import ROOT, output_of, quiet_init
from golden_files import Source, described, sampled, write_classifier
from mmengine.registry import MODELS

from mmlaplace.checkpoints import load_weights
from mmlaplace.models.backbones import flatten, inline, slab, soft
from mmlaplace.models.backbones.agent import cswin_maps
from mmlaplace.models.backbones.agent import windows as agent_windows
from mmlaplace.models.backbones.flatten import linear_windows
from mmlaplace.models.backbones.inline import windows as inline_windows
from mmlaplace.models.backbones.slab import REPBN, prepbn
from mmlaplace.models.pyramid import arch

GOLDEN = Path(__file__).resolve().parent.parent / 'data/golden'
FORWARD, GRADIENT = 1e-4, 1e-3
# Channels, and heads of them.
TINY, WIDE, GROWING = (8, 16, 24, 32), (8, 16, 32, 64), (8, 12, 16, 24)
ONE, TWO, MIDDLE = (1, 1, 1, 1), (1, 1, 2, 2), (1, 1, 2, 1)
TINY_PVT = arch(TINY, MIDDLE, (1, 2, 3, 4))
GATED = dict(arch=dict(TINY_PVT, ffn_ratios=(3.5,) * 4), out_norms=False)
SWIN = dict(type='Swin', arch=arch(WIDE, (2, 1, 1, 1), (1, 2, 2, 4)), img_size=96)
SHORT_SWIN = arch(WIDE, MIDDLE, (1, 2, 2, 4))
PVT = dict(type='PVT', arch=TINY_PVT, img_size=64)
SOFT = dict(PVT, type='SOFT', out_type='cls_token')
CSWIN = dict(
    type='CSWin', stripe_widths=(1, 2, 2), img_size=64, arch=arch(WIDE, MIDDLE, (2, 2, 4, 4))
)
XCIT = dict(type='XCiTBackbone', out_type='cls_token', arch=arch((24,), (2,), (3,)))
DINOV2 = dict(type='DINOv2', out_type='cls_token', img_size=84, arch=arch((12,), (2,), (3,)))
VIT = dict(type='ViT', patch_size=8, img_size=64, arch=arch((24,), (2,), (3,)))
DEIT = dict(VIT, out_type='cls_token')
CPE_VIT = dict(VIT, with_cls_token=False, cpe_kernel=3, img_size=48, arch=arch((16,), (2,), (2,)))
FLATTEN, AGENTS = dict(type='FLattenAttention'), (4, 4, 9, 4)
MODEL_CONFIGS = {
    'agent_deit_small': dict(
        DEIT,
        arch=arch((24,), (3,), (3,)),
        attn_cfg=dict(type='AgentAttention', qkv='qkv', num_landmarks=9, first_blocks=2),
    ),
    'agent_pvt_small': dict(
        PVT, attn_cfg=dict(type='AgentAttention', per_stage=dict(num_landmarks=AGENTS))
    ),
    'agent_swin_small': dict(SWIN, attn_cfg=agent_windows(12, AGENTS[:3])),
    'flatten_pvt_small': dict(PVT, attn_cfg=FLATTEN),
    'flatten_pvt_v2_small': dict(
        PVT,
        type='PVTv2',
        stage_norms=True,
        attn_cfg=FLATTEN,
        arch=dict(TINY_PVT, depths=(1, 2, 1, 1)),
    ),
    'flatten_swin_small': dict(SWIN, attn_cfg=linear_windows('FLattenAttention', 12, qkv='qkv')),
    'efficientvit_b_small': dict(
        type='EfficientViT', arch=arch(GROWING, (1, 1, 1, 2), (1, 1, 2, 3))
    ),
    'efficientvit_l_small': dict(
        type='EfficientViTLarge', arch=arch((8, 8, 16, 16), (1, 1, 1, 2), TWO, (4, 4, 4, 6))
    ),
    'inline_deit_small': dict(DEIT, attn_cfg=dict(type='InLineAttention')),
    'inline_pvt_small': dict(PVT, attn_cfg=dict(type='InLineAttention', qkv='q_kv')),
    'inline_swin_small': dict(SWIN, arch=SHORT_SWIN, attn_cfg=inline_windows(24, 3, 1)),
    'mlla_small': dict(type='MLLA', img_size=64, arch=dict(SHORT_SWIN, ffn_ratios=(2,) * 4)),
    'vit3_small': dict(CPE_VIT, attn_cfg=dict(type='TTTAttention')),
    'circulant_deit_small': dict(CPE_VIT, attn_cfg=dict(type='CirculantAttention')),
    'h_vit3_small': dict(
        type='HViT3',
        img_size=64,
        out_norms=dict(type='BN'),
        arch=arch((8, 8, 16, 16), ONE, TWO, (2,) * 4),
    ),
    'mavit_small': dict(type='MAViT', **GATED),
    'cswin_small': CSWIN,
    'agent_cswin_small': dict(CSWIN, attn_cfg=cswin_maps((4, 4))),
    'flatten_cswin_small': dict(CSWIN, attn_cfg=flatten.MAP_ATTENTION),
    'inline_cswin_small': dict(CSWIN, attn_cfg=inline.MAP_ATTENTION),
    'slab_cswin_small': dict(CSWIN, attn_cfg=slab.SLAB_MAPS, norm_cfg=prepbn(9, 1e-5)),
    'prepbn_deit_small': dict(DEIT, norm_cfg=REPBN),
    'slab_deit_small': dict(
        VIT,
        with_cls_token=False,
        img_size=112,
        norm_cfg=prepbn(9),
        attn_cfg=dict(type='SLABAttention'),
    ),
    'slab_pvt_small': dict(
        PVT,
        norm_cfg=prepbn(9),
        attn_cfg=[dict(type='SLABAttention', qkv='q_kv')] * 2 + [dict(sr_norm_cfg=prepbn(9))] * 2,
    ),
    'slab_swin_small': dict(
        SWIN, norm_cfg=prepbn(9, 1e-5), attn_cfg=linear_windows('SLABAttention', 12)
    ),
    'pvt_small_cls': dict(
        PVT,
        with_cls_token=True,
        out_type='cls_token',
        arch=dict(TINY_PVT, embed_dims=(16, 32, 48, 64)),
    ),
    'ravlt_small': dict(type='RAVLT', **GATED),
    'polaformerpp_small': dict(
        type='PolaFormerPP', out_norms=False, arch=arch((4, 8, 4, 4), ONE, (1, 2, 1, 1), (3.5,) * 4)
    ),
    'xcit_nano_small': dict(XCIT, norm_tokens=False),
    'xcit_small': dict(XCIT, patch_size=8),
    'soft_model_small': dict(SOFT, attn_cfg=dict(num_landmarks=None)),
    'soft_norm_small': dict(SOFT, attn_cfg=dict(soft.NORM, num_landmarks=None)),
    'pola_pvt_small': dict(
        PVT,
        type='PolaFormerPVT',
        arch=dict(TINY_PVT, ffn_ratios=(8, 8, 4, 4)),
        attn_cfg=dict(per_stage=dict(sr_ratio=(2, 1, 1, 1))),
    ),
    'swinv2_small': dict(
        type='SwinV2',
        img_size=64,
        window_size=8,
        pretrained_windows=(6, 6, 6, 3),
        arch=arch((4, 8, 16, 32), (2, 1, 1, 1), TWO),
    ),
    'dinov2_small': DINOV2,
    'dinov2_reg_small': dict(DINOV2, num_registers=4),
    'swiftformer_small': dict(type='SwiftFormer', arch=arch(GROWING, (2, 1, 3, 1), ONE)),
    'mobilevitv2_small': dict(
        type='MobileViTv2', arch=arch((16, 32, 48, 64), (1, 2, 4, 3), ONE, (2,) * 4)
    ),
    'pola_swin_small': dict(SWIN, attn_cfg=linear_windows('PolaAttention', 12)),
}
NECK = dict(type='ConvPoolingNeck', in_channels=32, out_channels=40)
EFFICIENTVIT = dict(type='EfficientViTNeck', hidden_channels=32, out_channels=40)
TANH = dict(type='GELU', approximate='tanh')
NECKS = {
    'efficientvit_b_small': dict(EFFICIENTVIT, in_channels=24),
    'efficientvit_l_small': dict(EFFICIENTVIT, in_channels=16, eps=1e-7, act_cfg=TANH),
    'polaformerpp_small': dict(NECK, in_channels=4, out_channels=8),
}


for _name, _about in described('classifier').items():  # which say what they are of
    MODEL_CONFIGS[_name] = _about['config']
    if _about['neck']:
        NECKS[_name] = _about['neck']


def read(name):
    """Settings, inputs and outputs of a file, and the weights by the authors' names."""
    own = golden_files.DESCRIBED / f'{name}.npz'
    with np.load(own if own.is_file() else GOLDEN / f'{name}.npz') as content:
        names = [key for key in content.files if key != 'about']
        golden = {key: torch.from_numpy(np.asarray(content[key])) for key in names}
    weights = {k[6:]: v for k, v in golden.items() if k.startswith('param:')}
    return golden, weights


def assert_close(ours, theirs, tolerance):
    """Relative to the largest value, as single ones may vanish."""
    ours, theirs = sampled(ours), theirs.double().flatten()
    assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max()


@pytest.mark.parametrize('name', MODEL_CONFIGS)
def test_converted_file_gives_the_authors_logits(name, tmp_path):
    golden, weights = read(name)
    # As their training scripts write it: under a name, from several GPUs, with the rest of the run.
    theirs = {f'module.{key}': value for key, value in weights.items()}
    torch.save(dict(model=theirs, epoch=299, config='…'), tmp_path / 'theirs.pth')
    converter, ours = ROOT / 'tools/model_converters/convert.py', tmp_path / 'ours.pth'
    said = output_of(converter, tmp_path / 'theirs.pth', '--out', ours)
    assert f'{len(weights)} tensors of the file' in said

    init_cfg = dict(type='Pretrained', checkpoint=str(ours), min_matched=1.0)
    config = dict(MODEL_CONFIGS[name], out_indices=-1, init_cfg=init_cfg)
    backbone = MODELS.build(config).eval()
    quiet_init(backbone)
    head = torch.load(ours)['state_dict']
    images = golden['in:x'].float().requires_grad_()
    (features,) = backbone(images)
    if any(key.startswith('neck.') for key in head):
        neck = MODELS.build(NECKS.get(name, NECK)).eval()
        load_weights(neck, ours, prefix='neck')
        (features,) = neck((features,))
    logits = features = features if features.dim() == 2 else features.mean((2, 3))
    if 'head.fc.weight' in head:  # which DINOv2's files lack
        logits = features @ head['head.fc.weight'].float().T + head['head.fc.bias'].float()
    assert_close(logits, golden['out:logits'], FORWARD)
    if 'in:grad_y' in golden:
        logits.backward(golden['in:grad_y'].float())
        assert_close(images.grad, golden['out:grad_x'], GRADIENT)


def test_a_classifier_without_its_class_token_is_another_model(tmp_path):
    torch.save(dict(model=read('pvt_small_cls')[1]), tmp_path / 'theirs.pth')
    maps = dict(with_cls_token=False, out_type='featmap', out_indices=-1)
    with pytest.raises(ValueError, match='cls_'):
        load_weights(MODELS.build(MODEL_CONFIGS['pvt_small_cls'] | maps), tmp_path / 'theirs.pth')


class Theirs(torch.nn.Module):
    """The authors' classifier of a file, with its weights by the authors' names."""

    def __init__(self, name, ours):
        super().__init__()
        self.weights = {key: value.float() for key, value in read(name)[1].items()}
        init_cfg = dict(type='Pretrained', checkpoint=str(ours), min_matched=1.0)
        self.backbone = MODELS.build(dict(MODEL_CONFIGS[name], out_indices=-1, init_cfg=init_cfg))
        quiet_init(self.backbone)
        self.head = torch.load(ours)['state_dict']

    def state_dict(self, *args, **kwargs):
        return self.weights

    def load_state_dict(self, weights, *args, **kwargs):
        assert all(torch.equal(weights[key], value) for key, value in self.weights.items())

    def forward(self, images):
        (features,) = self.backbone(images)
        return features @ self.head['head.fc.weight'].float().T + self.head['head.fc.bias'].float()


def test_a_file_that_says_what_it_is_of_needs_no_row(tmp_path, monkeypatch):
    name, ours = 'pvt_small_cls', tmp_path / 'first.pth'
    torch.save(dict(model=read(name)[1]), tmp_path / 'theirs.pth')
    output_of(ROOT / 'tools/model_converters/convert.py', tmp_path / 'theirs.pth', '--out', ours)
    write_classifier(
        tmp_path / 'new.npz',
        Theirs(name, ours),
        torch.randn(1, 3, 64, 64),
        Source('PVT', 'whai362/PVT', '57e2dfa'),
        MODEL_CONFIGS[name],
        published={'pvt_new': torch.nn.Linear(3, 2)},
    )
    monkeypatch.setattr(golden_files, 'DESCRIBED', tmp_path)
    (said,) = described('classifier').values()
    assert said['manifests']['pvt_new']['authors']['shapes'] == {'weight': [2, 3], 'bias': [2]}
    monkeypatch.setitem(MODEL_CONFIGS, 'new', said['config'])
    test_converted_file_gives_the_authors_logits('new', tmp_path)
    (tmp_path / 'ours.pth').unlink()
    content = dict(np.load(tmp_path / 'new.npz'))
    np.savez(tmp_path / 'new.npz', **{**content, 'out:logits': 1.001 * content['out:logits']})
    with pytest.raises(AssertionError):
        test_converted_file_gives_the_authors_logits('new', tmp_path)
