"""Rows of attention matrices are exact; both tools draw what they are asked for, or say why not."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import torch.nn as nn
from conftest import ROOT, load_tool, quiet_init, registered, toolbox_config, toolbox_model
from mmengine.config import Config
from mmengine.registry import MODELS
from PIL import Image
from torch import Tensor

from mmlaplace.analysis.attention_rows import attention_map, attention_row
from mmlaplace.analysis.recording import Mixed, mixed_by
from mmlaplace.models import BaseAttention, QKVAttention
from mmlaplace.models.layers import TransformerBlock
from mmlaplace.ops import laplacian_kernel

vis_attention = load_tool('tools/visualization/vis_attention.py')
vis_cam = load_tool('tools/visualization/vis_cam.py')
CONFIGS = ROOT / 'configs'
LAPLACIAN = CONFIGS / 'classification/laplacianformer/laplacianformer-micro_1xb32_mini.py'
SOFTPP = CONFIGS / 'classification/soft/softpp-micro_1xb32_mini.py'
PVT = CONFIGS / 'classification/polaformer/polaformer-pvt-micro_1xb32_mini.py'
SWIN = CONFIGS / 'classification/polaformer/polaformer-swin-micro_1xb32_mini.py'
RETINANET = CONFIGS / 'detection/laplacianformer/retinanet_laplacianformer-micro_fpn_mini.py'
FPN = CONFIGS / 'segmentation/laplacianformer/laplacianformer-micro_fpn_1xb16_mini.py'
PLAIN_SOFTMAX = dict(type='SoftmaxAttention')
HEIGHT, WIDTH = 5, 7
DIMS, HEADS = 32, 2


class OneBlock(nn.Module):
    """What :func:`mixed_by` looks into, with tokens for an image."""

    def __init__(self, attn_cfg: dict) -> None:
        super().__init__()
        sizes = dict(embed_dims=DIMS, num_heads=HEADS, input_resolution=(HEIGHT, WIDTH))
        self.block = TransformerBlock(DIMS, dict(attn_cfg, **sizes)).double().eval()
        quiet_init(self.block)
        self.stages = [dict(blocks=[self.block])]

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x, (HEIGHT, WIDTH))


def mixed_from(backbone: OneBlock, prefix: int = 0) -> Mixed:
    x = torch.randn(1, prefix + HEIGHT * WIDTH, DIMS).double()
    (mixed,) = mixed_by(backbone, BaseAttention, x)
    return mixed


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    'cfg',
    [
        dict(options, type=name)
        for name in registered(QKVAttention)
        if MODELS.get(name).mixes_tokens
        for options in ({}, *MODELS.get(name).variants)
    ],
    ids=lambda cfg: '-'.join(map(str, cfg.values())),
)
def test_rows_are_the_matrix(cfg):
    """Values that are one for a key and zero for others are mixed to that key's column."""
    mixed = mixed_from(OneBlock(cfg))
    keys = mixed.k.shape[2]
    one_key = torch.eye(keys).double()[:, None, :, None].expand(-1, HEADS, -1, DIMS // HEADS)
    q, k = (tokens.expand(keys, -1, -1, -1) for tokens in (mixed.q, mixed.k))
    with torch.no_grad():
        columns = mixed.attention.mix(q, k, one_key, mixed.hw_shape)
    for head in range(HEADS):
        for channel in (0, -1):
            rows = [attention_row(mixed, query, head, channel) for query in range(HEIGHT * WIDTH)]
            matrix = columns[:, head, :, channel].T
            # Rounding of fp64, whatever the scale of the weights.
            atol = 1e-9 * matrix.abs().max().item()
            torch.testing.assert_close(torch.stack(rows), matrix, rtol=0, atol=atol)


def test_pola_has_two_matrices():
    mixed = mixed_from(OneBlock(dict(type='PolaAttention')))
    same, also_same, opposite = (attention_row(mixed, 3, 0, c) for c in (0, 1, -1))
    torch.testing.assert_close(same, also_same)
    assert (same - opposite).abs().max() > 0.1 * same.abs().max()


@pytest.mark.parametrize('shifted', [False, True])
@pytest.mark.parametrize('inner', [dict(PLAIN_SOFTMAX, relative_bias=True), dict(PLAIN_SOFTMAX)])
def test_rows_in_windows_lie_where_their_keys_are(inner, shifted):
    """All rows times all values is what comes out, undone shift and padding included."""
    inner = dict(inner, qkv_bias=False)  # the values of the padding are zero then
    backbone = OneBlock(
        dict(type='WindowAttention', window_size=3, shifted=shifted, attn_cfg=inner)
    )
    attention = backbone.block.attn
    attention.attn.proj = nn.Identity()
    x = torch.randn(1, HEIGHT * WIDTH, DIMS).double()
    (mixed,) = mixed_by(backbone, BaseAttention, x)
    with torch.no_grad():
        tokens = backbone.block.norm1(x)
        out = attention.attn.split_heads(attention(tokens, (HEIGHT, WIDTH)))[0]
        value = attention.attn.split_heads(attention.attn.qkv(tokens).chunk(3, -1)[2])[0]
    for head in range(HEADS):
        places = [(row, column) for row in range(HEIGHT) for column in range(WIDTH)]
        maps = torch.stack([attention_map(mixed, place, head).flatten() for place in places])
        assert maps.isnan().any()
        torch.testing.assert_close(maps.nan_to_num() @ value[head], out[head])


def test_maps_leave_the_class_token_out_and_spread_reduced_keys():
    mixed = mixed_from(OneBlock(dict(PLAIN_SOFTMAX, num_prefix_tokens=1)), prefix=1)
    found = attention_map(mixed, (2, 3), head=1)
    row = attention_row(mixed, 1 + 2 * WIDTH + 3, head=1)
    torch.testing.assert_close(found.flatten(), row[1:])
    mixed = mixed_from(OneBlock(dict(PLAIN_SOFTMAX, sr_ratio=2)))
    found = attention_map(mixed, (2, 3), head=1)
    row = attention_row(mixed, 2 * WIDTH + 3, head=1)
    assert row.shape == (3 * 4,)
    assert found.shape == (HEIGHT, WIDTH)
    assert found[4, 6] == row[2 * 4 + 3]
    assert found[2, 5] == found[3, 4] == row[1 * 4 + 2]


def test_nystrom_rows_are_the_kernel_where_all_keys_are_landmarks():
    mixed = mixed_from(OneBlock(dict(type='LaplacianAttention', num_landmarks=49, ridge=0.0)))
    found = attention_map(mixed, (2, 3), head=1, matrix='nystrom')
    kernel = laplacian_kernel(mixed.q, mixed.k, mixed.attention.bandwidth)
    exact = kernel[0, 1, 2 * WIDTH + 3]
    torch.testing.assert_close(found.flatten(), exact)


def test_attentions_of_channels_have_no_map_of_tokens():
    mixed = mixed_from(OneBlock(dict(type='XCAttention')))
    with pytest.raises(ValueError, match='XCAttention mixes channels'):
        attention_map(mixed, (2, 3), head=1)


def draw(tool, monkeypatch, *arguments) -> plt.Figure:
    """What a tool draws, after it was run with a command line."""
    monkeypatch.setattr(sys, 'argv', [tool.__file__, *map(str, arguments)])
    plt.close('all')
    tool.main()
    return plt.gcf()


def error_of(tool, monkeypatch, capsys, *arguments) -> str:
    with pytest.raises(SystemExit) as raised:
        draw(tool, monkeypatch, *arguments)
    assert raised.value.code == 2
    return capsys.readouterr().err


@pytest.fixture(scope='module')
def photo(tmp_path_factory):
    file = tmp_path_factory.mktemp('photo') / 'noise.png'
    pixels = np.random.default_rng(0).integers(0, 256, (192, 256, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)
    return file


def test_vis_attention_has_a_panel_for_each_query_and_matrix(photo, tmp_path, monkeypatch, capsys):
    backbone = MODELS.build(Config.fromfile(LAPLACIAN).model.backbone)
    torch.save(backbone.state_dict(), tmp_path / 'weights.pth')
    command = [
        photo, '--model', LAPLACIAN, tmp_path / 'weights.pth', 'ours', '--model', SOFTPP,
        '--model', SWIN, '--points', '0.1', '0.9', '--points', '200', '20', '--stage', '1',
        '--out', tmp_path / 'rows.png',
    ]  # fmt: skip
    figure = draw(vis_attention, monkeypatch, *command)
    assert f'wrote {tmp_path / "rows.png"}' in capsys.readouterr().out
    titles = [axis.get_title() for axis in figure.axes if axis.get_title()]
    soft, swin = (f'{config.stem}\n{{}}\nrandom weights' for config in (SOFTPP, SWIN))
    signs = swin.format('same signs'), swin.format('opposite signs')
    assert titles == ['queries', 'ours\nZ', soft.format('C W⁺ Cᵀ'), *signs]
    assert len(figure.axes) == 2 * len(titles) + 1  # the colour bar
    (cross,) = figure.axes[5].lines
    assert cross.get_xydata().tolist() == [[200, 20]]
    for axis in figure.axes[1:5]:
        heat = axis.images[-1].get_array()
        assert heat.shape == (24, 32)  # an eighth of the photo's
        assert (heat.min(), heat.max()) == (0, 1)
    assert min(Image.open(tmp_path / 'rows.png').size) > 300
    assert '--force replaces it' in error_of(vis_attention, monkeypatch, capsys, *command)


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ('--stage 4', '--stage 4: '),
        ('--stage 2 --block 2', '--block 2: '),
        ('--head 3', '--head 3: '),
        ('--points 257 10', '--points 257 10: outside of the image'),
        ('--points -0.1 0.5', '--points -0.1 0.5: outside of the image'),
        ('--model a.py b.pth c d', '--model a.py b.pth c d: '),
        ('none.png', 'none.png cannot be read as an image'),
        ('text.png', 'text.png cannot be read as an image'),
    ],
)
def test_vis_attention_quotes_what_is_not_there(
    arguments, message, photo, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path('text.png').write_text('no image')
    words = arguments.split() if arguments.startswith('--') else []
    command = [photo if words else arguments, LAPLACIAN, '--out', 'rows.png', *words]
    assert message in error_of(vis_attention, monkeypatch, capsys, *command)
    assert not Path('rows.png').exists()


def cam_command(config, mini_data, tmp_path) -> list:
    """The tool's command line for random weights and the mini data."""
    cfg = toolbox_config(config)
    torch.save(toolbox_model(cfg).state_dict(), tmp_path / 'weights.pth')
    dataset = cfg.test_dataloader.dataset
    options = [f'test_dataloader.dataset.data_root={mini_data / dataset.data_root.split("/")[-1]}']
    if config == RETINANET:
        options.append('model.test_cfg.score_thr=0')
    return [
        config, tmp_path / 'weights.pth', '--count', 2, '--out', tmp_path / 'cam.png',
        '--device', 'cpu', '--cfg-options', *options,
    ]  # fmt: skip


@pytest.mark.parametrize(
    'config, arguments',
    [
        (LAPLACIAN, ()),
        (LAPLACIAN, ('--method', 'EigenCAM', '--target-layers', 'backbone.norm3', 1)),
        (SOFTPP, ('--category', 3)),
        (PVT, ('--method', 'GradCAMPlusPlus')),
        (SWIN, ('--method', 'HiResCAM', '--target-layers', 2)),
        (RETINANET, ('--method', 'LayerCAM', '--target-layers', 2, 'neck.fpn_convs.0')),
        (FPN, ('--method', 'LayerCAM', '--target-layers', 1)),
    ],
    ids=lambda value: value.stem if hasattr(value, 'stem') else '-'.join(map(str, value)),
)
def test_vis_cam_heats_every_image(config, arguments, mini_data, tmp_path, monkeypatch):
    monkeypatch.setattr(vis_cam, 'MIN_SCORE', 0.0)  # random weights are sure of nothing
    command = [*cam_command(config, mini_data, tmp_path), *arguments]
    figure = draw(vis_cam, monkeypatch, *command)
    assert len(figure.axes) == 4
    for left, right in zip(figure.axes[::2], figure.axes[1::2]):
        image, heated = (axis.images[0].get_array() for axis in (left, right))
        assert image.shape == heated.shape
        red, _, blue = np.moveaxis(np.asarray(heated, float), -1, 0)
        assert (red - blue).max() > 50  # where the heat is highest; it is blue where there is none
        assert right.get_title().startswith('class ')
    if config == RETINANET:
        assert figure.axes[1].patches
    assert min(Image.open(tmp_path / 'cam.png').size) > 200


def test_vis_cam_of_a_file_and_without_a_detection(photo, mini_data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(vis_cam, 'MIN_SCORE', 1.0)
    command = cam_command(RETINANET, mini_data, tmp_path)
    figure = draw(vis_cam, monkeypatch, photo, *command, '--target-category', 7)
    assert [axis.get_title() for axis in figure.axes] == ['', 'class 7: none']
    assert '--force replaces it' in error_of(vis_cam, monkeypatch, capsys, *command)
    old = draw(vis_cam, monkeypatch, *command, '--images', photo, '--force', '--count', 1)
    assert len(old.axes) == 2 and 'IMG ...' in capsys.readouterr().err


def test_vis_cam_quotes_what_is_not_there(mini_data, tmp_path, monkeypatch, capsys):
    command = cam_command(LAPLACIAN, mini_data, tmp_path)
    for arguments, message in (
        (('--target-layers', 4), '--target-layers 4: the stages are from 0 to 3'),
        (('--target-layers', 'backbone.norm9'), '--target-layers backbone.norm9: '),
        (('--category', 10), '--target-category must be from 0 to 9, got 10'),
        (('--method', 'SaliencyCAM'), "'SaliencyCAM'"),
    ):
        assert message in error_of(vis_cam, monkeypatch, capsys, *command, *arguments)
    assert not (tmp_path / 'cam.png').exists()
