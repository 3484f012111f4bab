"""Tools refuse checkpoints that ask for code or are another model's; no config makes one run.

A run can be resumed all the same.
"""

import os
import pickle
import re
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn as nn
from conftest import ROOT, Call, fast_with, micro_config, run_script
from mmengine.logging import HistoryBuffer
from mmengine.model import BaseModule
from mmengine.registry import MODELS, PARAM_SCHEDULERS
from mmengine.runner import CheckpointLoader, load_checkpoint
from mmengine.runner import checkpoint as mmengine_checkpoints
from PIL import Image

from mmlaplace.checkpoints import UnsafeCheckpointError, refuse_code
from mmlaplace.commands.command_line import ToolParser
from mmlaplace.commands.toolbox_scripts import check_checkpoints, run_toolbox_script
from mmlaplace.lab.side_by_side.attention_results import begin
from mmlaplace.lab.side_by_side.attention_study import STUDIES, settings_of
from mmlaplace.lab.side_by_side.attention_training import train_attention
from mmlaplace.toolboxes import toolbox_script

TOOLS = ROOT / 'tools'
DEMO = ROOT / 'demo'
PAPERS = ROOT / 'studies'
MODEL_NAMES = 'laplacianformer', 'softpp', 'polaformer-pvt', 'semantic-fpn', 'retinanet'
LAPLACIAN, SOFTPP, PVT, FPN, RETINANET = map(micro_config, MODEL_NAMES)
SOFTMAX = LAPLACIAN.with_name('laplacianformer-micro-softmax_1xb32_mini.py')

# By the tool and what else tells cases apart: its arguments, with FILE and OUT for paths.
OUT = ['--out', 'OUT/a.png']
LOADERS = {
    'visualization/vis_predictions.py': [LAPLACIAN, 'FILE', *OUT],
    'visualization/vis_predictions.py detector': [RETINANET, 'FILE', *OUT],
    'visualization/vis_cam.py': [LAPLACIAN, 'FILE', *OUT],
    'visualization/vis_attention.py': ['photo.png', LAPLACIAN, '--model', LAPLACIAN, 'FILE', *OUT],
    '../demo/image_demo.py': ['photo.png', LAPLACIAN, 'FILE', '--out-dir', 'OUT'],
    '../demo/image_demo.py detector': ['photo.png', RETINANET, 'FILE', '--out-dir', 'OUT'],
    '../demo/image_demo.py segmentor': ['photo.png', FPN, 'FILE', '--out-dir', 'OUT'],
    '../demo/large_image_demo.py': [
        'photo.png',
        RETINANET,
        'FILE',
        '--tile',
        32,
        '--out-dir',
        'OUT',
    ],
    'analysis_tools/get_flops.py': [SOFTPP, '--attention-term', '--checkpoint', 'FILE'],
    '../studies/paper_figures.py': [
        'polaformer-5',
        '--model',
        PVT,
        'FILE',
        'Pola',
        '--images',
        'a',
        '.',
        *OUT,
    ],
    'linearize.py': [SOFTMAX, 'FILE', '--attention', 'FLattenAttention', '--work-dir', 'OUT'],
    'deployment/export.py': [LAPLACIAN, 'FILE', '--format', 'pt2', '--out', 'OUT/a.pt2'],
    'model_converters/convert.py': ['FILE', '--out', 'OUT/a.pth'],
}
# These hand over to the toolboxes, which load whatever fits.
HANDING_OVER = {
    'test.py': [LAPLACIAN, 'FILE', '--work-dir', 'OUT'],
    'train.py --resume': [LAPLACIAN, '--resume', 'FILE', '--work-dir', 'OUT'],
    'train.py load_from': [LAPLACIAN, '--cfg-options', 'load_from=FILE', 'work_dir=OUT'],
    'train.py auto': [LAPLACIAN, '--resume', '--work-dir', 'resumed'],
}
# The toolboxes' inferencers all load by the same lines of the demo.
EVERY_LOADER = fast_with(LOADERS, *(name for name in LOADERS if 'demo.py ' not in name))


def hostile(path):
    torch.save(dict(state_dict={}, meta=dict(x=Call(Path.touch, path.with_name('ran')))), path)


def other(path):
    torch.save(dict(state_dict=torch.nn.Linear(2, 2).state_dict()), path)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a tool in this process, as from the command line; what it said, its exit status not 0."""

    def run(name, arguments) -> str:
        tool = TOOLS / name.split()[0]
        paths = dict(FILE=tmp_path / 'file.pth', OUT=tmp_path / 'out')
        words = [re.sub('FILE|OUT', lambda m: str(paths[m[0]]), str(word)) for word in arguments]
        monkeypatch.chdir(tmp_path)
        Image.fromarray(np.zeros((48, 48, 3), np.uint8)).save('photo.png')
        Path('resumed').mkdir()
        Path('resumed/epoch_11.pth').symlink_to(paths['FILE'])
        Path('resumed/last_checkpoint').write_text(str(Path('resumed/epoch_11.pth').resolve()))
        before = set(tmp_path.rglob('*'))
        result = run_script(tool, *words)
        assert not (tmp_path / 'ran').exists(), f'{name} ran the code'
        assert set(tmp_path.rglob('*')) == before
        assert result.returncode
        return result.stderr

    return run


def test_no_tool_that_takes_a_checkpoint_is_left_out():
    about = re.compile(r'checkpoint|--resume|torch\.load|state_dict|pickle', re.IGNORECASE)
    paths = [path for folder in (TOOLS, DEMO) for path in folder.rglob('*.py')]
    paths += PAPERS.glob('*.py')
    found = {os.path.relpath(path, TOOLS) for path in paths if about.search(path.read_text())}
    # These load nothing themselves: tools/train.py and tools/test.py check what they are given.
    found -= {'dry_run.py', '../studies/reproduce.py'}
    # This writes the path into init_cfg, whose loader is ours.
    found -= {'../studies/study_padding.py'}
    # The explorer has its own test: tests/demo/test_attention_explorer.py.
    found -= {'../demo/attention_explorer.py'}
    found -= {f'../demo/explorer/{name}.py' for name in ('models', 'page', 'view')}
    assert found == {name.split()[0] for name in (*LOADERS, *HANDING_OVER)}
    # All of them by our own loader: others, such as mmengine's, run code.
    calls = re.compile(r'\b(torch\.load|load_checkpoint|_load_checkpoint|pickle\.\w+)\(')
    labs = ('lab/side_by_side', 'lab/mini_datasets')
    rooms = ('analysis', 'commands', 'deployment', *labs)
    shared = (*(ROOT / 'mmlaplace' / room for room in rooms), ROOT / '.dev_scripts')
    for path in (
        path for folder in (TOOLS, DEMO, PAPERS, *shared) for path in folder.rglob('*.py')
    ):
        assert not calls.search(path.read_text()), path


REFUSED = {
    hostile: r'(file|epoch_\d+)\.pth asks for \S+, which could run code',
    other: r'(file|epoch_\d+)\.pth.*its names are',
}


@pytest.mark.parametrize('write', [hostile, other])
@pytest.mark.parametrize('name', [*EVERY_LOADER, *HANDING_OVER])
def test_code_and_weights_of_another_model_are_refused(name, write, run, tmp_path):
    if write is other and name in HANDING_OVER:
        pytest.skip('the toolboxes load what fits: see below')
    write(tmp_path / 'file.pth')
    assert re.search(REFUSED[write], run(name, {**LOADERS, **HANDING_OVER}[name]))


@pytest.mark.parametrize('write', [hostile, other])
def test_a_training_of_a_comparison_refuses_them_when_it_goes_on(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / 'file.pth')
    training = 'LaplacianAttention', STUDIES['textures'].host, 0, 'textures', None
    begin(Path('runs'), settings_of(*training))
    Path('runs/textures').mkdir()
    Path('runs/textures/epoch_4.pth').symlink_to(tmp_path / 'file.pth')
    Path('data/textures/train').mkdir(parents=True)
    with pytest.raises(SystemExit, match=REFUSED[write]):
        train_attention(*training, Path('runs'), Path('data'))
    assert not (tmp_path / 'ran').exists()
    assert not Path('runs/result.json').exists()


@pytest.mark.parametrize('name', HANDING_OVER)
def test_without_first_checks_a_warning_tells_that_a_toolbox_loads_what_fits(
    name, tmp_path, monkeypatch, capsys
):
    other(tmp_path / 'file.pth')
    monkeypatch.chdir(tmp_path)
    Path('resumed').mkdir()
    Path('resumed/last_checkpoint').write_text('file.pth')
    script = toolbox_script('mmpretrain', name.split()[0])
    words = [str(word).replace('FILE', 'file.pth') for word in HANDING_OVER[name]]
    monkeypatch.setattr(sys, 'argv', [str(script), *words])
    check_checkpoints(script)
    assert capsys.readouterr().err == ''  # the first checks refuse it, when the model is built
    options = [] if '--cfg-options' in words else ['--cfg-options']
    words += [*options, 'first_checks=False']
    monkeypatch.setattr(sys, 'argv', [str(script), *words])
    check_checkpoints(script)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith('warning: mmengine loads file.pth, and only logs')
    hostile(tmp_path / 'file.pth')
    with pytest.raises(SystemExit, match='could run code'):
        check_checkpoints(script)
    torch.load(tmp_path / 'file.pth', weights_only=False)  # which is hostile indeed
    assert (tmp_path / 'ran').exists()


@pytest.fixture
def their_loaders(monkeypatch):
    """mmengine's own loaders, as before any of our tools ran in this process."""
    own = {'': mmengine_checkpoints.load_from_local}
    monkeypatch.setattr(CheckpointLoader, '_schemes', {**CheckpointLoader._schemes, **own})
    monkeypatch.setattr(mmengine_checkpoints, 'load_from_http', None)


@pytest.fixture
def refusing(their_loaders):
    refuse_code()


class Teacher(nn.Module):
    """As mmdet's distillers, which load a teacher when they are built."""

    def __init__(self, teacher_ckpt) -> None:
        super().__init__()
        load_checkpoint(self, teacher_ckpt, map_location='cpu')


def from_file(file, **options) -> dict:
    return dict(type='Pretrained', checkpoint=file, **options)


ROUTES = {
    'load_from': lambda file: load_checkpoint(nn.Linear(2, 2), file),
    'the model': lambda file: BaseModule(from_file(file)).init_weights(),
    'the backbone': lambda file: MODELS.build(
        dict(type='LaplacianFormer', arch='micro', init_cfg=from_file(file))
    ).init_weights(),
    'a part of the model': lambda file: BaseModule(from_file(file, prefix='neck.')).init_weights(),
    'a teacher': Teacher,
    '~': lambda file: load_checkpoint(nn.Linear(2, 2), f'~/{Path(file).name}'),
    'torchvision': lambda file: load_checkpoint(nn.Linear(2, 2), 'torchvision://resnet'),
}


@pytest.mark.parametrize('route', ROUTES)
def test_no_way_to_name_a_checkpoint_runs_its_code(route, refusing, tmp_path, monkeypatch):
    hostile(tmp_path / 'file.pth')
    monkeypatch.setenv('HOME', str(tmp_path))
    names = dict(resnet=str(tmp_path / 'file.pth'))  # an address in mmengine
    monkeypatch.setattr(mmengine_checkpoints, 'get_torchvision_models', lambda: names)
    with pytest.raises(UnsafeCheckpointError, match=r'file\.pth asks for .*save its weights alone'):
        ROUTES[route](str(tmp_path / 'file.pth'))
    assert not (tmp_path / 'ran').exists()


@pytest.mark.parametrize(
    'start', [lambda: ToolParser(None), lambda: run_toolbox_script('train.py', '')]
)
def test_each_tool_begins_with_it(start, their_loaders, tmp_path, monkeypatch):
    hostile(tmp_path / 'file.pth')
    monkeypatch.setattr(sys, 'argv', ['train.py', '--help'])
    with suppress(SystemExit):
        start()
    with pytest.raises(UnsafeCheckpointError):
        load_checkpoint(nn.Linear(2, 2), str(tmp_path / 'file.pth'))


def test_no_tool_begins_otherwise():
    for path in (path for folder in ('tools', 'demo') for path in (ROOT / folder).rglob('*.py')):
        text = path.read_text(encoding='utf-8')
        if path.name == 'build_onnxruntime_ops.py':
            continue  # a compiler's
        # Programs for other machines import nothing of ours.
        if "'__main__'" in text and re.search('^(from|import) mmlaplace', text, re.MULTILINE):
            assert re.search(r'\b(ToolParser|parser_for|run_toolbox_script)\(', text), path


SCHEDULES = [
    dict(type='MultiStepLR', milestones=[8, 11]),
    dict(type='OneCycleLR', eta_max=0.1, total_steps=9),
    dict(type='CosineAnnealingLR', T_max=3),
]


def test_all_that_a_run_writes_is_read_as_it_was(refusing, tmp_path, monkeypatch):
    # So that texts can be compared, which tell types, too.
    monkeypatch.setattr(HistoryBuffer, '__repr__', lambda b: f'{b.data} {b.statistics("mean")}')
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(2))], 0.1)
    schedulers = [PARAM_SCHEDULERS.build(dict(s, optimizer=optimizer)) for s in SCHEDULES]
    optimizer.param_groups[0]['params'][0].sum().backward()
    for step in (optimizer, *schedulers):
        step.step()
    content = dict(
        state_dict=dict(weight=torch.ones(2)),
        optimizer=optimizer.state_dict(),
        param_schedulers=[scheduler.state_dict() for scheduler in schedulers],
        message_hub=dict(
            log_scalars=dict(loss=HistoryBuffer([1.0, 2.0], [1, 3])),
            runtime_info=dict(best=np.float64(3), array=np.eye(2), name=b'a', out=tmp_path),
        ),
        meta=dict(epoch=3, dataset_meta=dict(classes={'a'}, at=np.array(['a']))),
    )
    torch.save(content, tmp_path / 'a.pth')
    read = CheckpointLoader.load_checkpoint(str(tmp_path / 'a.pth'), 'cpu')
    # Functions are left out. A schedule has its own, from the config.
    assert 'function' in str(content['param_schedulers'][1].pop('anneal_func'))
    assert repr(read) == repr(content)
    for scheduler, state in zip(schedulers, read['param_schedulers']):
        scheduler.load_state_dict(state)
        scheduler.step()
    torch.save(read, tmp_path / 'again.pth')  # as the next epoch does
    again = CheckpointLoader.load_checkpoint(str(tmp_path / 'again.pth'), 'cpu')
    assert repr(again) == repr(content)


def test_a_text_that_mmengine_would_run_is_left_out(refusing, tmp_path):
    """``Runner.resume`` takes ``config`` of ``meta`` for a config in Python."""
    meta = dict(epoch=1, config='raise SystemExit', cfg='raise SystemExit')
    torch.save(dict(state_dict={}, meta=meta), tmp_path / 'a.pth')
    read = CheckpointLoader.load_checkpoint(str(tmp_path / 'a.pth'), 'cpu')
    assert read['meta'] == dict(epoch=1)


@pytest.mark.parametrize(
    ('pickled', 'message'),
    [
        (b'cmmengine.logging.history_buffer\nHistoryBuffer\n', '__setstate__'),
        (b'ccollections\nCounter\n', 'sets attributes of Counter'),
        (b'cnumpy\nndarray\n', '__setstate__'),
        (b'ccollections\ndeque\n', "immutable type 'collections.deque'"),
    ],
)
def test_a_pickle_cannot_change_a_class(pickled, message, refusing, tmp_path):
    """A state of (None, dict) sets attributes of what it is given to."""
    (tmp_path / 'a.pth').write_bytes(b'\x80\x02' + pickled + b'N}U\x03popK\x01s\x86b.')
    before = dict(vars(HistoryBuffer))
    with pytest.raises((ValueError, pickle.UnpicklingError), match=message):
        CheckpointLoader.load_checkpoint(str(tmp_path / 'a.pth'), 'cpu')
    assert vars(HistoryBuffer) == before
