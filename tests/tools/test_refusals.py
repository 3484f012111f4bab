"""The tools end with one sentence for what users get wrong in configs, data and weights."""

import logging
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from conftest import ROOT, load_tool, micro_config, run_script
from mmengine.config import Config
from mmengine.logging import MessageHub, MMLogger
from mmengine.registry import MODELS, build_from_cfg
from mmengine.runner import Runner
from small_data import CLASSES, config_of, write_boxes, write_folders, write_masks

from mmlaplace.checkpoints import read_state_dict
from mmlaplace.commands import refusals, terminal
from mmlaplace.commands.toolbox_scripts import run_toolbox_script
from mmlaplace.engine import DamagedImageError, FirstCheckError, FirstChecksHook
from mmlaplace.engine.first_checks import CHECKED, NOTHING_LEFT
from mmlaplace.model_zoo import build_model

EMPTY = Config({})


@pytest.fixture(autouse=True)
def hub(tmp_path):
    """A hub of its own, as that of another run says that its data was checked."""
    hub = MessageHub.get_instance(f'of {tmp_path}')
    yield hub
    MessageHub._instance_dict.pop(hub.instance_name)


def test_every_run_in_the_context_has_the_hook_once(tmp_path):
    with mock.patch.object(Runner, '_log_env'), refusals.first_checks(EMPTY, ()):
        for hooks in ({}, dict(first_checks=dict(type='FirstChecksHook'))):
            name = f'{tmp_path.name} {len(hooks)}'
            runner = Runner(
                torch.nn.Linear(1, 1), str(tmp_path), default_hooks=hooks, experiment_name=name
            )
            assert [type(hook) for hook in runner.hooks].count(FirstChecksHook) == 1
    with mock.patch.object(Runner, '_log_env'):
        runner = Runner(torch.nn.Linear(1, 1), str(tmp_path), experiment_name=f'{name} after')
    assert not any(isinstance(hook, FirstChecksHook) for hook in runner.hooks)


@pytest.mark.parametrize('tool', ['train.py', 'dry_run.py', 'analysis_tools/get_flops.py'])
def test_a_part_of_what_has_no_parts_cannot_be_set(tool, monkeypatch, capsys):
    option = 'model.head.num_classes.most=3'
    arguments = [tool, str(micro_config('laplacianformer')), '--cfg-options', option]
    monkeypatch.setattr(sys, 'argv', arguments)
    with pytest.raises(SystemExit) as end:
        if tool == 'train.py':
            run_toolbox_script('train.py', None)
        else:
            load_tool(f'tools/{tool}').main()
    said = f'{end.value.code} {capsys.readouterr().err}'
    assert f"--cfg-options {option} cannot be set: num_classes={{'most'" in said
    assert 'write the whole value into a config' in said and '_delete_' not in said


def ended_by(error: BaseException, cfg: Config = EMPTY, splits=('train',)):
    """What the process ends with if a run raises an error."""
    with pytest.raises(SystemExit) as end, refusals.first_checks(cfg, splits):
        raise error
    return end.value.code


def test_a_refusal_is_one_sentence_of_one_process_and_a_traceback_in_the_log(tmp_path):
    path = tmp_path / 'run.log'
    MMLogger.get_instance(f'run of {tmp_path}', log_file=str(path))
    assert ended_by(FirstCheckError('the file, the value and the fix')) == (
        'the file, the value and the fix'
    )
    assert 'Traceback' in path.read_text() and 'FirstCheckError: the file' in path.read_text()
    with mock.patch.object(refusals, 'is_main_process', return_value=False):
        assert ended_by(FirstCheckError('the same')) == 1
        assert 'a.jpg is not' in ended_by(DamagedImageError('a.jpg is not a complete image'))
    logging.getLogger(f'run of {tmp_path}').handlers.clear()


def test_errors_of_code_go_on():
    class Layer(torch.nn.Module):
        def __init__(self, width):
            super().__init__()
            torch.zeros(1, wrong=width)

    for error in (
        ValueError('of a user'),
        KeyError('a'),
        TypeError("unexpected keyword argument 'a'"),
    ):
        with pytest.raises(type(error)), refusals.first_checks(EMPTY, ('train', 'val')):
            raise error
    with pytest.raises(TypeError), refusals.first_checks(EMPTY, ()):
        build_from_cfg(dict(type=Layer, width=1), MODELS)


def test_an_option_that_a_class_lacks_gives_the_option_that_was_meant():
    class Outer(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = build_from_cfg(inner, MODELS)

    class Inner(torch.nn.Module):
        def __init__(self, backbone=1, **kwargs):
            super().__init__(**kwargs)

    with pytest.raises(SystemExit) as end, refusals.first_checks(EMPTY, ()):
        build_from_cfg(dict(type=Outer, inner=dict(type=Inner, bakbone=2)), MODELS)
    assert end.value.code == (
        "Inner has no option 'bakbone' (did you mean 'backbone'?); its options are backbone"
    )


class Images(torch.utils.data.Dataset):
    def __getitem__(self, index):
        raise DamagedImageError('b/a.jpg is not a complete image (9 bytes); copy it again')

    def __len__(self):
        return 2


def test_a_damaged_image_of_a_worker_is_named_alone():
    loader = torch.utils.data.DataLoader(Images(), num_workers=1, multiprocessing_context='fork')
    with pytest.raises(SystemExit) as end, refusals.first_checks(EMPTY, ()):
        next(iter(loader))
    assert end.value.code == 'b/a.jpg is not a complete image (9 bytes); copy it again'
    assert ended_by(AssertionError('failed to load image: b/c.tif')) == (
        'b/c.tif cannot be decoded as an image; copy it again, or remove it'
    )


def test_weights_that_cannot_be_read_end_a_run_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv('TORCH_HOME', str(tmp_path))
    with pytest.raises(SystemExit) as end, refusals.first_checks(EMPTY, ()):
        read_state_dict('http://127.0.0.1:9/a.pth')
    assert re.match(r'http://127.0.0.1:9/a.pth cannot be downloaded: .*check', end.value.code)
    with (
        pytest.raises(SystemExit, match='there is|cannot be opened'),
        refusals.first_checks(EMPTY, ()),
    ):
        read_state_dict(tmp_path / 'none.pth')


def test_data_that_could_not_be_built_is_explained_unless_it_was_checked(tmp_path, hub):
    write_boxes(tmp_path)
    wrong = config_of('mmdet', tmp_path, metainfo=dict(classes=('cat',)))
    cfg = Config(dict(default_scope='mmdet', train_dataloader=dict(dataset=wrong)))
    error = ValueError('need at least one array to concatenate')
    assert 'no box of' in ended_by(error, cfg)
    for other in (dict(cfg=cfg, splits=('test',)), dict(cfg=Config(dict(cfg, first_checks=False)))):
        with pytest.raises(ValueError, match='need at least'):
            ended_by(error, **other)
    hub.update_info(CHECKED, True)
    with pytest.raises(ValueError, match='need at least'):
        ended_by(error, cfg)


# The tools themselves, on a few small images.

BASES = dict(
    mmpretrain='laplacianformer',
    mmdet='retinanet',
    mmseg='semantic-fpn',
)


def small_config(scope: str, folder: Path) -> Path:
    """A config of ours on small data, with as many classes as the data has."""
    data = folder / 'data'
    dict(mmpretrain=write_folders, mmdet=write_boxes, mmseg=write_masks)[scope](data)
    dataset = dict(config_of(scope, data), _delete_=True)
    loader = dict(batch_size=2, num_workers=0, persistent_workers=False, dataset=dataset)
    head = dict(mmpretrain='head', mmdet='bbox_head', mmseg='decode_head')[scope]
    classes = 3 if scope == 'mmpretrain' else len(CLASSES)
    lines = [
        f'_base_ = {str(micro_config(BASES[scope]))!r}',
        f'model = dict(backbone=dict(init_cfg=None), {head}=dict(num_classes={classes}))',
        f'train_dataloader = {loader!r}',
        'val_dataloader = val_cfg = val_evaluator = None',
        'test_dataloader = test_cfg = test_evaluator = None',
    ]
    # The name is that of the run, and mmengine keeps the scope of a run by its name and second.
    config = folder / f'small_{scope}.py'
    config.write_text('\n'.join(lines))
    return config


@pytest.mark.slow
@pytest.mark.parametrize('scope', BASES)
def test_train_ends_with_one_sentence_before_its_first_step(scope, tmp_path, monkeypatch):
    pytest.importorskip(scope)
    monkeypatch.chdir(tmp_path)
    config = small_config(scope, tmp_path)
    head = dict(mmpretrain='head', mmdet='bbox_head', mmseg='decode_head')[scope]
    options = [f'model.{head}.num_classes={2 if scope == "mmpretrain" else 9}']
    with mock.patch.object(Runner, '_log_env'):
        result = run_script(ROOT / 'tools/train.py', config, '--cfg-options', *options)
    assert result.returncode == 1 and 'loss' not in result.stdout
    said = result.stderr.strip().splitlines()
    assert re.search(r'num_classes=\d.*set num_classes=', said[-1])
    assert 'Traceback' not in result.stderr


@pytest.mark.slow
def test_test_refuses_a_checkpoint_of_another_model(tmp_path, monkeypatch):
    """As export.py and image_demo.py do, in one sentence."""
    pytest.importorskip('mmpretrain')
    monkeypatch.chdir(tmp_path)
    config = small_config('mmpretrain', tmp_path)
    text = config.read_text().replace('test_dataloader = test_cfg = test_evaluator = None', '')
    config.write_text(f'{text}\ntest_dataloader = train_dataloader\n')
    torch.save(dict(state_dict={'backbone.a': torch.ones(3)}), 'other.pth')
    with mock.patch.object(Runner, '_log_env'):
        result = run_script(ROOT / 'tools/test.py', config, 'other.pth')
    assert result.returncode == 1 and 'Tested' not in result.stdout
    assert re.fullmatch(
        r'other.pth is not the checkpoint of this ImageClassifier: missing .*\n?', result.stderr
    )


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (['--amp'], '--amp .*needs a GPU, and torch finds none here; leave out --amp'),
        (['--cfg-options', 'device=cuda'], "device='cuda' has no effect"),
        (['--cfg-options', 'load_from=mmlaplace://ravlt-tyni'], "no released weights of 'ravlt-ty"),
    ],
)
def test_what_the_config_alone_shows_is_said_before_the_toolbox_starts(
    options, message, tmp_path, monkeypatch
):
    pytest.importorskip('mmpretrain')
    monkeypatch.chdir(tmp_path)
    place = sys.modules['mmlaplace.engine.first_checks.configs']
    monkeypatch.setattr(place, 'get_device', lambda: 'cpu')
    result = run_script(ROOT / 'tools/train.py', micro_config('laplacianformer'), *options)
    assert result.returncode == 1 and re.search(message, result.stderr)
    assert result.stdout == '' and not list(tmp_path.iterdir())


def test_nothing_left_to_train_is_said_in_place_of_an_earlier_runs_scores(hub, capsys, monkeypatch):
    monkeypatch.setattr(sys, 'argv', ['train.py', 'c.py'])
    hub.update_info('best_ckpt', 'best.pth')
    hub.update_info('best_score', 98.1)
    hub.update_info(NOTHING_LEFT, 'nothing is left to train: epoch 9 of 9 is done')
    cfg = Config(dict(model=dict(backbone=dict(type='LaplacianFormer')), load_from=None))
    terminal.last_words('train', Path('tools').absolute(), 'c.py', cfg)
    assert capsys.readouterr().out == '\nNothing is left to train: epoch 9 of 9 is done.\n'


# dry_run.py.


@pytest.fixture
def dry_run(tmp_path, monkeypatch, capsys):
    """A function that calls the tool with arguments; the configs that it ran, and what it said."""
    tool, ran = load_tool('tools/dry_run.py'), []

    def run(config, mark, data, work_dir, length, options):
        ran.append(options)
        row = dict(config=tool.name_of(config), fingerprint=mark, passed=True, **length)
        return dict(row, seconds=1, MB=1, loss=1, metrics={})

    def call(*words):
        options = ['--work-dir', str(tmp_path), '--random-images', '--image-size', '64', '64']
        monkeypatch.setattr(sys, 'argv', ['dry_run.py', *map(str, words), *options])
        try:
            tool.main()
        except SystemExit as end:
            return SimpleNamespace(status=end.code, said=capsys.readouterr().err)
        return SimpleNamespace(status=0, said=capsys.readouterr().out)

    monkeypatch.setattr(tool, 'run', run)
    monkeypatch.setattr(tool, 'import_first', lambda *names: None)
    return SimpleNamespace(tool=tool, ran=ran, call=call)


def test_a_dry_run_takes_options_and_refuses_wrong_names_of_weights(dry_run):
    config = micro_config('laplacianformer')
    assert dry_run.call(config, '--cfg-options', 'model.backbone.drop_path_rate=0.1').status == 0
    assert dry_run.call(config, '--cfg-options', 'model.backbone.drop_path_rate=0.2').status == 0
    assert dry_run.call(config, '--cfg-options', 'model.backbone.drop_path_rate=0.2').status == 0
    assert dry_run.ran == [[f'model.backbone.drop_path_rate={rate}'] for rate in (0.1, 0.2)]
    key = 'model.backbone.init_cfg.checkpoint=mmlaplace://ravlt-tyni'
    refused = dry_run.call(config, '--cfg-options', key)
    assert refused.status == 2 and "no released weights of 'ravlt-tyni'" in refused.said
    assert dry_run.call(config, '--cfg-options', key, 'first_checks=False').status == 0


def test_options_of_a_dry_run_reach_its_process_and_the_sentence_of_a_refusal_comes_back(
    tmp_path, monkeypatch
):
    tool, given = load_tool('tools/dry_run.py'), []

    def run_script(script, arguments, log):
        given.extend(arguments)
        (tmp_path / 'small').mkdir()
        (tmp_path / 'small' / tool.REFUSED).write_text('the sentence')
        return 1, 'fifteen lines'

    monkeypatch.setattr(tool, 'run_script', run_script)
    row = tool.run(Path('small.py'), 'mark', tmp_path, tmp_path, {}, ['a.b=1', "c='d'"])
    assert given[-3:] == ['--cfg-options', 'a.b=1', "c='d'"]
    assert row['end'] == 'the sentence' and not row['passed']
    assert tool.parsed(['a.b=1', 'c=[d,2]']) == {'a.b': 1, 'c': ['d', 2]}


@pytest.mark.slow
def test_a_dry_run_refuses_maps_that_no_head_reads(tmp_path, monkeypatch):
    pytest.importorskip('mmdet')
    tool = load_tool('tools/dry_run.py')
    cfg = Config.fromfile(ROOT / 'configs/heads/mask-rcnn_fpn_1x_coco.py')
    cfg.model.backbone = dict(type='DINOv2', arch='small')
    cfg.model.neck.in_channels = [384]
    length = dict(iterations=1, batch_size=1, random_images=True, image_size=[64, 64])
    with pytest.raises(SystemExit, match='rpn_head reads maps at strides 4, 8, 16, 32, 64'):
        tool.run_here(cfg, tmp_path, tmp_path, length)
    assert 'reads maps' in (tmp_path / tool.REFUSED).read_text()


TOOLS = {
    'visualization/vis_predictions.py': (),
    'visualization/vis_cam.py': (),
    'linearize.py': ('--attention', 'FLattenAttention', '--work-dir', 'out'),
}


@pytest.mark.parametrize('tool', TOOLS)
def test_tools_that_read_data_beside_a_run_name_what_is_missing(tool, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arch = dict(embed_dims=(8,) * 4, depths=(1,) * 4, num_heads=(1,) * 4, ffn_ratios=(1,) * 4)
    backbone = dict(_delete_=True, type='PVTv2', arch=arch, img_size=48, out_indices=-1)
    Path('config.py').write_text(
        f'_base_ = {str(micro_config("laplacianformer"))!r}\n'
        f'model = dict(backbone={backbone}, head=dict(in_channels=8))\n'
        "mine = dict(dataset=dict(data_root='data/mine'))\n"
        'train_dataloader = val_dataloader = test_dataloader = mine\n'
    )
    torch.save(build_model(Config.fromfile('config.py')).state_dict(), 'weights.pth')
    words = ['config.py', 'weights.pth', '--device', 'cpu', *TOOLS[tool]]
    monkeypatch.setattr(sys, 'argv', [tool, *words])
    with pytest.raises(SystemExit, match='data/mine is missing; check data_root'):
        load_tool(f'tools/{tool}').main()
