"""Rows of attention matrices are exact; both tools draw what they are asked for, or say why not."""

import sys
from textwrap import fill
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn as nn
from conftest import load_tool, micro_config, quiet_init, registered, toolbox_config, toolbox_model
from mmengine.config import Config
from mmengine.registry import MODELS
from PIL import Image
from scipy.stats import entropy
from torch import Tensor

from mmlaplace.analysis.attention_rows import attention_map, attention_row, row_statistics
from mmlaplace.analysis.attention_statistics import statistics_by_stage
from mmlaplace.analysis.recording import Mixed, mixed_by
from mmlaplace.models import BaseAttention, QKVAttention
from mmlaplace.models.layers import TransformerBlock

vis_attention = load_tool('tools/visualization/vis_attention.py')
vis_cam = load_tool('tools/visualization/vis_cam.py')
vis_predictions = load_tool('tools/visualization/vis_predictions.py')
MODEL_NAMES = 'laplacianformer', 'softpp', 'polaformer-swin', 'retinanet', 'semantic-fpn'
LAPLACIAN, SOFTPP, SWIN, RETINANET, FPN = map(micro_config, MODEL_NAMES)
PLAIN_SOFTMAX = dict(type='SoftmaxAttention')
HEIGHT, WIDTH = 5, 7
DIMS, HEADS = 32, 2


class OneBlock(nn.Module):
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
        for options in ({}, *MODELS.get(name).tested_options)
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


@pytest.mark.parametrize('shifted', [False, True])
@pytest.mark.parametrize('inner', [dict(PLAIN_SOFTMAX, relative_bias=True), dict(PLAIN_SOFTMAX)])
def test_rows_in_windows_lie_where_their_keys_are(inner, shifted):
    """All rows times all values is what comes out, undone shift and padding included."""
    inner = dict(inner, qkv_bias=False)  # the values of the padding are zero then
    windows = dict(type='WindowAttention', window_size=3, shifted=shifted, attn_cfg=inner)
    backbone = OneBlock(windows)
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
    row = attention_row(mixed, 1 + 2 * WIDTH + 3, head=1)
    torch.testing.assert_close(attention_map(mixed, (2, 3), head=1).flatten(), row[1:])
    for options, keys, cells in (
        # The cells of the second are of 2 or 1 by 3 or 2 pixels.
        (dict(sr_ratio=2), 3 * 4, {(4, 6): 2 * 4 + 3, (2, 5): 1 * 4 + 2, (3, 4): 1 * 4 + 2}),
        (dict(pool_size=3), 3 * 3, {(0, 0): 0, (1, 2): 0, (4, 6): 8}),
    ):
        mixed = mixed_from(OneBlock(dict(PLAIN_SOFTMAX, **options)))
        found = attention_map(mixed, (2, 3), head=1)
        row = attention_row(mixed, 2 * WIDTH + 3, head=1)
        assert (row.shape, found.shape) == ((keys,), (HEIGHT, WIDTH))
        assert all(found[place] == row[key] for place, key in cells.items())
        seen = row_statistics(mixed, found, (2, 3))
        assert seen.near + seen.middle + seen.far == pytest.approx(1)
        assert seen.entropy == pytest.approx(entropy_of(row))


def entropy_of(row):
    return entropy(row.abs()) / np.log(len(row))


def test_distances_in_windows_are_shares_of_the_whole_map():
    """No key of a window is far away on a map of many windows."""
    backbone = MODELS.build(dict(type='Swin', arch='micro', img_size=224)).eval()
    first = statistics_by_stage(backbone, [torch.randn(1, 3, 224, 224)])[0]
    assert (first['tokens'], first['far']) == (56 * 56, 0)


@pytest.mark.parametrize('dtype', [torch.float64, torch.bfloat16])
def test_nystrom_rows_are_those_that_attention_without_whitening_applies(dtype):
    """With rotary positions too, which the attention turns queries and keys by as it mixes."""
    cfg = dict(type='LaplacianAttention', num_landmarks=4, whitening='none', rope=True)
    mixed = mixed_from(OneBlock(cfg))
    applied, row = (attention_map(mixed, (2, 3), 1, matrix=m) for m in ('whitened', 'nystrom'))
    gamma = mixed.attention.gamma.flatten()[1]
    torch.testing.assert_close(applied, row * gamma / (HEIGHT * WIDTH))
    low = mixed._replace(**{name: getattr(mixed, name).to(dtype) for name in 'qkv'})
    found = attention_map(low, (2, 3), 1, matrix='nystrom')
    # Queries and keys in bf16 have 8 bits.
    torch.testing.assert_close(found.double(), row, rtol=0.1, atol=0.02)


def test_maps_of_landmarks_leave_the_class_token_out():
    cfg = dict(type='LaplacianAttention', num_landmarks=4, whitening='none', num_prefix_tokens=2)
    mixed = mixed_from(OneBlock(cfg), prefix=2)
    applied, row = (attention_map(mixed, (2, 3), 1, matrix=m) for m in ('whitened', 'nystrom'))
    gamma = mixed.attention.gamma.flatten()[1]
    torch.testing.assert_close(applied, row * gamma / (2 + HEIGHT * WIDTH))


def draw(tool, monkeypatch, *arguments):
    """The figure that a tool draws, after it was run with a command line."""
    monkeypatch.setattr(sys, 'argv', [tool.__file__, *map(str, arguments)])
    with mock.patch.object(tool, 'save', wraps=tool.save) as save:
        tool.main()
    return save.call_args.args[0]


def test_vis_attention_has_a_panel_for_each_query_and_matrix(tmp_path, monkeypatch, capsys):
    photo, own = tmp_path / 'noise.png', tmp_path / 'own.py'
    pixels = torch.randint(256, (192, 256, 3), dtype=torch.uint8)
    Image.fromarray(pixels.numpy()).save(photo)
    unit = dict(mean=[0.0] * 3, std=[255.0] * 3)  # as MobileViTv2's config scales images
    own.write_text(f'_base_ = {str(LAPLACIAN)!r}\ndata_preprocessor = {unit}\n')
    backbone = MODELS.build(Config.fromfile(LAPLACIAN).model.backbone)
    torch.save(backbone.state_dict(), tmp_path / 'weights.pth')
    command = [
        photo,
        '--model',
        own,
        tmp_path / 'weights.pth',
        'ours',
        '--model',
        SOFTPP,
        '--model',
        SWIN,
        '--points',
        '0.1',
        '0.9',
        '--points',
        '200',
        '20',
        '--stage',
        '1',
        '--out',
        tmp_path / 'rows.png',
    ]
    with mock.patch.object(vis_attention, 'mixed_by', wraps=mixed_by) as watched:
        figure = draw(vis_attention, monkeypatch, *command)
    shown = watched.call_args_list[0].args[2]
    torch.testing.assert_close(shown[0], pixels.permute(2, 0, 1) / 255)
    titles = [axis.get_title() for axis in figure.axes if axis.get_title()]
    soft, swin = (f'{fill(config.stem, 26)}\n{{}}\nrandom weights' for config in (SOFTPP, SWIN))
    signs = swin.format('same signs'), swin.format('opposite signs')
    assert titles == ['queries', 'ours\nZ', soft.format('C W⁺ Cᵀ'), *signs]
    (cross,) = figure.axes[5].lines
    assert cross.get_xydata().tolist() == [[200, 20]]
    for axis in figure.axes[1:5]:
        heat = axis.images[-1].get_array()
        assert heat.shape == (24, 32)  # an eighth of the photo's
        assert (heat.min(), heat.max()) == (0, 1)
    with pytest.raises(SystemExit, match='2'):
        draw(vis_attention, monkeypatch, *command, '--force', '--points', '257', '10')
    assert '--points 257 10: outside of the image' in capsys.readouterr().err


def test_a_stage_without_queries_and_keys_is_one_sentence(tmp_path, monkeypatch, capsys):
    Image.new('RGB', (64, 64)).save(tmp_path / 'black.png')
    config = LAPLACIAN.parents[1] / 'efficientvit/efficientvit-b0_8xb128_in1k.py'
    with pytest.raises(SystemExit, match='2'):
        draw(vis_attention, monkeypatch, tmp_path / 'black.png', config, '--stage', 2)
    assert '--stage 2: that block of' in capsys.readouterr().err


def test_heat_of_class_attention_is_that_of_the_last_map():
    """XCiT's class attention gives a class token alone."""
    backbone = dict(type='XCiTBackbone', arch='micro', out_type='cls_token', img_size=64)
    classifier = dict(type='ImageClassifier', backbone=backbone)
    model = toolbox_model(Config(dict(default_scope='mmpretrain', model=classifier)))
    layer = vis_cam.find_layer(None, model, '0')
    assert layer is model.backbone.stages[0]['blocks'][-1]


def with_random_weights(config, mini_data, folder) -> list:
    """Write weights of a config; its options for the mini data."""
    cfg = toolbox_config(config)
    torch.save(toolbox_model(cfg).state_dict(), folder / 'weights.pth')
    data = mini_data / cfg.test_dataloader.dataset.data_root.split('/')[-1]
    return [f'test_dataloader.dataset.data_root={data}']


@pytest.mark.parametrize(
    'config, arguments',
    [
        (LAPLACIAN, ()),
        (SWIN, ('--method', 'EigenCAM', '--target-layers', 2, '--target-category', 3)),
        (RETINANET, ('--method', 'LayerCAM', '--target-layers', 2, 'neck.fpn_convs.0')),
        (FPN, ('--method', 'LayerCAM', '--target-layers', 1)),
    ],
    ids=lambda value: getattr(value, 'stem', None),
)
def test_vis_cam_heats_every_image(config, arguments, mini_data, tmp_path, monkeypatch):
    monkeypatch.setattr(vis_cam, 'MIN_SCORE', 0.0)  # random weights are sure of nothing
    options = with_random_weights(config, mini_data, tmp_path)
    options += ['model.test_cfg.score_thr=0'] * (config == RETINANET)
    figure = draw(
        vis_cam,
        monkeypatch,
        config,
        tmp_path / 'weights.pth',
        '--count',
        2,
        '--device',
        'cpu',
        '--out',
        tmp_path / 'cam.png',
        *arguments,
        '--cfg-options',
        *options,
    )
    assert len(figure.axes) == 4
    for left, right in zip(figure.axes[::2], figure.axes[1::2]):
        image, heated = (axis.images[0].get_array() for axis in (left, right))
        assert image.shape == heated.shape
        red, _, blue = np.moveaxis(np.asarray(heated, float), -1, 0)
        assert (red - blue).max() > 50  # where the heat is highest; it is blue where there is none
        assert right.get_title().startswith('class ')
    assert config != RETINANET or figure.axes[1].patches


def test_vis_cam_draws_some_bands_of_an_image_of_any_number():
    for channels, drawn in ((1, [51]), (2, [51]), (3, [153, 102, 51]), (5, [153, 102, 51])):
        image = 51 * torch.arange(1, channels + 1, dtype=torch.uint8)[:, None, None].expand(
            -1, 4, 6
        )
        pixels = vis_cam.pixels_of(image)
        assert pixels.shape == (4, 6, len(drawn)) and pixels.dtype == np.float32
        assert (255 * pixels[0, 0]).round().tolist() == drawn
    assert vis_cam.pixels_of(torch.full((4, 2, 2), 60000, dtype=torch.int32)).max() == 1


def test_vis_predictions_takes_grey_images_and_classes_without_names():
    sample = mock.Mock()
    data = dict(inputs=torch.full((1, 28, 28), 200, dtype=torch.uint8), data_samples=sample)
    image = vis_predictions.enlarged(data, gamma=1.0)
    assert image.shape == (644, 644, 3) and (image == 200).all()
    sample.gt_label, sample.pred_label = torch.tensor([3]), torch.tensor([5])
    sample.pred_score = torch.tensor([0.1, 0.9])
    assert vis_predictions.classified(image, sample, None, None)[1] == '5 (90%)\ntrue: 3'


def test_vis_predictions_says_that_no_box_is_certain_enough_and_what_is_true():
    def title(scores, labels=None, classes=('disc', 'box')):
        sample = mock.MagicMock()
        sample.pred_instances.scores = torch.tensor(scores)
        sample.gt_instances.labels = torch.tensor(labels or [])
        names = ['pred_instances'] + ['gt_instances'] * (labels is not None)
        sample.__contains__.side_effect = names.__contains__
        return vis_predictions.title_of(sample, classes)

    assert title([0.2, 0.12]) == ('no box above 50% (best: 20%)', 'crimson')
    assert title([], [1, 0, 1]) == ('no box above 50%\ntrue: 2 box, 1 disc', 'crimson')
    assert title([0.5, 0.1], [0], None) == ('true: 1 0', 'black')
    assert title([0.9], []) == ('true: nothing', 'black')


@pytest.mark.sampled(3)
@pytest.mark.parametrize('config', [RETINANET, LAPLACIAN, FPN], ids=lambda path: path.stem)
def test_vis_predictions_enlarges_and_lightens_images(config, mini_data, tmp_path, monkeypatch):
    options, means = with_random_weights(config, mini_data, tmp_path), []
    for gamma in (1, 0.5):
        figure = draw(
            vis_predictions,
            monkeypatch,
            config,
            tmp_path / 'weights.pth',
            '--count',
            2,
            '--gamma',
            gamma,
            '--out',
            tmp_path / f'{gamma}.png',
            '--cfg-options',
            *options,
        )
        assert len(figure.axes) == 2
        pixels = figure.axes[0].images[0].get_array()
        assert pixels.shape[1] >= vis_predictions.SIDE
        means.append(pixels.mean())
    assert means[0] < means[1]
