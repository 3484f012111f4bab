"""demo/tutorial.ipynb runs from top to bottom, and its page has its cells."""

import pytest
from conftest import ROOT, load_tool

from mmlaplace.lab.mini_datasets import pictures

nbformat = pytest.importorskip('nbformat')


@pytest.fixture(scope='module')
def tool():
    return load_tool('.dev_scripts/run_tutorial.py')


@pytest.fixture(scope='module')
def notebook(tool):
    return nbformat.read(tool.NOTEBOOK, as_version=4)


def test_the_page_has_all_cells_and_no_path_of_the_machine_that_ran_it(notebook):
    page = (ROOT / 'docs/tutorials/notebook.md').read_text()
    assert [cell.source for cell in notebook.cells if f'```python\n{cell.source}' not in page] == [
        cell.source for cell in notebook.cells if cell.cell_type == 'markdown'
    ]
    assert str(ROOT) not in page


@pytest.mark.thorough
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
