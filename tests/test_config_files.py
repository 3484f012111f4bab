"""What a config may call or inherit from: bases by name, a backbone by name, its channels."""

import pytest
import torch
from conftest import ROOT, run_python
from mmengine.config import Config
from mmengine.registry import MODELS

import mmlaplace
from mmlaplace.checkpoints import PUBLISHED
from mmlaplace.checkpoints.released import PAGES_OF_TIMM
from mmlaplace.commands.command_line import read_config

PLAIN_HEADS = sorted((ROOT / 'configs/heads/plain').glob('*.py'))
MASK_RCNN = 'detection/laplacianformer/mask-rcnn_laplacianformer-micro_fpn_mini.py'


@pytest.fixture
def write(tmp_path):
    def write(text, name='mine.py'):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def test_a_base_of_ours_is_found_by_its_name_and_keeps_its_toolbox(write):
    changes = 'model = dict(roi_head=dict(bbox_head=dict(num_classes=2)))\n'
    mine = read_config(write(f"_base_ = 'mmlaplace::{MASK_RCNN}'\n{changes}"))
    theirs = Config.fromfile(ROOT / 'configs' / MASK_RCNN)
    theirs.model.roi_head.bbox_head.num_classes = 2
    assert mine.to_dict() == theirs.to_dict()


def test_a_base_that_is_not_there_is_refused_with_similar_names(write):
    wrong = MASK_RCNN.replace('micro', 'mirco')
    with pytest.raises(SystemExit, match=f"no config mmlaplace::{wrong}.*'mmlaplace::{MASK_RCNN}'"):
        read_config(write(f"_base_ = 'mmlaplace::{wrong}'\n"))


def test_configs_of_mmseg_are_found_in_the_fork_too(write):
    pytest.importorskip('mmseg')
    mine = write("_base_ = 'mmseg::sem_fpn/fpn_r50_4xb4-160k_ade20k-512x512.py'\n")
    assert read_config(mine).default_scope == 'mmseg'


@pytest.mark.slow
def test_a_base_imports_us_where_no_command_of_ours_reads_it(write):
    """The toolboxes' own scripts read a config before its custom_imports."""
    mine = write(f"_base_ = __import__('mmlaplace') and 'mmlaplace::{MASK_RCNN}'\n")
    code = f'from mmengine.config import Config; assert Config.fromfile({mine!r}).default_scope'
    assert run_python('-c', code).returncode == 0


def test_a_backbone_by_name_is_a_dict_that_builds_it():
    options = mmlaplace.backbone_config('agent-swin-tiny', out_indices=(1, 2), drop_path_rate=0.3)
    assert options['drop_path_rate'] == 0.3 and 'init_cfg' not in options
    assert list(MODELS.build(options).embed_dims[1:3]) == mmlaplace.channels(options)
    # The name of a classifier keeps its settings.
    own = mmlaplace.backbone_config('ravlt-tiny_8xb128_in1k', pretrained=True)
    assert own['out_norms'] is False and own['out_indices'] == (3,)
    assert own['init_cfg'] == dict(type='Pretrained', checkpoint='mmlaplace://ravlt-tiny')
    assert 'out_norms' not in mmlaplace.backbone_config('ravlt-tiny')


@pytest.mark.parametrize(
    ('options', 'channels'),
    [
        (dict(type='RAVLT', arch='tiny'), [64, 128, 256, 512]),
        (dict(type='RAVLT', arch='tiny', out_indices=(1, 3), _delete_=True), [128, 512]),
        (dict(type='PVTv2', arch='b0', in_channels=1, out_indices=-1), [256]),
        (
            dict(
                type='LaplacianFormer',
                arch='micro',
                init_cfg=dict(type='Pretrained', checkpoint=''),
            ),
            [32, 64, 96, 128],
        ),
        (dict(type='XCiTBackbone', arch='t12', pyramid_blocks=(3, 5, 7, 11)), [192] * 4),
        (dict(type='XCiTBackbone', arch='t12', out_type='cls_token'), [192]),
        # The class token and the one of the distillation.
        (dict(type='ViT', arch='tiny', with_dist_token=True, out_type='cls_token'), [384]),
    ],
)
def test_channels_are_those_of_what_a_backbone_returns(options, channels):
    assert mmlaplace.channels(options) == channels
    built = {key: value for key, value in options.items() if key not in ('_delete_', 'init_cfg')}
    with torch.device('meta'):
        outs = MODELS.build(built)(torch.empty(1, options.get('in_channels', 3), 128, 128))
    assert [out.shape[1] for out in outs] == channels


def test_channels_follow_changes_and_other_projects_backbones():
    base = dict(type='RAVLT', arch='tiny', out_indices=(1, 3))
    assert mmlaplace.channels(base, arch='large') == [192, 640]
    pytest.importorskip('mmdet.models')
    resnet = dict(type='mmdet.ResNet', depth=18, out_indices=(1, 3))
    assert mmlaplace.channels(resnet) == [128, 512]


def test_a_config_of_either_kind_takes_the_channels_from_its_backbone(write):
    """In a pure-Python config an import is lazy, and a lazy function cannot be called."""
    lines = (
        "backbone = {}backbone_config('pvtv2-b0', out_indices=(1, 2, 3))",
        'model = dict(backbone=backbone, neck=dict(in_channels={}channels(backbone)))\n',
    )
    text = '\n'.join(('_base_ = []', 'from mmlaplace import backbone_config, channels', *lines))
    python = 'from mmengine.config import read_base\nfrom importlib import import_module\n'
    ours = "import_module('mmlaplace')."
    pure = python + '\n'.join(lines).replace('{}', ours)
    for mine in (write(text.replace('{}', '')), write(pure, 'python.py')):
        config = Config.fromfile(mine)
        assert config.model.neck.in_channels == [64, 160, 256]
        assert Config.fromstring(config.pretty_text, '.py').model == config.model.to_dict()


def test_images_are_normalised_as_those_of_the_weights_were():
    timm = pytest.importorskip('timm')
    of_timm = {
        name: model.page.removeprefix(PAGES_OF_TIMM)
        for name, model in PUBLISHED.items()
        if model.page.startswith(PAGES_OF_TIMM)
    }
    assert len(of_timm) > 20
    for name, place in of_timm.items():
        theirs = timm.get_pretrained_cfg(place)
        for address in (f'mmlaplace://{name}', f'timm://{place}'):
            given = mmlaplace.normalization(address)
            for key in ('mean', 'std'):
                expected = [255 * each for each in getattr(theirs, key)]
                assert given[key] == pytest.approx(expected, abs=1e-3), address
    imagenet = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375])
    for name in ('ravlt_tiny', 'ravlt-tiny', 'laplacianformer-micro', 'mmlaplace://nobodys'):
        assert mmlaplace.normalization(name) == imagenet
    with pytest.raises(ValueError, match="no model or backbone 'siglip3'; similar"):
        mmlaplace.normalization('siglip3')


@pytest.mark.parametrize('path', PLAIN_HEADS, ids=lambda path: path.stem)
def test_heads_of_plain_vits_normalise_images_as_the_weights_want(path, monkeypatch):
    pytest.importorskip('mmdet')
    pytest.importorskip('mmseg')
    for name, mean in (('siglip2-base', 127.5), ('clip_base', 122.771), ('dinov2-small', 123.675)):
        monkeypatch.setenv('BACKBONE', name)
        preprocessor = Config.fromfile(path).model.data_preprocessor
        assert preprocessor.mean[0] == mean and preprocessor.bgr_to_rgb
        assert preprocessor.std[0] == {122.771: 68.501, 123.675: 58.395}.get(mean, mean)


def test_a_model_of_ones_own_has_the_normalization_of_its_weights():
    for weights, mean in (('mmlaplace://siglip2-base', 127.5), ('work_dirs/a.pth', 123.675)):
        model = mmlaplace.model_config('deit-small', 3, weights=weights)
        assert model['data_preprocessor']['mean'][0] == mean


def test_a_backbone_in_the_spelling_of_timm_starts_from_its_weights():
    for name in ('ravlt_tiny', 'siglip2_base', 'siglip2-base'):
        backbone = mmlaplace.backbone_config(name, pretrained=True)
        address = f'mmlaplace://{name.replace("_", "-")}'
        assert backbone['init_cfg'] == dict(type='Pretrained', checkpoint=address)
