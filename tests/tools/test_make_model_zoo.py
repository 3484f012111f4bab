"""The tables of models are those of the metafiles."""

import sys

import pytest
from conftest import ROOT, load_tool

from mmlaplace.model_zoo import files_root, read_models


@pytest.fixture(scope='module')
def tool():
    return load_tool('.dev_scripts/make_model_zoo.py')


def test_all_files_are_in_step_and_the_page_has_every_model_once(tool, monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['make_model_zoo.py', '--check'])
    tool.main()
    assert 'in step' in capsys.readouterr().out
    page = tool.PAGE.read_text()
    for model in read_models():
        path = model.config.relative_to(files_root())
        assert page.count(f'| [{model.name}](../{path}) |') == 1
    with pytest.raises(SystemExit, match="no model of the metafiles matches 'soft/x'"):
        tool.table(read_models(), 'soft/x', ROOT)


def test_a_stale_readme_is_named_then_written(tool, monkeypatch, tmp_path, capsys):
    readme = tmp_path / 'README.md'
    readme.write_text('A\n<!-- models: detection/soft/* -->\nold\n<!-- end of models -->\nB')
    monkeypatch.setattr(tool, 'ROOT', tmp_path)
    monkeypatch.setattr(tool, 'PAGE', tmp_path / 'page.md')
    monkeypatch.setattr(sys, 'argv', ['make_model_zoo.py', '--check'])
    with pytest.raises(SystemExit, match=r'not in step.*: README\.md, page\.md; run python .dev_'):
        tool.main()
    assert 'old' in readme.read_text()
    monkeypatch.setattr(sys, 'argv', ['make_model_zoo.py'])
    tool.main()
    assert capsys.readouterr().out == 'wrote README.md, page.md\n'
    text = readme.read_text()
    assert 'old' not in text and text.startswith('A\n<!--') and text.endswith('-->\nB')
    row = '](configs/detection/soft/retinanet_softpp-tiny_fpn_1x_coco'
    assert f'{row}.py) | 41.9 | not run | – | – |' in text
    tool.main()
    assert readme.read_text() == text


def test_a_run_links_to_its_log(tool):
    (model,) = [m for m in read_models() if m.name == 'softpp-tiny_8xb128_in1k']
    assert tool.table_row(model, ROOT / 'docs') == {
        'config': '[softpp-tiny_8xb128_in1k]'
        '(../configs/classification/soft/softpp-tiny_8xb128_in1k.py)',
        'params': '13.07 M', 'of layers': '12.68 M', 'params, published': '13 M',
        'MACs': '1.83 G', 'with kernels': '1.94 G', 'MACs, published': '1.9 G',
        'top-1, published': '80.9', 'top-1, reproduced': 'not run',
    }  # fmt: skip
    model.metadata['Reproduced'] = {'Top 1 Accuracy': 80.7, 'Log': 'docs/logs/softpp.json'}
    assert tool.table_row(model, ROOT)['top-1, reproduced'] == '[80.7](docs/logs/softpp.json)'
