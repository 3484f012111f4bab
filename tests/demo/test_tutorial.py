"""demo/tutorial.ipynb runs from top to bottom, and its page is in step with it."""

import pytest
from conftest import ROOT, load_tool

from mmlaplace.lab.mini_datasets import pictures

nbformat = pytest.importorskip('nbformat')


@pytest.fixture(scope='module')
def tool():
    return load_tool('.dev_scripts/make_tutorial.py')


@pytest.fixture(scope='module')
def notebook(tool):
    return nbformat.read(tool.NOTEBOOK, as_version=4)


def test_the_page_is_that_of_the_notebook(tool, notebook):
    for path, content in tool.page(notebook).items():
        assert path.read_bytes() == content, 'run python .dev_scripts/make_tutorial.py'
    assert str(ROOT) not in tool.PAGE.read_text()


@pytest.mark.training
def test_it_runs_from_top_to_bottom(tool, notebook, tmp_path, monkeypatch):
    pytest.importorskip('nbclient')
    # The data that the notebook would make, but a third of the patches, which saves half the time.
    monkeypatch.setattr(pictures, 'PATCHES', {'train': 80, 'val': 20})
    pictures.make_textures(tmp_path / 'textures', seed=0)
    monkeypatch.setenv('MINI_DATA', str(tmp_path))
    monkeypatch.setenv('PYTHONPATH', str(ROOT))
    fresh = nbformat.from_dict(notebook)
    for cell in fresh.cells:
        if cell.cell_type == 'code':
            cell.outputs, cell.execution_count = [], None
    tool.run(fresh)
    said = [
        output.data.get('text/plain', '')
        for cell in fresh.cells
        for output in cell.get('outputs', ())
    ]
    assert 'True' in said  # the formula is the one of all pairs
    (compared,) = (text for text in said if 'of the test images right' in text)
    for line in compared.splitlines():
        # 60 steps give about 30 %. By chance it is 7 %, give or take 3 with so few images.
        assert int(line.split('%')[0].split()[-1]) > 10, compared
