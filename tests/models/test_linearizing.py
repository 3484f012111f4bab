"""Another attention takes the place of softmax: weights are kept, and it learns the old maps."""

import copy
import functools
import itertools
import json
import re
import shutil
import sys
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from conftest import CLASSIFICATION, ROOT, load_tool, micro_config, run_script, toolbox_model
from mmengine.config import Config
from mmengine.dataset import InfiniteSampler
from mmengine.registry import MODELS
from processes import run
from test_hybrids import COSTS, HARMS, HOSTS, build, labelled, planned, tasks, unlabelled
from torch.utils.data import DataLoader

from mmlaplace import linearizing
from mmlaplace.checkpoints import load_weights
from mmlaplace.linearizing import distilling


@pytest.mark.parametrize('host', ['SigLIP', 'DeiT', 'DINOv2 with registers', 'PVTv2', 'Swin'])
@pytest.mark.parametrize('name', ['FLattenAttention', 'PolaAttention'])
def test_all_weights_but_those_of_new_parts_are_kept(host, name):
    old = build(HOSTS[host])
    cfg = linearizing.linear_config(HOSTS[host], old, name, dict(lepe_kernel=3))
    new, places = build(cfg, seed=1), linearizing.softmax_places(old)
    kept = linearizing.keep_weights(new, old, places)
    assert {type(new.get_submodule(place)).__name__ for place in places} == {name}
    assert all(any(key.startswith(place) for place in places) for key in kept.new)
    assert 0.7 < kept.share < 1
    parts = ('lepe', 'scale', 'key_positions', 'power', *['qkv'] * (name == 'PolaAttention'))
    assert all(key.rsplit('.attn.', 1)[1].startswith(parts) for key in kept.new)
    embeds = (backbone.stages[0]['patch_embed'].state_dict() for backbone in (new, old))
    torch.testing.assert_close(*embeds, rtol=0, atol=0)


@pytest.mark.parametrize(
    ('inherit', 'anew'), [('attention', {'ffn'}), ('ffn', {'attn'}), ('none', {'attn', 'ffn'})]
)
def test_linear_blocks_inherit_what_is_asked_for(inherit, anew):
    """The block that keeps softmax, and all outside of blocks, take over everything."""
    old = build(HOSTS['Swin'])
    places = linearizing.softmax_places(old)
    keep = list(places)[:1]
    cfg = linearizing.linear_config(HOSTS['Swin'], old, 'LinearAttention', keep=keep)
    linear = {place: i for place, i in places.items() if place not in keep}
    new, whole = build(cfg, seed=1), build(cfg, seed=1)
    fresh = {name: value.clone() for name, value in new.state_dict().items()}
    kept = linearizing.keep_weights(new, old, linear, inherit)
    share = linearizing.keep_weights(whole, old, linear).share
    assert 0 < kept.share < share
    blocks = [place.partition('.attn')[0] for place in linear]
    for name, value in new.state_dict().items():
        block, part = '.'.join(name.split('.')[:4]), name.split('.')[4:5]
        is_new = block in blocks and part[0] in anew
        torch.testing.assert_close(
            value, (fresh if is_new else whole.state_dict())[name], rtol=0, atol=0
        )
        assert not is_new or name in kept.new
    with pytest.raises(ValueError, match="one of all, attention, ffn, none, got 'ffns'"):
        linearizing.keep_weights(new, old, linear, 'ffns')


def test_joined_linears_are_taken_apart_and_a_gate_starts_as_one():
    old = build(HOSTS['SigLIP'])
    places = linearizing.softmax_places(old)
    images = torch.randn(2, 3, 64, 64)
    for options in (dict(qkv='q_kv'), dict(gate=True), dict(qkv='q_kv', gate=True)):
        new = build(dict(HOSTS['SigLIP'], attn_cfg=options), seed=1)
        kept = linearizing.keep_weights(new, old, places)
        assert (kept.share == 1) == ('gate' not in options)
        torch.testing.assert_close(new(images)[0], old(images)[0])


def test_stages_without_softmax_and_windows_stay_as_they_are():
    windows = dict(window_size=4, attn_cfg=dict(type='SoftmaxAttention'))
    cfg = dict(HOSTS['Swin'], attn_cfg=[windows, None, None, dict(type='XCAttention')])
    new = linearizing.linear_config(cfg, build(cfg), 'LinearAttention')['attn_cfg']
    linear = dict(attn_cfg=dict(type='LinearAttention'))
    assert new == [dict(windows, **linear), linear, linear, dict(type='XCAttention')]
    soft = dict(
        type='SOFT',
        arch='micro',
        attn_cfg=dict(num_landmarks=16),
        img_size=64,
        with_cls_token=False,
    )
    new = linearizing.linear_config(soft, build(soft), 'LinearAttention')['attn_cfg']
    assert new == [dict(num_landmarks=16)] * 3 + [dict(type='LinearAttention')]


def per_block(*blocks):
    build(dict(HOSTS['DeiT'], attn_cfg=dict(per_block=[*blocks])))


def linear_config(attention, **options):
    cfg = dict(HOSTS['SigLIP'], **options)
    linearizing.linear_config(cfg, build(cfg), attention)


LINEAR = dict(type='LinearAttention')
CHOOSE = functools.partial(linearizing.choose, HARMS, COSTS)
KEEP = functools.partial(linearizing.softmax_blocks, 'abcd')


@pytest.mark.parametrize(
    ('call', 'said'),
    [
        (lambda: per_block(None), 'one entry for each of the 3 blocks .* got 1'),
        (lambda: build(dict(HOSTS['DeiT'], attn_cfg=dict(per_block=LINEAR))), 'a list .* got {'),
        (
            lambda: per_block(dict(type='MHLAAttention'), None, None),
            'the class token needs an attention that takes .*: its blocks are of the rows',
        ),
        (lambda: per_block(dict(power=2), None, None), "SoftmaxAttention has no option 'power'"),
        (
            lambda: build(dict(HOSTS['Swin'], attn_cfg=dict(attn_cfg=dict(per_block=[None])))),
            'per_block=.* no effect in the attn_cfg of a Window',
        ),
        (
            lambda: linear_config('PolaAttention', attn_cfg=LINEAR),
            'no SoftmaxAttention to replace, only LinearAttention',
        ),
        (
            lambda: linear_config('PolaAttention', attn_cfg=dict(LINEAR, first_blocks=1)),
            'softmax in 2 of its 3 blocks',
        ),
        (lambda: linear_config('FlatAttention'), "type='FlatAttention', which is not registered"),
        (
            lambda: planned(HOSTS['Swin'], ['WindowAttention:1']),
            'WindowAttention has softmax itself',
        ),
        (lambda: planned(HOSTS['DeiT'], ['AgentAttention:0-3']), 'no block 3; the .* are 0 to 2'),
        (
            lambda: planned(HOSTS['DeiT'], ['AgentAttention:0-1', 'InLineAttention:1']),
            r"'InLineAttention:1' has the blocks \[1\] of",
        ),
        (
            lambda: planned(HOSTS['DeiT'], ['AgentAttention:0,x']),
            "'AgentAttention:0,x' must be a name, or a name and blocks such as",
        ),
        (lambda: planned(HOSTS['DeiT'], ['AgentAttention', 'InLineAttention']), 'gets no block'),
        (lambda: KEEP([4, 1, -1]), 'no block 4, -1; the blocks with softmax are 0 to 3'),
        (lambda: KEEP(range(4)), 'all 4 blocks with softmax are kept'),
        (
            lambda: CHOOSE(budget=0.6),
            'budget 0.6 cannot .* smallest .* is 0.650, with 3 of 4 blocks',
        ),
        (lambda: CHOOSE(budget=1), 'the softmax model itself meets the budget 1'),
        (lambda: CHOOSE(budget=1.5), 'above 0 and at most 1.* got 1.5'),
        (lambda: CHOOSE(keep=4), 'from 1 to 3, as 4 blocks with softmax can become linear, got 4'),
        (CHOOSE, 'give either keep or budget'),
    ],
)
def test_what_cannot_be_linearized_is_quoted(call, said):
    with pytest.raises((TypeError, ValueError), match=said):
        call()


@pytest.mark.parametrize(
    ('host', 'loss', 'steps', 'alone', 'among'),
    [
        ('SigLIP', 'attention', (30, 0), r'backbone\.stages\.\d\.blocks\.\d\.attn\.', 'attn.qkv'),
        ('PVTv2', 'attention', (0, 30), r'backbone\.', 'ffn'),
        ('Swin', 'block', (30, 0), r'backbone\.stages\.\d\.blocks\.\d\.', 'ffn'),
        ('DeiT', 'task', (1, 30), '', 'head.weight'),
    ],
)
@pytest.mark.slow
def test_a_loss_falls_and_only_what_is_trained_changes(host, loss, steps, alone, among):
    new, old, places = tasks(host)
    before, batch = copy.deepcopy(new.state_dict()), next(labelled(99))
    blocks = [place.removesuffix('.attn') for place in places]

    def error():
        if loss == 'task':
            return linearizing.task_loss(new, old, places, 50, batch)
        if steps[1]:
            return linearizing.whole_loss(new, old, batch['inputs'])
        names = blocks if loss == 'block' else places
        return linearizing.layer_loss(new.backbone, old.backbone, names, batch['inputs'])

    first = error()
    schedule = linearizing.Schedule(*steps, lr=1e-3, loss=loss)
    batches = labelled if loss == 'task' else unlabelled
    linearizing.distill(new, old, places, batches, schedule)
    changed = {k for k, v in new.state_dict().items() if not torch.equal(v, before[k])}
    assert all(re.match(alone, key) for key in changed) and any(among in key for key in changed)
    assert error() < first


def test_batches_go_on_after_those_that_were_seen_and_none_is_an_error():
    data = torch.arange(20)
    model = mock.Mock(data_preprocessor=lambda images, training: dict(inputs=images))

    def taken(first, count):
        loader = DataLoader(data, 3, sampler=InfiniteSampler(data, seed=1))
        batches = distilling.image_batches(model, loader)
        found = [batch.tolist() for batch in itertools.islice(batches(first), count)]
        assert len(next(batches(0))) == 3  # a second phase goes on
        return found

    assert taken(5, 4) == taken(0, 9)[5:]
    with pytest.raises(ValueError, match='the 20 images .* no whole batch; lower its batch_size'):
        distilling.image_batches(model, DataLoader(data, 32, drop_last=True))


def test_stages_that_a_config_freezes_learn_here_and_are_frozen_afterwards():
    cfg = Config.fromfile(micro_config('laplacianformer'))
    cfg.model.backbone = dict(HOSTS['PVTv2'], out_indices=-1, frozen_stages=2)
    cfg.model.head.in_channels = 64
    args = SimpleNamespace(attention=['FLattenAttention'], options={}, seed=0, backbone_only=False)
    swapped, new, _ = load_tool('tools/linearize.py').swapped(cfg, toolbox_model(cfg), args)
    assert all(parameter.requires_grad for parameter in new.backbone.parameters())
    assert swapped.model.backbone.frozen_stages == 2


@pytest.mark.slow
def test_a_run_goes_on_from_its_state_which_other_settings_refuse(tmp_path, monkeypatch):
    monkeypatch.setattr(distilling, 'EVERY', 2)
    schedule, state = linearizing.Schedule(4, 4), tmp_path / 'a/state.pth'
    new, old, places = tasks('SigLIP')
    whole = linearizing.distill(new, old, places, unlabelled, schedule)
    assert [len(made['losses']) for made in whole.values()] == [2, 2]
    for killed_at in (2, 4):
        state.unlink(missing_ok=True)
        new, old, places = tasks('SigLIP')
        writes = mock.Mock(
            side_effect=[*[mock.DEFAULT] * (killed_at - 1), KeyboardInterrupt],
            wraps=distilling.write_state,
        )
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(distilling, 'write_state', writes)
            linearizing.distill(new, old, places, unlabelled, schedule, state, dict(a=1))
        again, old, places = tasks('SigLIP')
        made = linearizing.distill(again, old, places, unlabelled, schedule, state, dict(a=1))
        assert made['layers']['losses'][0] == whole['layers']['losses'][0]
        assert [len(one['losses']) for one in made.values()] == [2, 2]

    def refused(said, changed=schedule, a=1):
        with pytest.raises(ValueError, match=said):
            linearizing.distill(new, old, places, unlabelled, changed, state, dict(a=a))

    refused('take another --work-dir', a=2)
    for changed in (dict(loss='block'), dict(loss_weight=1.0), dict(accumulate=2), dict(amp=True)):
        refused('take another --work-dir', schedule._replace(**changed))
    next(old.parameters()).add_(1)  # a teacher that was trained on, under the same name
    refused('take another --work-dir')
    state.write_bytes(b'cut off')
    refused('cannot be read .* remove it to start again')


def dumped(cfg, noise_images, folder, side):
    """The file of a config whose images are noise."""
    noise_images(folder / 'data/train', side, classes=10)
    cfg.train_dataloader.update(batch_size=8, num_workers=0, persistent_workers=False)
    cfg.train_dataloader.dataset.data_root = str(folder / 'data')
    cfg.dump(folder / 'softmax.py')
    return folder / 'softmax.py'


@pytest.fixture
def classifier(noise_images, tmp_path):
    """The config of a PVTv2 on images of noise, and its random weights."""
    cfg = Config.fromfile(micro_config('laplacianformer'))
    arch = dict(HOSTS['PVTv2']['arch'], depths=(1, 1, 2, 1))
    cfg.model.backbone = dict(type='PVTv2', arch=arch, img_size=48, out_indices=-1)
    cfg.model.head.in_channels = 64
    torch.save(toolbox_model(cfg).state_dict(), tmp_path / 'softmax.pth')
    return dumped(cfg, noise_images, tmp_path, 48), tmp_path / 'softmax.pth'


def linearized(folder):
    """The config that the tool wrote, and its model with the weights."""
    cfg = Config.fromfile(folder / 'out/linearized.py')
    model = toolbox_model(cfg)
    weights = torch.load(folder / 'out/linearized.pth', weights_only=True)['state_dict']
    model.load_state_dict(weights)
    return cfg, model


def softmax_of(backbone):
    return [k for k, v in backbone.named_modules() if type(v).__name__ == 'SoftmaxAttention']


@pytest.mark.slow
def test_the_tool_writes_a_model_that_loads_and_names_what_is_wrong(classifier, tmp_path):
    def run(*options, checkpoint=classifier[1]):
        return run_script(
            ROOT / 'tools/linearize.py',
            classifier[0],
            checkpoint,
            '--work-dir',
            tmp_path / 'out',
            *options,
        )

    few = ('--attention', 'FLattenAttention', '--layer-steps', 2, '--whole-steps', 2)
    assert run(*few).returncode == 0
    cfg, _ = linearized(tmp_path)
    assert cfg.model.backbone.attn_cfg == dict(type='FLattenAttention')
    log = json.loads((tmp_path / 'out/linearized.json').read_text())
    assert 0.8 < log['kept'] < 1 and log['whole']['losses']
    assert 'is there already' in run(*few).stderr
    (tmp_path / 'out/linearized.pth').unlink()
    result = run(
        *few, '--keep', 2, '--search-steps', 1, '--image-size', 64, '--loss', 'task', '--amp'
    )
    assert 'FLattenAttention takes 3 of 5 places of softmax' in result.stdout
    plan = json.loads((tmp_path / 'out/hybrid.json').read_text())
    assert len(plan['keep_blocks']) == 2 and len(plan['harms']) == 5 and plan['size'] == [64, 64]
    kept = sorted(sorted(plan['harms'], key=plan['harms'].get)[3:])
    assert sorted(plan['keep']) == kept and (tmp_path / 'out/hybrid.png').stat().st_size
    _, model = linearized(tmp_path)
    assert sorted(softmax_of(model.backbone)) == kept
    (tmp_path / 'out/linearized.pth').unlink()
    torch.save(dict(a=torch.ones(2)), tmp_path / 'other.pth')
    for said, result in (
        ('other.pth has no tensor of this', run(*few, checkpoint=tmp_path / 'other.pth')),
        ("no option 'power'", run('--attention', 'LinearAttention', '--options', 'power=2')),
        ('no block 5, 9;', run(*few, '--keep-blocks', 5, 9, 1)),
        ('above 0 and at most 1', run(*few, '--budget', 0)),
        ('--loss task needs a head', run(*few, '--loss', 'task', '--backbone-only')),
        ('--loss-weight 7.0 must not be', run(*few, '--loss-weight', 7)),
        ('leave out --keep-blocks', run('--attention', 'PolaAttention:0', '--keep-blocks', 1)),
        (
            '--image-size: must be an integer of at least 1, got big',
            run(*few, '--image-size', 'big'),
        ),
    ):
        assert result.returncode and said in result.stderr
        assert result.stderr.strip().splitlines()[-1].startswith('linearize.py: error: ')


def test_labels_that_the_head_lacks_are_told_where_the_tool_reads_labels(classifier, tmp_path):
    shutil.copytree(tmp_path / 'data/train/09', tmp_path / 'data/train/10')
    words = (*classifier, '--attention', 'LinearAttention', '--layer-steps', 0, '--whole-steps', 1)

    def run(name, *options):
        return run_script(
            ROOT / 'tools/linearize.py', *words, '--work-dir', tmp_path / name, *options
        )

    told = run('task', '--loss', 'task')
    assert told.returncode and 'Traceback' not in told.stderr
    last = told.stderr.strip().splitlines()[-1]
    assert 'has the label 10, and the head has num_classes=10' in last
    assert not (tmp_path / 'task').exists()
    assert run('maps').returncode == 0


@pytest.mark.thorough
def test_the_tool_runs_in_two_processes(classifier, tmp_path):
    result = run(
        [
            sys.executable,
            '-m',
            'torch.distributed.run',
            '--standalone',
            '--nproc-per-node',
            2,
            ROOT / 'tools/linearize.py',
            *classifier,
            '--work-dir',
            tmp_path / 'out',
            '--launcher',
            'pytorch',
            '--device',
            'cpu',
            '--attention',
            'FLattenAttention:0-3',
            '--attention',
            'LinearAttention:4',
            '--options',
            'FLattenAttention.lepe_kernel=3',
            '--keep',
            '1',
            '--search-steps',
            '1',
            '--loss',
            'task',
            '--layer-steps',
            '1',
            '--whole-steps',
            '2',
            '--accumulate',
            '2',
            '--amp',
        ]
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count('take 4 of 5 places') == 1  # by the first alone
    _, model = linearized(tmp_path)
    plan = json.loads((tmp_path / 'out/hybrid.json').read_text())
    assert softmax_of(model.backbone) == plan['keep'] and len(plan['keep']) == 1


@pytest.mark.slow
def test_a_dinov2_of_timm_becomes_a_hybrid_backbone_with_its_tokens(noise_images, tmp_path):
    timm = pytest.importorskip('timm', reason='no timm: pip install "mmlaplace[timm]"')
    cfg = Config.fromfile(CLASSIFICATION / 'dinov2/dinov2-small-reg4_8xb128-linear_in1k.py')
    cfg.model.backbone.update(
        arch=dict(embed_dims=(48,), depths=(3,), num_heads=(3,), ffn_ratios=(4,)), img_size=56
    )
    cfg.train_dataloader = Config.fromfile(micro_config('laplacianformer')).train_dataloader
    config = dumped(cfg, noise_images, tmp_path, 16)
    released = timm.create_model(
        'vit_small_patch14_reg4_dinov2', embed_dim=48, num_heads=3, depth=3, img_size=56
    )
    torch.save(released.state_dict(), tmp_path / 'released.pth')

    def run(*options):
        return run_script(
            ROOT / 'tools/linearize.py',
            config,
            tmp_path / 'released.pth',
            '--work-dir',
            tmp_path / 'out',
            '--layer-steps',
            1,
            '--whole-steps',
            0,
            *options,
        )

    new = ('--attention', 'AgentAttention:0', '--attention', 'LaplacianAttention:2')
    new += ('--options', 'num_landmarks=4')
    assert '--backbone-only takes the backbone' in run(*new).stderr
    result = run(*new, '--backbone-only')
    assert result.returncode == 0, result.stderr
    made = Config.fromfile(tmp_path / 'out/linearized.py').model.backbone
    hybrid = MODELS.build(made)
    hybrid.init_weights()  # from the checkpoint, as tools/train.py does
    assert softmax_of(hybrid) == ['stages.0.blocks.1.attn']
    kinds = [type(block.attn).__name__ for block in hybrid.stages[0].blocks]
    assert kinds == ['AgentAttention', 'SoftmaxAttention', 'LaplacianAttention']
    plain = MODELS.build(dict(cfg.model.backbone, init_cfg=None))
    load_weights(plain, tmp_path / 'released.pth')
    own = hybrid.state_dict()
    for name, value in plain.state_dict().items():  # nothing else changed
        assert re.search(r'blocks\.[02]\.attn', name) or torch.equal(own[name], value), name
