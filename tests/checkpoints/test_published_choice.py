"""The model of a file is the right one, or a question. So is the state dict in it."""

import re

import pytest
import torch
from conftest import output_of, refusal_of
from mmengine.logging import MMLogger
from mmengine.registry import MODELS
from saved_weights import assert_refused
from test_published import TOOL, Classifier, assert_close, draw, shapes_of

from mmlaplace.checkpoints import PUBLISHED, load_weights, read_state_dict
from mmlaplace.checkpoints.published import by_file_name, fitting, other_options, recognise

XCIT = ['xcit_small_12_p16', 'xcit_small_12_p16_224_dist', 'xcit_small_12_p16_384_dist']
CSWIN = ['cswin_large', 'cswin_large_384']
SOFT = ['soft_medium', 'soft_norm_medium']
MOBILE = ['mobilevitv2_100', 'mobilevitv2_100_384']
EFFICIENT = ['efficientvit_b1', 'efficientvit_b1_256', 'efficientvit_b1_288']


@pytest.mark.parametrize(
    ('models', 'file', 'expected'),
    [
        (CSWIN, 'cswin_large_224.pth', 0),
        (CSWIN, '/224/CSWin_Large_384.pth', 1),
        (CSWIN, 'cswin_large.pth', 0),
        (CSWIN, '/cswin_large_384/best.pth', None),
        (XCIT, 'xcit_small_12_p16_224.pth', 0),
        (XCIT, 'xcit_small_12_p16_224_dist.pth', 1),
        (XCIT, 'timm://xcit_small_12_p16_384.fb_dist_in1k', 2),
        (XCIT, 'hf://timm/xcit_small_12_p16_224.fb_dist_in1k/model.safetensors', 1),
        (SOFT, 'SOFT_Medium.pth', 0),
        (SOFT, 'SOFT_Medium_norm.pth', 1),
        (SOFT, 'medium.pth', None),
        (EFFICIENT, 'efficientvit_b1_r224.pt', 0),
        (EFFICIENT, 'efficientvit_b1_r288.pt', 2),
        (EFFICIENT, 'efficientvit_b1_r320.pt', 0),
        (MOBILE, 'mobilevitv2-1.0.pt', None),
        (MOBILE, 'timm://mobilevitv2_100', 0),
        (MOBILE, PUBLISHED['mobilevitv2_100_384'].weights, 1),
    ],
)
def test_the_name_of_a_file_tells_models_of_the_same_shapes_apart(models, file, expected):
    told = models if expected is None else [models[expected]]
    assert by_file_name(models, file) == told


def small_file(path, released, **containers):
    """The names and shapes of a model's file in state dicts, each of one value."""
    shapes = shapes_of(released).items()
    torch.save(
        {
            key: {name: torch.full(shape, float(value)) for name, shape in shapes}
            for key, value in containers.items()
        },
        path,
    )
    return path


@pytest.mark.slow
def test_the_tool_asks_for_the_model_or_takes_it_from_the_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = small_file(tmp_path / 'best.pth', 'soft_tiny', state_dict=1, state_dict_ema=2)
    asked = refusal_of(TOOL, file)
    assert re.search(r'fits soft_tiny, .* or soft_norm_tiny, .*choose by --model', asked)
    assert list(tmp_path.iterdir()) == [file]
    model = ('--model', 'soft_norm_tiny')
    for name, options in (('SOFT_Tiny_norm.pth', ()), ('other.pth', model)):
        file = file.rename(tmp_path / name)
        output = ' '.join(output_of(TOOL, file, *options, '--force').split())
        assert "of 'state_dict_ema'. The file also has state_dict; --key chooses" in output
        assert 'It fits soft_norm_tiny, dict(' in output
        weights = read_state_dict('soft_norm_tiny.pth')
        assert {float(value.mean()) for value in weights.values()} == {2.0}
    output_of(TOOL, file, *model, '--key', 'state_dict', '--out', 'key.pth')
    assert {float(v.mean()) for v in read_state_dict('key.pth').values()} == {1.0}


@pytest.mark.slow
def test_averaged_weights_are_taken_where_the_authors_evaluate_them(tmp_path):
    for model, expected, key, other in (
        ('cswin_tiny', 2, 'model', 'model_ema'),
        ('mlla_tiny', 1, 'model_ema', 'model'),
    ):
        file = small_file(tmp_path / f'{model}.pth', model, model=1, model_ema=2)
        weights = read_state_dict(file)
        assert {float(value.mean()) for value in weights.values()} == {expected}
        module, log = MODELS.build(PUBLISHED[model].backbone), tmp_path / f'{model}.log'
        MMLogger.get_instance(log.name, log_file=str(log), log_level='INFO')
        load_weights(module, file, key=key)
        assert float(module.norm3.bias[0]) == 3 - expected
        assert f"('{key}' of it, and not '{other}')" in log.read_text()


@pytest.mark.slow
def test_a_module_of_another_models_options_is_told_so_by_the_name_of_the_file(tmp_path):
    file = small_file(tmp_path / 'SOFT_Tiny_norm.pth', 'soft_norm_tiny', state_dict=1)
    backbone = MODELS.build(PUBLISHED['soft_tiny'].backbone)
    message = 'by its name it is soft_norm_tiny, .* has normalized=True, and this SOFT has False'
    model = torch.nn.ModuleDict(dict(backbone=backbone))
    assert_refused(model, file, message, min_matched=0.5)
    load_weights(MODELS.build(PUBLISHED['soft_norm_tiny'].backbone), file)
    load_weights(backbone, file.rename(tmp_path / 'mine.pth'))
    # The size of the images may be another.
    file = small_file(tmp_path / 'xcit_nano_12_p16_384_dist.pth', 'xcit_nano_12_p16', model=1)
    load_weights(MODELS.build(PUBLISHED['xcit_nano_12_p16'].backbone), file)


@pytest.mark.parametrize(
    ('size', 'file', 'options', 'says'),
    [
        # The last map of 224 pixels has 7 tokens a side.
        ('tiny', 'best.pth', {}, r'^it is swinv2_tiny_window8_256, .* or .*window=8, and .* has 7'),
        ('base', 'swinv2_base_window8_256.pth', dict(img_size=256), '^$'),
    ],
)
@pytest.mark.slow
def test_a_swin_v2_of_shorter_windows_than_its_weights_is_told_so(size, file, options, says):
    with torch.device('meta'):
        module = MODELS.build(dict(type='SwinV2', arch=size, **options))
        shapes = shapes_of(f'swinv2_{size}_window8_256')
        weights = {name: torch.empty(shape) for name, shape in shapes.items()}
    assert re.search(says, other_options(module, recognise(weights).convert(weights).weights, file))


@pytest.mark.sampled(3, 3)
@pytest.mark.parametrize(
    ('name', 'options', 'said'),
    [
        (
            'vit_small_patch16_rope_ape_224',
            dict(arch='small', layer_scale=1e-4),
            'rotary positions',
        ),
        (
            'vit_base_patch16_clip_224',
            PUBLISHED['clip_quickgelu_base'].backbone,
            'type=GELU, and this',
        ),
    ],
)
@pytest.mark.slow
def test_a_file_of_timm_that_only_its_name_tells_is_refused(name, options, said, tmp_path):
    timm = pytest.importorskip('timm', reason='no timm: pip install "mmlaplace[timm]"')
    with torch.device('meta'):  # random weights would take seconds
        weights = {
            k: torch.zeros_like(v, device='cpu')
            for k, v in timm.create_model(name).state_dict().items()
        }
    torch.save(weights, tmp_path / f'{name}.pth')
    assert_refused(MODELS.build(dict(options, type='ViT')), tmp_path / f'{name}.pth', said)


class Pooled(Classifier):
    """A classifier by the mean of the last map."""

    def forward(self, images):
        return self.head['fc'](self.backbone(images)[0].mean((2, 3)))


def classifier_of(name, side):
    """The classifier that a model's weights are for."""
    options = dict(PUBLISHED[name].backbone, out_indices=-1, img_size=side)
    backbone = MODELS.build(options)
    if backbone.cls_tokens[-1] or options.get('out_type'):
        return Classifier(MODELS.build(dict(options, out_type='cls_token')))
    neck = PUBLISHED[name].neck
    return Classifier(backbone, neck) if neck else Pooled(backbone)


def timms_logits_or_a_sentence(timm, name, file):
    """The models that weights of timm fit, of which one gives timm's logits, or why none does."""
    with torch.device('meta'):
        state = timm.create_model(name, num_classes=7).state_dict()
    table = recognise(state)
    if table is None:
        return 'those of no model'
    try:
        fit = fitting(table.convert(state).weights)
    except ValueError as error:
        return str(error)
    if not fit:
        return 'the size of no model'
    released = draw(timm.create_model(name, num_classes=7))
    (model,) = by_file_name(fit, f'timm://{name}.{released.pretrained_cfg["tag"]}')
    channels, *size = released.pretrained_cfg['input_size']
    own = classifier_of(model, tuple(size)).eval()
    torch.save(released.state_dict(), file)
    if model.startswith(('dinov3', 'eva02')):
        # Their rows for classes are left out: timm's classifiers read the mean of the map here.
        missing = r'missing 2 \(head\.fc\.weight, head\.fc\.bias\)'
        with pytest.raises(ValueError, match=missing) as refused:
            load_weights(own, file, min_matched=1)
        return str(refused.value)
    load_weights(own, file, min_matched=1)
    images = torch.randn(1, channels, *size)
    with torch.inference_mode():
        assert_close(own(images), released(images), 1e-4)  # here EfficientViT has another eps
    return model


# Beside the models of test_weights_of_timm_give_its_maps_and_logits.
@pytest.mark.parametrize(
    ('name', 'expected'),
    [
        ('pvt_v2_b0', 'pvt_v2_b0'),
        ('mobilevitv2_050', 'mobilevitv2_050'),
        ('xcit_nano_12_p16_384', 'xcit_nano_12_p16_384_dist'),
        ('swin_s3_tiny_224', 'the size of no model'),  # windows of 14 in the third stage
        ('vit_small_patch32_224', 'the size of no model'),
        ('resnet18', 'those of no model'),
    ],
)
def test_weights_of_timm_give_its_logits_or_are_refused(name, expected, tmp_path):
    timm = pytest.importorskip('timm', reason='no timm: pip install "mmlaplace[timm]"')
    assert expected in timms_logits_or_a_sentence(timm, name, tmp_path / 'released.pth')


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    'start',
    [
        'beit',
        'cait',
        'deit',
        'efficient',
        'eva',
        'flexi',
        'mobilevit',
        'pit',
        'pvt',
        'swift',
        'swin',
        'tnt',
        'twins',
        'vit',
        'xcit',
    ],
)
def test_all_models_of_timm_give_its_logits_or_are_refused(start, tmp_path):
    timm = pytest.importorskip('timm', reason='no timm: pip install "mmlaplace[timm]"')
    # No tensor tells rotary positions, but the names of these files do. The other has 16 heads in
    # the place of 12, and no weights.
    without = ['*_rope_*', 'vit_base_patch16_gap_224']
    names = timm.list_models(f'{start}*', exclude_filters=without)
    assert names
    for name in names:
        with torch.device('meta'):
            parameters = sum(p.numel() for p in timm.create_model(name).parameters())
        if parameters < 1e8:  # of a kind, the larger ones have the same names
            assert timms_logits_or_a_sentence(timm, name, tmp_path / 'released.pth')
