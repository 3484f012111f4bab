"""What a config may call or inherit from: bases by name, a backbone by name, its channels."""

import pytest
import torch
from conftest import ROOT, run_python
from mmengine.config import Config
from mmengine.registry import MODELS

import mmlaplace
from mmlaplace.commands.command_line import read_config

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
    assert own['init_cfg'] == dict(type='Pretrained', checkpoint='mmlaplace://ravlt_tiny')
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
