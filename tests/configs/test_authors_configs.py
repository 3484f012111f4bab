"""The configs do as the authors' code does, where that is not in the authors' configs."""

import gzip
import json
import re

import pytest
import torch
from conftest import ROOT, toolbox_model
from mmengine.registry import MODELS
from test_configs import CLASSIFIERS, CONFIGS, DENSE, load, metadata
from torch.nn.modules.batchnorm import _BatchNorm

from mmlaplace.checkpoints import PUBLISHED
from mmlaplace.checkpoints.published import recognise


@pytest.mark.parametrize(('models', 'shorter_side', 'crop'), [
    ('efficientvit/*-b[01]_8xb128_in1k', 236, 224),  # 0.95 of it, by the authors' commands
    ('efficientvit/*-b1*256px*', 270, 256), ('efficientvit/*-b1*288px*', 304, 288),
    ('efficientvit/*-[bl][23]_8xb128_in1k', 224, 224), ('efficientvit/*-l1_*', 224, 224),
    ('efficientvit/*-[bl][23]_*256px*', 256, 256), ('efficientvit/*-[bl][23]_*288px*', 288, 288),
    ('efficientvit/*-l[23]_*320px*', 320, 320), ('efficientvit/*-l[23]_*384px*', 384, 384),
    ('xcit/*8xb128_in1k', 224, 224), ('xcit/*384px*', 384, 384),
    ('mobilevitv2/*256px*', 288, 256), ('mobilevitv2/*384px*', 384, 384),
    ('swin/swinv2-*256px*', 292, 256), ('deit/deit-*384px*', 438, 384),
    ('deit/deit3-*384px*', 384, 384), ('deit/deit3-*[46]_in1k', 224, 224),
])  # fmt: skip
def test_classifiers_are_tested_on_the_authors_crop(models, shorter_side, crop):
    paths = [path for path in CLASSIFIERS if path.match(f'{models}.py')]
    assert paths
    for path in paths:
        _, resize, centre, _ = load(path).test_dataloader.dataset.pipeline
        assert (resize.type, resize.scale, resize.edge) == ('ResizeEdge', shorter_side, 'short')
        assert (resize.backend, resize.interpolation) == ('pillow', 'bicubic')
        assert (centre.type, centre.crop_size) == ('CenterCrop', crop)


def test_weights_of_the_list_have_a_config_of_their_size():
    used = {metadata()[path].get('Published as') for path in CLASSIFIERS}
    # Those that are distilled at 224 pixels fit the configs of the others. DINO's have no head.
    # SOFT and PolaFormer have configs for their papers' tables, which name no weights. DeiT III's
    # of ImageNet-21k fit the configs of the others. CLIP's and SigLIP's have no classes.
    other = r'xcit_\w+_(224_dist|dino)|deit3_\w+_21k|(clip|siglip)_\w+|(soft|softpp|polaformer)_\w+'
    assert [name for name in PUBLISHED if name not in used and not re.fullmatch(other, name)] == []


def test_heads_of_xcits_segmentors_have_the_authors_width():
    # channels=384 in the authors' configs is a comment; their base says 512.
    paths = list(CONFIGS.glob('segmentation/xcit/*_upernet_*'))
    assert {load(path).model.decode_head.channels for path in paths} == {512}


@pytest.mark.parametrize('family', ['ravlt', 'mavit'])
def test_synchronised_batch_norms_train(family):
    # The authors' norm_eval freezes nn.BatchNorm2d, and their layers are nn.SyncBatchNorm.
    for path in [path for path in DENSE if path.parent.name == family]:
        cfg = load(path)
        assert cfg.sync_bn == 'torch'
        assert not cfg.model.backbone.get('norm_eval')
    with torch.device('meta'):
        backbone = toolbox_model(cfg).train().backbone
    norms = [m for m in backbone.modules() if isinstance(m, _BatchNorm)]
    assert norms and all(norm.training for norm in norms)


@pytest.mark.thorough
def test_norms_of_the_maps_are_not_that_of_the_classifier():
    # In the authors' detectors and segmentors it has no place, and all norms of maps are new.
    seen = set()
    for path in DENSE:
        name, backbone = metadata()[path].get('Published as'), load(path).model.backbone
        init_cfg = backbone.pop('init_cfg', None)
        case = (name, str(backbone.get('out_norms')), str(init_cfg))
        manifest = ROOT / f'tests/data/manifests/{str(name).removesuffix("_384_dist")}.json.gz'
        if not name or case in seen:
            continue
        seen.add(case)
        shapes = json.loads(gzip.decompress(manifest.read_bytes()))['authors']['shapes']
        with torch.device('meta'):
            theirs = {key: torch.empty(shape) for key, shape in shapes.items()}
            own = MODELS.build(backbone)
        given = {k.removeprefix('backbone.') for k in recognise(theirs).convert(theirs).weights}
        loaded = {k.split('.')[0] for k in given & own.state_dict().keys() if k[:4] == 'norm'}
        assert loaded <= set(init_cfg.get('skip', ())), path.stem
    assert len(seen) > 30
