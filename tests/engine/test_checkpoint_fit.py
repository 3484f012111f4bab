"""Weights are refused where they do not fit, and looked for inside of wrappers."""

import pytest
import torch
import torch.nn as nn
from saved_weights import build, same, save, without

from mmlaplace.checkpoints import load_weights
from mmlaplace.checkpoints import loading as checkpoint


def half(weights):
    return {k: v for k, v in weights.items() if 'stages.2.' not in k}


BLOCK = 'backbone.stages.0.blocks.0'


def net(**kwargs):
    """A model whose first part is loaded before the backbone can refuse its own."""
    return nn.ModuleDict(dict(stem=nn.Linear(2, 2), backbone=build(**kwargs)))


def also(**more):
    """Adds tensors; a name with two underscores has a dot there."""
    return lambda w: {**w, **{name.replace('__', '.'): value for name, value in more.items()}}


@pytest.mark.parametrize(
    ('change', 'kwargs', 'message'),
    [
        (half, {}, r'only 67 of the 101 tensors.*missing 34 \(backbone.st.*min_matched=0.66 takes'),
        (half, dict(min_matched=0.7), 'only 67 of the 101 tensors'),
        (lambda w: without(w, 'backbone.norm3.bias'), {}, r'missing 1 \(backbone.norm3.bias\)'),
        (lambda w: without(w, 'backbone.norm1'), dict(min_matched=1), r'2 \(backbone.norm1.w'),
        (lambda w: without(w, 'backbone.norm'), {}, r'missing 8 \(backbone.norm0.weight'),
        (lambda w: without(w, 'stem.bias'), {}, r'only 100 of the 101.*min_matched=0.99 takes'),
        (also(**{f'{BLOCK}.attn.gate.weight': torch.zeros(1)}), {},
         rf'it has 1 \({BLOCK}.attn.gate.weight\) .* min_matched=0.99 takes'),
        (also(**{f'{BLOCK}.norm1.bias': torch.tensor([0.0] * 7 + [torch.nan])}),
         dict(min_matched=0.1), rf'in 1 \({BLOCK}.norm1.bias\)'),
        (also(stem__bias=torch.tensor([0.0, -torch.inf])), {}, r'in 1 \(stem.bias\)'),
        (dict, dict(prefix='neck.'), r"'neck.' matches no tensor.*\{'model.': 101"),
        (dict, dict(min_matched=95), 'between 0 and 1, got 95'),
        (lambda w: {**w, **{f'copy.{k}': v for k, v in w.items()}}, {},
         r"several prefixes alike.*\{'model.': 101, 'model.copy.': 101"),
        (lambda w: {**w, **{f'_orig_mod.{k}': v + 1 for k, v in w.items()}}, {},
         "several prefixes alike.*'model._orig_mod.'"),
        (lambda w: {'other.net': torch.zeros(1)}, {}, 'no tensor.*model.other.net.*stem.weight'),
        # Names as common as this one are in most models, at many places.
        (lambda w: {'a.stem.bias': w['stem.bias'], 'b.stem.bias': w['stem.bias']}, {}, 'only 1 of'),
        (also(backbone__norm3__bias=torch.zeros(5)), {}, r'norm3.bias .* \(5,\)'),
        (also(stem__bias=torch.zeros(5)), {}, r'does not fit: .*stem.bias'),
        # One layer of a hundred tensors: more than 95 % are there, and the model would be a wreck.
        (lambda w: {k: v for k, v in w.items() if 'attn.qkv.weight' not in k}, {},
         r'missing 5 \(backbone.stages.0.blocks.0.attn.qkv.weight'),
    ],
)  # fmt: skip
def test_a_checkpoint_that_does_not_fit_changes_nothing(tmp_path, change, kwargs, message):
    file = save(tmp_path / 'a.pth', change(net().state_dict()), 'model.')
    module = net()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    with pytest.raises(ValueError, match=f'(?s){message}'):
        load_weights(module, file, **kwargs)
    assert same(module, before)


def test_min_matched_lowers_the_bound_and_the_log_names_the_rest(tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr(checkpoint, 'print_log', lambda line, **_: lines.append(line))
    weights = half(build().state_dict())
    file = save(tmp_path / 'a.pth', {**weights, 'extra': torch.zeros(1)}, 'backbone.')
    module = build()
    untouched = module.stages[2]['blocks'][0].norm1.weight.clone()
    report = load_weights(module, file, min_matched=0.1)
    assert set(report.matched) == set(weights)
    assert set(report.missing) == set(module.state_dict()) - set(weights)
    assert report.unexpected == ['extra']
    assert torch.equal(module.stages[2]['blocks'][0].norm1.weight, untouched)
    (line,) = lines
    assert f"prefix 'backbone.': matched {len(weights)} of {len(module.state_dict())}" in line
    assert f'missing {len(report.missing)} (stages.2.patch_embed' in line
    assert 'unexpected 1 (extra)' in line


def test_norms_and_stages_of_other_outputs_may_differ(tmp_path):
    classifier = build(out_indices=(3,)).state_dict()
    file = save(tmp_path / 'classifier.pth', classifier, 'backbone.')
    report = load_weights(build(), file)
    assert report.missing == [f'norm{i}.{name}' for i in range(3) for name in ('weight', 'bias')]
    assert report.unexpected == []
    whole = build()
    report = load_weights(build(out_indices=(1,)), save(tmp_path / 'a.pth', whole.state_dict()))
    assert report.missing == []
    assert {name.split('.')[0] for name in report.unexpected} == {
        'stages', 'norm0', 'norm2', 'norm3'
    }  # fmt: skip
    # What only looks like it is refused: a checkpoint that ends with an earlier stage.
    file = save(tmp_path / 'b.pth', build(out_indices=(0, 1)).state_dict())
    with pytest.raises(ValueError, match=r'missing \d+ \(stages.2.patch_embed'):
        load_weights(build(), file)


def model_of(**parts):
    """A model as the toolboxes have it, of a backbone and linears."""
    parts = {name: nn.Linear(2, 2) for name in parts}
    return nn.ModuleDict(dict(backbone=build(), **parts))


def test_necks_and_heads_are_new_where_the_file_is_a_classifiers(tmp_path):
    classifier = model_of(head=1)
    file = save(tmp_path / 'a.pth', classifier.state_dict())
    detector = model_of(neck=1, bbox_head=1)
    report = load_weights(detector, file)
    assert report.missing == [f'{p}.{n}' for p in ('neck', 'bbox_head') for n in ('weight', 'bias')]
    assert same(detector['backbone'], classifier['backbone'].state_dict())
    for model, other, kwargs in (
        (model_of(neck=1, bbox_head=1), classifier, dict(min_matched=1)),  # where all is wanted
        (model_of(head=1), model_of(), {}),  # a classifier without its head
        (model_of(neck=1, mask_head=1), model_of(neck=1, bbox_head=1), {}),  # another detector
        (model_of(decode_head=1), model_of(head=1, decode_head_ema=1), {}),
    ):
        file = save(tmp_path / 'b.pth', other.state_dict())
        with pytest.raises(ValueError, match='only .* missing'):
            load_weights(model, file, **kwargs)


def wrapped_by_ddp(module):
    return nn.parallel.DistributedDataParallel(module)


WRAPPERS = {
    'data parallel': nn.DataParallel,
    'ddp': wrapped_by_ddp,
    'compiled': torch.compile,
    'ddp compiled': lambda m: torch.compile(wrapped_by_ddp(m)),
    'compiled ddp': lambda m: wrapped_by_ddp(torch.compile(m)),
}


@pytest.fixture(scope='module')
def process_group():
    torch.distributed.init_process_group(
        'gloo', store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.sampled(3)
@pytest.mark.parametrize('wrap', WRAPPERS.values(), ids=WRAPPERS)
def test_wrappers_are_looked_through_on_both_sides(tmp_path, process_group, wrap):
    trained = build(img_size=64)
    file = save(tmp_path / 'a.pth', wrap(trained).state_dict())
    assert next(iter(torch.load(file)['state_dict'])).startswith(('module.', '_orig_mod.'))
    plain = save(tmp_path / 'plain.pth', trained.state_dict(), 'backbone.')
    for source, target in ((file, lambda m: m), (plain, wrap), (file, wrap)):
        module = build()
        report = load_weights(target(module), source)
        assert set(report.matched) == set(trained.state_dict())
        assert same(module, trained.state_dict())
    # In the middle of a name, with the prefix given as it stands in the file.
    net = nn.ModuleDict(dict(backbone=torch.compile(build())))
    load_weights(net['backbone'], file)
    load_weights(net, plain)
    assert same(net['backbone']._orig_mod, trained.state_dict())
    compiled = save(tmp_path / 'c.pth', net.state_dict(), 'module.')
    module = build()
    report = load_weights(module, compiled, prefix='module.backbone._orig_mod.')
    assert report.prefix == 'module.backbone.'
    assert same(module, trained.state_dict())


def test_a_module_without_memory_is_refused(tmp_path):
    with torch.device('meta'):
        module = build()
    with pytest.raises(ValueError, match=r'are on the meta device.*to_empty'):
        load_weights(module, save(tmp_path / 'weights.pth', build().state_dict()))
