"""Every tool refuses a checkpoint that asks for code, or is another model's."""

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT, Call, fast_with, micro_config, run_script
from PIL import Image

from mmlaplace.commands.toolbox_scripts import check_checkpoints
from mmlaplace.lab.side_by_side.attention_jobs import begin
from mmlaplace.lab.side_by_side.attention_study import STUDIES, settings_of
from mmlaplace.toolboxes import toolbox_script

TOOLS = ROOT / 'tools'
DEMO = ROOT / 'demo'
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
    'analysis_tools/measure_model.py': [SOFTPP, '--attention-term', '--checkpoint', 'FILE'],
    'visualization/paper_figures.py': [
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
    # It takes the checkpoints that it finds in its work directory.
    'analysis_tools/attention_training.py': ['LaplacianAttention', '--work-dir', 'runs'],
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
        for place, epoch in (('runs/textures', 4), ('resumed', 11)):
            Path(place).mkdir(parents=True)
            Path(place, f'epoch_{epoch}.pth').symlink_to(paths['FILE'])
        host = STUDIES['textures'].host  # of a training that was stopped
        begin(Path('runs'), settings_of('LaplacianAttention', host, 0, 'textures', None))
        Path('runs/lock').touch()
        Path('data/mini/textures/train').mkdir(parents=True)
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
    found = {os.path.relpath(path, TOOLS) for path in paths if about.search(path.read_text())}
    # These load nothing themselves: tools/train.py and tools/test.py check what they are given.
    found -= {'dry_run.py', 'reproduce.py'}
    # The explorer has its own test: tests/demo/test_attention_explorer.py.
    found -= {'../demo/attention_explorer.py'}
    found -= {f'../demo/explorer/{name}.py' for name in ('models', 'page', 'view')}
    assert found == {name.split()[0] for name in (*LOADERS, *HANDING_OVER)}
    # All of them by our own loader: others, such as mmengine's, run code.
    calls = re.compile(r'\b(torch\.load|load_checkpoint|_load_checkpoint|pickle\.\w+)\(')
    labs = ('lab/side_by_side', 'lab/mini_datasets', 'lab/reproduction')
    rooms = ('analysis', 'commands', 'deployment', *labs)
    shared = (*(ROOT / 'mmlaplace' / room for room in rooms), ROOT / '.dev_scripts')
    for path in (path for folder in (TOOLS, DEMO, *shared) for path in folder.rglob('*.py')):
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


@pytest.mark.parametrize('name', HANDING_OVER)
def test_a_warning_tells_that_a_toolbox_loads_what_fits(name, tmp_path, monkeypatch, capsys):
    other(tmp_path / 'file.pth')
    monkeypatch.chdir(tmp_path)
    Path('resumed').mkdir()
    Path('resumed/last_checkpoint').write_text('file.pth')
    script = toolbox_script('mmpretrain', name.split()[0])
    words = [str(word).replace('FILE', 'file.pth') for word in HANDING_OVER[name]]
    monkeypatch.setattr(sys, 'argv', [str(script), *words])
    check_checkpoints(script)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith('warning: mmengine loads file.pth, and only logs')
    hostile(tmp_path / 'file.pth')
    with pytest.raises(SystemExit, match='could run code'):
        check_checkpoints(script)
    torch.load(tmp_path / 'file.pth', weights_only=False)  # which is hostile indeed
    assert (tmp_path / 'ran').exists()
