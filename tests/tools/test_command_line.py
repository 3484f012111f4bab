"""What the tools share keeps files, names what is wrong, and needs nothing beyond torch."""

import json
import subprocess
import sys

import pytest
import torch
from conftest import CLASSIFICATION

from mmlaplace.commands import command_line
from mmlaplace.commands.command_line import (
    ToolParser,
    build_backbone,
    load_or_exit,
    read_config,
    write_json,
)

MICRO = CLASSIFICATION / 'laplacianformer/laplacianformer-micro_1xb32_mini.py'


def parser() -> ToolParser:
    parser = ToolParser('What it does.\n\nExample:\n  python tool.py')
    parser.add_trained_model('classifier')
    parser.add_output('--out')
    parser.add_output('--plot')
    return parser


def test_a_file_that_is_there_is_kept_unless_forced(tmp_path, capsys):
    kept = tmp_path / 'kept.json'
    kept.touch()
    words = ['config.py', 'a.pth', '--plot', str(kept)]
    with pytest.raises(SystemExit, match='2'):
        parser().parse_args(words)
    assert f'{kept} is there already; --force replaces it' in capsys.readouterr().err
    args = parser().parse_args([*words, '--force'])
    assert (args.config, args.checkpoint, args.out, args.plot) == ('config.py', 'a.pth', None, kept)


def test_a_folder_is_no_file_to_write_even_by_force(tmp_path, capsys):
    """Else a tool would find out at its end, with nothing written."""
    with pytest.raises(SystemExit, match='2'):
        parser().parse_args(['config.py', 'a.pth', '--out', str(tmp_path), '--force'])
    assert f'{tmp_path} is a folder; name a file in it' in capsys.readouterr().err


def test_the_help_is_the_docstring_as_it_stands():
    assert 'What it does.\n\nExample:\n  python tool.py\n' in parser().format_help()


def test_a_parser_without_outputs_has_no_force():
    assert '--force' not in ToolParser('A tool.').format_help()


def test_json_makes_its_folder(tmp_path):
    write_json(tmp_path / 'a/b.json', dict(x=[1, None]))
    assert json.loads((tmp_path / 'a/b.json').read_text()) == dict(x=[1, None])
    assert [p.name for p in (tmp_path / 'a').iterdir()] == ['b.json']  # nothing is left beside it


def test_json_that_cannot_be_written_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / 'b.json'
    write_json(path, dict(x=1))

    def full(*args):
        raise OSError('No space left on device')

    monkeypatch.setattr(command_line.os, 'replace', full)
    with pytest.raises(OSError, match='No space'):
        write_json(path, dict(x=2))
    assert json.loads(path.read_text()) == dict(x=1)


def test_a_backbone_of_a_config_has_the_weights_of_a_checkpoint(tmp_path):
    first = build_backbone(MICRO)
    assert not first.training
    torch.save(dict(state_dict=first.state_dict()), tmp_path / 'a.pth')
    again = build_backbone(MICRO, str(tmp_path / 'a.pth'))
    weights = again.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in first.state_dict().items())


def test_a_checkpoint_that_is_refused_ends_the_tool_with_its_message(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, 'argv', ['tools/visualization/vis_cam.py'])
    model = torch.nn.Linear(2, 2)
    with pytest.raises(SystemExit, match=r'^vis_cam\.py: error: .*none\.pth'):
        load_or_exit(model, str(tmp_path / 'none.pth'))


@pytest.mark.parametrize('read', [read_config, build_backbone])
def test_a_config_that_is_not_there_ends_the_tool_with_a_message(read, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, 'argv', ['tools/visualization/vis_cam.py'])
    with pytest.raises(SystemExit, match=r'^vis_cam\.py: error: there is no config .*none\.py; ch'):
        read(str(tmp_path / 'none.py'))


@pytest.mark.slow
def test_the_shared_modules_import_nothing_heavy():
    code = (
        'import sys, mmlaplace; before = set(sys.modules)\n'
        'import mmlaplace.commands.command_line, mmlaplace.checkpoints.conversion\n'
        'import mmlaplace.analysis.measuring, mmlaplace.analysis.recording\n'
        'heavy = {"rich", "PIL", "skimage", "sklearn", "matplotlib", "mmcv"}\n'
        'print(sorted(heavy & (set(sys.modules) - before)))'
    )
    result = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert result.stdout.strip() == '[]', result.stderr
