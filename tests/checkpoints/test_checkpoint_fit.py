"""Weights are refused where they do not fit, found in wrappers, and come last by ``init_cfg``."""

import logging
import re
from typing import Callable, NamedTuple

import pytest
import torch
import torch.nn as nn
from conftest import quiet_init
from mmengine.logging import MMLogger
from mmengine.model import BaseModule
from saved_weights import assert_refused, same, save, without
from small_backbone import build

from mmlaplace.checkpoints import load_weights


def half(weights):
    return {k: v for k, v in weights.items() if 'stages.2.' not in k}


def net(**kwargs):
    """A model whose first part is loaded before the backbone can refuse its own."""
    return nn.ModuleDict(dict(stem=nn.Linear(2, 2), backbone=build(**kwargs)))


class Misfit(NamedTuple):
    """What becomes of a model's own weights in a file, how the file is loaded, and the refusal.

    Attributes:
        change: A function of the weights; ``dict`` leaves them as they are.
        words: A regular expression of the message.
        options: Of :func:`load_weights`.
    """

    change: Callable[[dict], dict]
    words: str
    options: dict = {}


def with_value(name, value):
    return lambda weights: {**weights, name: value}


def twice(weights):
    return {**weights, **{f'copy.{name}': value for name, value in weights.items()}}


MISFITS = {
    'half of it is missing': Misfit(
        half, r'only 67 of the 101 tensors.*missing 34 \(backbone.st.*min_matched=0.66 takes'
    ),
    'more is missing than is allowed': Misfit(
        half, 'only 67 of the 101 tensors', dict(min_matched=0.7)
    ),
    'norms are missing': Misfit(
        lambda weights: without(weights, 'backbone.norm'), r'missing 8 \(backbone.norm0.weight'
    ),
    'there is one tensor more': Misfit(
        with_value('stem.gate', torch.zeros(1)), r'it has 1 \(stem.gate\) .* min_matched=0.99 takes'
    ),
    'a value is infinite': Misfit(
        with_value('stem.bias', torch.tensor([0.0, -torch.inf])), r'in 1 \(stem.bias\)'
    ),
    'a value is NaN, and little has to match': Misfit(
        with_value('stem.bias', torch.tensor([torch.nan, 0.0])),
        r'\(stem.bias\)',
        dict(min_matched=0.1),
    ),
    'a tensor has integers': Misfit(
        with_value('stem.weight', torch.ones(2, 2, dtype=torch.int8)),
        'its stem.weight has values of torch.int8, and the module holds torch.float32',
    ),
    'a tensor has complex numbers': Misfit(
        with_value('stem.weight', torch.ones(2, 2) + 1j),
        'stem.weight has values of torch.complex64',
    ),
    'a tensor has no axis': Misfit(
        with_value('stem.weight', torch.tensor(3.0)),
        r'its stem.weight has shape \(\), .*\(2, 2\)',
    ),
    'a tensor has another length': Misfit(
        with_value('backbone.norm3.bias', torch.zeros(5)), r'norm3.bias .* \(5,\)'
    ),
    'a file of a kilobyte names 40 GB': Misfit(
        with_value('stem.weight', torch.ones(1).expand(10**5, 10**5)),
        r'shape \(100000, 100000\), and the file only 1 values',
    ),
    'two models are in the file': Misfit(
        twice, r"several prefixes alike.*\{'model.': 101, 'model.copy.': 101\}$"
    ),
    'all names are others': Misfit(
        lambda weights: {'other.net': torch.zeros(1)}, 'no tensor.*model.other.net.*stem.weight'
    ),
    'nothing has the prefix': Misfit(
        dict, r"'neck.' matches no tensor.*\{'model.': 101", dict(prefix='neck.')
    ),
    'the share is given in percent': Misfit(dict, 'between 0 and 1, got 95', dict(min_matched=95)),
    'a part to skip is not there': Misfit(
        dict,
        r"got \['stem', 'norm9'\]; .*\['stem', 'backbone'\]",
        dict(skip=['stem', 'norm9']),
    ),
    'parts to skip are one word': Misfit(dict, "must be a list .* got 'stem'", dict(skip='stem')),
}


@pytest.mark.parametrize('case', MISFITS)
def test_a_checkpoint_that_does_not_fit_changes_nothing(tmp_path, case):
    change, words, options = MISFITS[case]
    file = save(tmp_path / 'a.pth', change(net().state_dict()), 'model.')
    assert_refused(net(), file, f'(?s){words}', **options)


def test_a_part_that_refuses_its_weights_leaves_those_before_it_unchanged(tmp_path):
    def refuse(*_):
        raise ValueError('no place for them')

    module = net()
    file = save(tmp_path / 'a.pth', {k: v + 1 for k, v in module.state_dict().items()})
    module['backbone']._register_load_state_dict_pre_hook(refuse)
    assert_refused(module, file, 'does not fit: no place for them')


@pytest.mark.parametrize(
    ('head', 'message'),
    [
        (
            lambda classes: dict(head=nn.Linear(2, classes)),
            r'head has 5 classes, .*ModuleDict 3; .*model.backbone',
        ),
        (
            lambda classes: dict(roi_head=nn.ModuleDict(dict(fc_cls=nn.Linear(2, classes)))),
            r'heads are others: .*\(5, 2\).*num_classes.*backbone',
        ),
        (  # as many classes, of other channels
            lambda classes: dict(head=nn.Linear(classes, 4)),
            r'heads are others: its head.weight has shape \(4, 5\), .* \(4, 3\)',
        ),
    ],
)
def test_other_classes_are_told_from_another_arch(tmp_path, head, message):
    theirs, ours = (nn.ModuleDict(dict(backbone=build(), **head(n))) for n in (5, 3))
    assert_refused(ours, save(tmp_path / 'a.pth', theirs.state_dict()), message)


def test_values_that_the_dtype_of_the_module_cannot_hold_are_refused(tmp_path):
    weights = {**build().state_dict(), 'norm0.weight': torch.full((8,), 1e6)}
    file, module = save(tmp_path / 'a.pth', weights), build().half()
    assert_refused(module, file, r'norm0.weight\), up to 1e\+06, .* for torch.float16')
    load_weights(module.bfloat16(), file)
    assert module.norm0.weight[0] == torch.tensor(1e6).bfloat16()


def test_a_truth_value_is_no_count(tmp_path):
    norm = nn.BatchNorm1d(2)
    weights = {**norm.state_dict(), 'num_batches_tracked': torch.tensor(True)}
    assert_refused(norm, save(tmp_path / 'a.pth', weights), 'of torch.bool, .* holds torch.int64')


@pytest.mark.parametrize('dtype', [torch.float64, torch.float16, torch.float8_e4m3fn])
def test_other_precisions_of_floating_point_are_cast(tmp_path, dtype):
    files = pytest.importorskip('safetensors.torch', reason='no safetensors')
    weights = build(img_size=64).state_dict()
    weights = {k: v.to(dtype) if v.is_floating_point() else v for k, v in weights.items()}
    files.save_file(weights, file := tmp_path / 'a.safetensors')
    module = build()
    load_weights(module, file)
    assert same(module, {k: v.to(module.state_dict()[k].dtype) for k, v in weights.items()})


@pytest.mark.parametrize(
    ('option', 'kind', 'values'),
    [
        ('num_landmarks', 'SOFTAttention', (4, 16)),
        ('num_features', 'PerformerAttention', (8, 16)),
        ('sr_ratio', 'SoftmaxAttention', (2, 4)),
        ('grid', 'MHLAAttention', (2, 4)),
        ('num_anchors or num_bits', 'EcoFormerAttention', (9, 16)),
        ('lepe_kernel or second_lepe_kernel', 'SLABAttention', (3, 5)),
    ],
)
def test_the_option_that_a_shape_follows_is_named(tmp_path, option, kind, values):
    name = option.partition(' ')[0]
    theirs, ours = (build(type='PVT', attn_cfg={'type': kind, name: n}) for n in values)
    file = save(tmp_path / 'a.pth', theirs.state_dict())
    assert_refused(ours, file, f'build the model with the {option} that the checkpoint')


def test_an_option_is_not_named_where_the_arch_differs_too(tmp_path):
    attention = dict(type='SoftmaxAttention', sr_ratio=2, rope=False)
    weights = {**build(attn_cfg=attention).state_dict(), 'norm3.weight': torch.zeros(5)}
    module = build(attn_cfg=dict(attention, sr_ratio=4))
    file = save(tmp_path / 'a.pth', weights)
    assert_refused(module, file, 'for another arch: its .*sr.projection.weight has')


def test_no_share_is_proposed_that_would_load_nothing_of_the_backbone(tmp_path):
    """As of a detector in another project's names, whose heads alone have those of mmdet."""
    state = model_of('neck', 'bbox_head').state_dict()
    weights = {re.sub(r'^backbone\.[a-z]+', 'backbone.layers', k): v for k, v in state.items()}
    file = save(tmp_path / 'a.pth', weights)
    message = r'nothing of the \d+ tensors of its backbone is.*backbone.layers.0'
    assert_refused(model_of('neck', 'bbox_head'), file, rf'(?s)^(?!.*min_matched).*{message}')


def test_min_matched_lowers_the_bound_and_the_log_names_the_rest(tmp_path):
    weights = half(build().state_dict())
    file = save(tmp_path / 'a.pth', {**weights, 'extra': torch.zeros(1)}, 'backbone.')
    module, log = build(), tmp_path / 'run.log'
    MMLogger.get_instance(tmp_path.name, log_file=str(log), log_level=logging.WARNING)
    report = load_weights(module, file, min_matched=0.1)
    assert set(report.matched) == set(weights)
    assert set(report.missing) == set(module.state_dict()) - set(weights)
    assert report.unexpected == ['extra']
    assert f'missing {len(report.missing)} (stages.2.patch_embed' in log.read_text()
    load_weights(build(), file, min_matched=len(weights) / len(module.state_dict()))


def test_skipped_parts_keep_their_values(tmp_path):
    """As the norms of a detector whose authors do not load that of the classifier."""
    weights = {name: value + 1 for name, value in build(out_indices=-1).state_dict().items()}
    weights['norm3.gate'] = torch.zeros(1)  # which the module does not have
    file, skip = save(tmp_path / 'a.pth', weights), ['norm3', 'stages.0.blocks.0.norm1.bias']
    backbone = build(init_cfg=dict(type='Pretrained', checkpoint=file, skip=skip))
    quiet_init(backbone)
    norm = backbone.stages[0]['blocks'][0].norm1
    assert backbone.norm3.weight.eq(1).all() and norm.bias.eq(0).all()
    assert torch.equal(norm.weight, weights['stages.0.blocks.0.norm1.weight'])
    report = load_weights(backbone, file, skip=['norm3'])
    assert 'norm3.weight' not in report.matched + report.missing
    assert report.unexpected == []


def test_a_skipped_part_takes_none_of_a_longer_name_with_it(tmp_path):
    model = torch.nn.ModuleDict(dict(norm=torch.nn.Linear(2, 2), norm2=torch.nn.Linear(2, 2)))
    weights = {name: value + 1 for name, value in model.state_dict().items()}
    report = load_weights(model, save(tmp_path / 'a.pth', weights), skip=['norm'])
    assert report.matched == ['norm2.weight', 'norm2.bias']


def test_norms_and_stages_of_other_outputs_may_differ(tmp_path):
    classifier = build(out_indices=(3,)).state_dict()
    report = load_weights(build(), save(tmp_path / 'a.pth', classifier, 'backbone.'))
    assert report.missing == [f'norm{i}.{name}' for i in range(3) for name in ('weight', 'bias')]
    assert report.unexpected == []
    whole = save(tmp_path / 'a.pth', build().state_dict())
    report = load_weights(build(out_indices=(1,)), whole)
    left_out = {name.split('.')[0] for name in report.unexpected}
    assert (report.missing, left_out) == ([], {'stages', 'norm0', 'norm2', 'norm3'})
    detector = build(out_norms=dict(type='RepBN'))  # of another kind, which are new
    report = load_weights(detector, whole)
    assert set(report.missing) == set(without(detector.state_dict(), 'stages'))
    assert set(report.unexpected) == set(without(build().state_dict(), 'stages'))
    # What only looks like it is refused: a checkpoint that ends with an earlier stage.
    file = save(tmp_path / 'b.pth', build(out_indices=(0, 1)).state_dict())
    assert_refused(build(), file, r'missing \d+ \(stages.2.patch_embed')


def model_of(*parts):
    """A model as the toolboxes have it, of a backbone and linears."""
    return nn.ModuleDict(dict(backbone=build(), **{name: nn.Linear(2, 2) for name in parts}))


def test_necks_and_heads_are_new_where_the_file_is_a_classifiers(tmp_path):
    classifier, detector = model_of('head'), model_of('neck', 'bbox_head')
    report = load_weights(detector, save(tmp_path / 'a.pth', classifier.state_dict()))
    assert report.missing == [f'{p}.{n}' for p in ('neck', 'bbox_head') for n in ('weight', 'bias')]
    assert same(detector['backbone'], classifier['backbone'].state_dict())
    for model, other, kwargs in (
        (detector, classifier, dict(min_matched=1)),  # where all is wanted
        (classifier, model_of(), {}),  # a classifier without its head
        (model_of('neck', 'mask_head'), detector, {}),
    ):
        file = save(tmp_path / 'b.pth', other.state_dict())
        assert_refused(model, file, 'only .* missing', **kwargs)


def wrap(module):
    return nn.DataParallel(torch.compile(module))  # has the names of DDP


def test_wrappers_are_looked_through_on_both_sides(tmp_path):
    trained = build(img_size=64)
    file = save(tmp_path / 'a.pth', wrap(trained).state_dict())
    plain = save(tmp_path / 'plain.pth', trained.state_dict(), 'backbone.')
    for source, target in ((file, lambda m: m), (plain, wrap), (file, wrap)):
        module = build()
        load_weights(target(module), source)
        assert same(module, trained.state_dict())
    weights = with_value('norm3.gate', torch.zeros(1))(trained.state_dict())
    more = save(tmp_path / 'more.pth', weights)
    kind = type(module).__name__
    with pytest.raises(ValueError, match=rf'norm3.gate\) in layers of this {kind} '):
        load_weights(wrap(build()), more)
    # In the middle of a name, with the prefix given as it stands in the file.
    whole = nn.ModuleDict(dict(backbone=torch.compile(trained)))
    module, compiled = build(), save(tmp_path / 'c.pth', whole.state_dict(), 'module.')
    report = load_weights(module, compiled, prefix='module.backbone._orig_mod.')
    assert report.prefix == 'module.backbone.' and same(module, trained.state_dict())


def test_a_module_without_memory_is_refused(tmp_path):
    with torch.device('meta'):
        module = build()
    with pytest.raises(ValueError, match=r'are on the meta device.*to_empty'):
        load_weights(module, save(tmp_path / 'weights.pth', build().state_dict()))


def test_pretrained_comes_last_and_once_and_is_logged(tmp_path):
    weights = {k: v + 1 for k, v in without(build().state_dict(), 'norm1.').items()}
    file = save(tmp_path / 'a.pth', weights, 'model.backbone.')
    constant = dict(type='Constant', layer=['LayerNorm', 'Linear'], val=7.0)
    module = build(init_cfg=[dict(type='Pretrained', checkpoint=file), constant])
    parent = BaseModule()
    parent.backbone = module
    log = tmp_path / 'run.log'
    MMLogger.get_instance(tmp_path.name, log_file=str(log), log_level='INFO')
    parent.init_weights()
    assert (module.norm1.weight == 7).all() and len(module.init_cfg) == 2
    assert all(torch.equal(module.state_dict()[k], weights[k]) for k in weights)
    assert 'norm2.weight - torch.Size([16]): \nLoaded from ' in log.read_text()
    with torch.no_grad():
        module.norm2.weight.zero_()
    quiet_init(module)
    assert not module.norm2.weight.any()


@pytest.mark.parametrize(
    ('init_cfg', 'message'),
    [
        (dict(type='Pretrained', checkpoint='a.pth', strict=True), r"unknown: \['strict'\]"),
        (dict(type='Pretrained', prefix='backbone.'), 'has a checkpoint and the keys.*min_matched'),
        ([dict(type='Pretrained', checkpoint='nowhere.pth')], 'nowhere.pth'),
        ('nowhere.pth', "must be a dict .* got 'nowhere.pth'"),
    ],
)
def test_a_wrong_pretrained_is_quoted_each_time(init_cfg, message):
    module = build(init_cfg=init_cfg)
    for _ in range(2):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            quiet_init(module)
    assert not module.is_init
