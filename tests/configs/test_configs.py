"""Every shipped config parses, builds and agrees with itself, its name and its metafile."""

import copy
import functools
import itertools
import operator
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
import yaml
from conftest import ROOT, marks_of_case, toolbox_config, toolbox_model
from golden_files import shapes_of
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS, MODELS, PARAM_SCHEDULERS, DefaultScope
from torch.nn.modules.batchnorm import _BatchNorm

from mmlaplace.analysis.complexity import count_complexity
from mmlaplace.checkpoints import published
from mmlaplace.checkpoints.released import released_place
from mmlaplace.models import FAMILIES
from mmlaplace.models.attentions.soft import SOFTAttention

CONFIGS = ROOT / 'configs'
# tests/lab/lra has those of sequences, without a backbone of images; test_heads.py and
# test_own_config.py have the other ones.
OTHERS = {'_base_', 'lra', 'heads', 'own'}
LEAVES = sorted(p for p in CONFIGS.rglob('*.py') if not OTHERS & set(p.relative_to(ROOT).parts))
METAFILES = sorted(CONFIGS.rglob('metafile.yml'))
# Mini configs and other ways to train the same model are no models of the zoo.
ZOO = [path for path in LEAVES if not re.search('_(mini|fashion)$|-(fsdp|deepspeed)_', path.stem)]
CLASSIFIERS = [path for path in ZOO if path.relative_to(CONFIGS).parts[0] == 'classification']
# By what stands in front of the size in the name of a config.
BACKBONES = {
    start: cls.__name__.removesuffix('Large')
    for family in FAMILIES.values()
    for cls, start in family.backbones.items()
}
BACKBONES.update(deit3='ViT', vit='ViT', vit3='ViT')
# Papers of an attention alone, whose names may stand in front of a host, and two variants.
METHODS = '|'.join([*(n for n, each in FAMILIES.items() if not each.backbones), 'prepbn', 'softpp'])
# How near parameters and MACs must come to those of a paper. The metafile has what a paper counts:
# parameters of layers are weights and biases, so no positions, and MACs with kernels have the
# products of the attention without the Newton iteration.
NEAR = (0.01, 0.03)
NEAR_OF = {
    'soft': (0.025, 0.05),
    'polaformer': (0.025, 0.05),
    'pvt': (0.01, 0.06),
    'swin': (0.02, 0.016),  # SwinV2 asks for a bias by a further token where layers are counted
    'ravlt': (0.02, 0.025),
    'mavit': (0.03, 0.025),
    'polaformerpp': (0.08, 0.06),  # 7.5 is printed as 7
    'mlla': (0.03, 0.02),
    'vit3': (0.03, 0.02),
    'circulant': (0.01, 0.04),  # of complex linears
    'efficientvit': (0.02, 0.045),  # 11.5 is printed as 11
    'cswin': (0.035, 0.06),  # large is 5 % less
}
# Where parameters are further off: SOFT++ prints 2 to 5 % less than the sizes of its Table 1 have.
FURTHER_OFF = {f'softpp-small{kind}_8xb128_in1k': 0.035 for kind in ('', '-nonorm')}
NORMS = (torch.nn.LayerNorm, torch.nn.GroupNorm, _BatchNorm)


def each(paths):
    def case(path):
        name = str(path.relative_to(CONFIGS).with_suffix(''))
        # Of several processes one has all tests of a config, as it keeps what it parsed and built.
        group = pytest.mark.xdist_group(name)
        marks = [group, *marks_of_case(LEAVES.index(path), 12, 12)]
        return pytest.param(path, id=name, marks=marks)

    return pytest.mark.parametrize('path', [case(path) for path in paths])


parse = functools.cache(toolbox_config)


def load(path) -> Config:
    return copy.deepcopy(parse(path))


@functools.cache
def build_model(path, most_blocks=2) -> torch.nn.Module:
    """The model of a config, without memory, and with two blocks a stage: one may be shifted."""
    cfg = load(path)
    backbone = cfg.model.backbone
    arch = backbone.arch
    if isinstance(arch, str):
        arch = MODELS.get(backbone.type).arch_zoo[arch]
    if 'pyramid_blocks' not in backbone:  # which number all blocks
        backbone.arch = dict(arch, depths=[min(depth, most_blocks) for depth in arch['depths']])
    with torch.device('meta'):
        return toolbox_model(cfg)


def innermost(dataset):
    """The first dataset that holds a pipeline, inside of wrappers such as RepeatDataset."""
    inner = dataset.get('dataset') or dataset.get('datasets', [None])[0]
    return innermost(inner) if inner else dataset


def side_in_name(path) -> int:
    """Pixels of 384px, 512x512 and the like, or ImageNet's 224."""
    named = re.search(r'(\d+)(?:px|x\1)', path.stem)
    return int(named[1]) if named else 224


@each(LEAVES)
def test_leaf_stands_alone(path):
    cfg = load(path)
    assert cfg.custom_imports.imports == ['mmlaplace']
    assert cfg.auto_scale_lr.base_batch_size > 0
    assert not cfg.get('find_unused_parameters')
    if cfg.default_scope == 'mmdet':  # its train.py wants these keys for --auto-scale-lr and --amp
        assert (cfg.auto_scale_lr.enable, cfg.optim_wrapper.type) == (False, 'OptimWrapper')


@each(LEAVES)
def test_name_says_what_the_config_does(path):
    cfg, name = load(path), path.stem
    hosts = '|'.join(sorted(BACKBONES, key=len, reverse=True))  # laplacianformer-rows first
    pattern = rf'(?:^|_)(?:({METHODS})-)?({hosts})-([a-z0-9]+)'
    method, host, size = re.search(pattern, name).groups()
    assert cfg.model.backbone.type.removesuffix('Large') == BACKBONES[host]
    arch = cfg.model.backbone.arch
    assert arch == size or isinstance(arch, dict)  # InLine has sizes of its own
    attentions = [m for m in build_model(path).modules() if isinstance(m, SOFTAttention)]
    family = method or host
    assert bool(attentions) == (family.startswith('soft') and '-exact_' not in name)
    # Each of the papers has models with and without the other's form of the inverse.
    normalized = '-norm_' in name or (family.startswith('softpp') and '-nonorm' not in name)
    assert all(attention.normalized == normalized for attention in attentions)
    grows = [attention.landmarks.num_landmarks is None for attention in attentions]
    assert grows == ['-test-' in name] * len(attentions)
    if said := re.search(r'(\d+)xb(\d+)', name):
        gpus, images = map(int, said.groups())
        batches = cfg.train_dataloader.batch_size, cfg.auto_scale_lr.base_batch_size
        assert batches == (images, gpus * images)
    elif path in ZOO:  # mmdet's names leave out its eight GPUs
        assert cfg.auto_scale_lr.base_batch_size == 8 * cfg.train_dataloader.batch_size
    for form, key, unit in (r'-(\d+)k_', 'max_iters', 1000), (r'[_-](\d+)x_', 'max_epochs', 12):
        if said := re.search(form, name):
            assert cfg.train_cfg[key] == unit * int(said[1])


@each(LEAVES)
def test_optimizer_and_schedule_build(path):
    cfg = load(path)
    model = build_model(path)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        optimizer = build_optim_wrapper(model, cfg.optim_wrapper).optimizer
        for scheduler in copy.deepcopy(cfg.param_scheduler):
            cls = PARAM_SCHEDULERS.get(scheduler.pop('type'))
            if scheduler.pop('convert_to_iter_based', False):
                cls.build_iter_from_epoch(optimizer, **scheduler, epoch_length=10)
            else:
                cls(optimizer, **scheduler)
    groups = optimizer.param_groups
    decayed = {id(p) for group in groups if group['weight_decay'] for p in group['params']}
    exempt = {id(p) for m in model.modules() if isinstance(m, NORMS) for p in m.parameters()}
    # What the authors do not decay: of the positions only those of DeiT.
    kept = ['bias', 'alpha', 'gamma', 'cls_token', 'relative_bias', 'temperature', 'gate_bias']
    is_deit = cfg.model.backbone.type in ('PolaFormerDeiT', 'ViT')
    kept += ['logit_scale', *(['map', 'cls_position', 'dist_position', 'dist_token'] * is_deit)]
    exempt |= {id(p) for n, p in model.named_parameters() if n.split('.')[-1] in kept}
    own = cfg.optim_wrapper.get('paramwise_cfg', {}).get('custom_keys', {})
    kept = ['.offset_bias.', *(k for k, of_key in own.items() if of_key.get('decay_mult') == 0)]
    exempt |= {id(p) for n, p in model.named_parameters() if any(key in n for key in kept)}
    exempt = set() if 'ssdlite' in path.stem else exempt  # whose authors let all decay
    may_decay = {id(p) for p in model.parameters()} - exempt
    assert decayed == (may_decay if cfg.optim_wrapper.optimizer.weight_decay else set())
    assert sum(len(group['params']) for group in groups) == len(list(model.parameters()))


@each(LEAVES)
def test_schedule_covers_the_run_without_gaps(path):
    cfg = load(path)
    by_epoch = 'max_epochs' in cfg.train_cfg
    # A warm-up may count iterations where the run counts epochs; it then runs beside the rest.
    chain = [s for s in cfg.param_scheduler if s.get('by_epoch', True) == by_epoch]
    beside = [s for s in cfg.param_scheduler if s not in chain]
    ends = [s.end for s in chain]
    assert [s.get('begin', 0) for s in chain] == [0, *ends[:-1]]
    assert ends[-1] == cfg.train_cfg['max_epochs' if by_epoch else 'max_iters']
    assert all(s.get('begin', 0) == 0 for s in beside)
    for s in chain:
        assert all(s.get('begin', 0) < step < s.end for step in s.get('milestones', []))


@each(LEAVES)
def test_neck_and_heads_take_the_maps_of_the_backbone(path):
    model = build_model(path).eval()
    backbone = model.backbone
    # Of 128 x 128 pixels, as the contract tests of backbones assert.
    sides = [128 // s for s in itertools.accumulate(backbone.stage_strides, operator.mul)]
    shapes = [(backbone.embed_dims[i], sides[i], sides[i]) for i in backbone.out_indices]
    if getattr(backbone, 'out_type', 'featmap') == 'cls_token':
        shapes = [(backbone.class_tokens * backbone.embed_dims[-1],)]
    elif getattr(backbone, 'pyramid', None):
        shapes = [(backbone.embed_dims[0], side, side) for side in (32, 16, 8, 4)]
    maps = tuple(torch.zeros((1, *shape), device='meta') for shape in shapes)
    heads = [m for n, m in model.named_children() if n.endswith('head') and n != 'roi_head']
    assert heads
    with torch.no_grad():
        maps = model.neck(maps) if model.with_neck else maps
        for head in heads:
            head(maps)
            if hasattr(head, 'prior_generator') and 'ssdlite' not in path.stem:  # of one size
                strides = [stride for stride, _ in head.prior_generator.strides]
                assert strides == [128 // m.shape[-1] for m in maps]


@each(LEAVES)
def test_heads_tell_the_classes_of_the_data_apart(path):
    cfg = load(path)
    modules = [m for n, m in build_model(path).named_modules() if not n.startswith('rpn_head')]
    (count,) = {m.num_classes for m in modules if getattr(m, 'num_classes', None)}
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        dataset = innermost(loader.dataset)
        cls = DATASETS.get(f'{cfg.default_scope}.{dataset.type}')
        metainfo = dataset.get('metainfo') or cls.METAINFO
        if 'classes' in metainfo:  # else folders, which name them only when they are read
            assert count == len(metainfo['classes'])


@pytest.fixture(scope='session')
def record(tmp_path_factory) -> dict:
    """What the datasets of all three tasks say of an image of 480 x 640, with one object."""
    folder, rng = tmp_path_factory.mktemp('record'), np.random.default_rng(0)
    for name, most, channels in (('image', 256, [3]), ('map', 5, [])):
        content = rng.integers(0, most, (480, 640, *channels), np.uint8)
        assert cv2.imwrite(str(folder / f'{name}.png'), content)
    box = dict(
        bbox=[100, 100, 400, 300],
        bbox_label=3,
        ignore_flag=0,
        mask=[[100, 100, 400, 100, 400, 300, 100, 300]],
    )
    return dict(
        img_path=str(folder / 'image.png'),
        img_id=0,
        height=480,
        width=640,
        gt_label=3,
        instances=[box],
        seg_map_path=str(folder / 'map.png'),
        label_map=None,
        reduce_zero_label=True,
        seg_fields=[],
    )


SIZES = {}  # by pipeline, as many configs have the same


@each(LEAVES)
def test_pipelines_give_images_of_the_size_named(path, record):
    cfg = load(path)

    def sizes(loader, draws=1):
        assert not (loader.get('persistent_workers') and loader.num_workers == 0)
        dataset = innermost(loader.dataset)
        pipeline, grey = dataset.pipeline, dataset.type == 'FashionMNIST'  # which loads no files
        given = dict(img=np.zeros((28, 28), np.uint8), gt_label=0) if grey else record
        key = (cfg.default_scope, str(pipeline), draws)
        if key not in SIZES:
            np.random.seed(0)
            steps = Compose(pipeline)
            inputs = [steps(copy.deepcopy(given))['inputs'] for _ in range(draws)]
            assert {(len(x), int(x.max()) > 9) for x in inputs} == {(1 if grey else 3, not grey)}
            SIZES[key] = {tuple(image.shape[1:]) for image in inputs}
        return SIZES[key]

    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        train = sizes(cfg.train_dataloader, draws=8)
        test = sizes(cfg.test_dataloader)
        assert sizes(cfg.val_dataloader) == test
    if path not in ZOO:
        return
    side = side_in_name(path)
    if cfg.default_scope == 'mmpretrain':
        assert test == {(side, side)}
        assert train == ({(224, 224)} if '-test-' in path.stem else test)
    elif cfg.default_scope == 'mmseg':
        assert max(map(max, train)) == side
        assert tuple(cfg.model.data_preprocessor.size) == (side, side)  # smaller ones are padded
        ((height, width),) = test
        assert height >= side
        # A pixel of rounding; PVT's segmentors stretch images to multiples of 32.
        assert -1 < width - 4 / 3 * height < (32 if width % 32 == 0 else 1)
        if cfg.model.test_cfg.mode == 'slide':
            assert tuple(cfg.model.test_cfg.crop_size) == (side, side)
    elif 'ssdlite' in path.stem:
        assert train == test == {(320, 320)}
    else:
        assert (cfg.model.data_preprocessor.pad_size_divisor, test) == (32, {(800, 1067)})
        several = len(train) > 1 and {min(s) for s in train} <= {*range(480, 801, 32)}
        assert several if '_ms-' in path.stem else train == test


@functools.cache
def metadata() -> dict:
    """What the metafiles say of each config."""
    entries = [e for file in METAFILES for e in yaml.safe_load(file.read_text())['Models']]
    return {ROOT / entry['Config']: entry['Metadata'] for entry in entries}


@pytest.mark.slow
@each(CLASSIFIERS)
def test_size_has_the_published_parameters_and_cost(path):
    figures = metadata()[path]
    near, near_macs = NEAR_OF.get(path.parent.name, NEAR)
    model = copy.deepcopy(build_model(path, most_blocks=100))
    for module in model.modules():
        if isinstance(module, SOFTAttention):
            module.num_iters = 1  # as good as none
    counted = count_complexity(model, (3, side_in_name(path), side_in_name(path)))
    parameters, macs = counted.parameters, counted.weight_macs
    # The metafile's own figures are what is counted, to the digits the tables show.
    assert parameters == figures['Parameters']
    assert macs == pytest.approx(figures['MACs'], rel=2e-3)
    if 'Parameters of layers' in figures:
        of_layers = ('.weight', '.bias')
        parameters = sum(p.numel() for n, p in model.named_parameters() if n.endswith(of_layers))
        assert parameters == figures['Parameters of layers']
    if 'MACs with kernels' in figures:
        macs = counted.macs
        assert macs == pytest.approx(figures['MACs with kernels'], rel=2e-3)
    published = figures['Published']
    if 'Parameters' in published:
        near = FURTHER_OFF.get(path.stem, near)
        assert parameters == pytest.approx(published['Parameters'], rel=near)
        assert macs == pytest.approx(published['MACs'], rel=near_macs)


DENSE = [path for path in ZOO if path not in CLASSIFIERS]


MINI = [
    path
    for path in LEAVES
    if path.stem.endswith('_mini') and path.relative_to(CONFIGS).parts[0] != 'classification'
]


@pytest.mark.parametrize('path', MINI, ids=lambda path: path.stem)
def test_mini_models_begin_with_a_classifier_of_their_own_backbone(path):
    backbone = load(path).model.backbone
    folder = Path(backbone.init_cfg.checkpoint).parent.name
    # The quick start trains its classifier into its own folder.
    name = 'laplacianformer-micro_1xb32_mini' if folder == 'quickstart' else folder
    (classifier,) = CONFIGS.glob(f'classification/*/{name}.py')
    trained = load(classifier).model.backbone
    assert (trained.type, trained.arch) == (backbone.type, backbone.arch)
    assert f'epoch_{load(classifier).train_cfg.max_epochs}.pth' in backbone.init_cfg.checkpoint


@pytest.mark.thorough
def test_imagenet_weights_of_the_authors_fit_detectors_and_segmentors():
    found = set()
    for path in DENSE:
        # Weights of 384 pixels have the same shapes.
        name = metadata()[path].get('Published as', '').removesuffix('_384_dist')
        backbone = load(path).model.backbone
        init_cfg = backbone.pop('init_cfg', None)
        case = (name, str(backbone.get('out_norms')), str(init_cfg))
        if not name or case in found:
            continue
        found.add(case)
        with torch.device('meta'):
            theirs = {key: torch.empty(shape) for key, shape in shapes_of(name).items()}
            own = MODELS.build(backbone)
        given = published.recognise(theirs).convert(theirs).weights
        given = {k.removeprefix('backbone.'): v for k, v in given.items()}
        differ = {k for k in set(given) ^ set(own.state_dict()) if k[:5] not in ('head.', 'neck.')}
        assert differ <= own.other_outputs(given)
        shapes = {k: v.shape for k, v in own.state_dict().items() if k in given}
        assert shapes == {k: given[k].shape for k in shapes}
        # The authors' detectors have no norm of the classifier, and all norms of maps are new.
        norms = {k.split('.')[0] for k in shapes if k.startswith('norm')}
        assert norms <= set(init_cfg.get('skip', ())), path.stem
    assert len(found) > 30


def test_metafiles_and_configs_name_each_other():
    index = yaml.safe_load((ROOT / 'model-index.yml').read_text())['Import']
    assert sorted(index) == [str(path.relative_to(ROOT)) for path in METAFILES]
    named, collections = [], set()
    for metafile in METAFILES:
        content = yaml.safe_load(metafile.read_text())
        (collection,) = content['Collections']
        collections.add(collection['Name'])
        readme = (ROOT / collection['README']).read_text()
        for model in content['Models']:
            config = ROOT / model['Config']
            assert model['Name'] == config.stem
            assert model['In Collection'] == collection['Name']
            assert f'[{config.stem}]({config.name})' in readme
            for figure in model['Metadata']['Published'].values():
                assert isinstance(figure, int) or f' {figure} ' in readme
            if 'Reproduced' in model['Metadata']:
                assert (ROOT / model['Metadata']['Reproduced']['Log']).is_file()
            named.append(config)
    assert sorted(named) == ZOO
    assert len(collections) == len(METAFILES)


@each(ZOO)
def test_metafiles_name_the_size_of_the_config_and_weights_that_fit_it(path):
    said, model = metadata()[path], load(path).model
    arch = re.sub(r'-\d+px$', '', said['Arch'])
    assert arch == model.backbone.arch or isinstance(model.backbone.arch, dict)
    if 'Published as' in said:
        authors = published.PUBLISHED[said['Published as']]
        if path in CLASSIFIERS:
            assert {key: model.backbone.get(key) for key in authors.backbone} == authors.backbone
            assert authors.neck in (None, model.neck)
        else:
            assert model.backbone.init_cfg.checkpoint == f'mmlaplace://{said["Published as"]}'


def test_no_config_repeats_an_address_that_a_family_has():
    configs = {path: path.read_text() for path in CONFIGS.rglob('*.py')}
    assert [path for path, text in configs.items() if re.search('https?://|hf://', text)] == []
    named = set().union(*(re.findall("'mmlaplace://(.*?)'", text) for text in configs.values()))
    assert len(named) > 70
    assert {name.replace('-', '_') for name in named} <= set(published.PUBLISHED)
    # Each of them leads to a file, also where the family's file has a page of others alone.
    places = [released_place(f'mmlaplace://{name}') for name in named]
    assert [place for place in places if not place.startswith(('https://', 'timm://'))] == []
