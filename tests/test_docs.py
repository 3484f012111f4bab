"""The documentation: the site builds without a warning, links lead somewhere, examples run."""

import ast
import os
import re
import subprocess
import sys
import textwrap

import pytest
from conftest import ROOT, load_tool

# What is read in the repository rather than on the site; Sphinx checks the links of docs/.
READMES = [*ROOT.glob('*.md'), ROOT / 'ops/README.md', *(ROOT / 'configs').rglob('README.md')]
PAGES = sorted((ROOT / 'docs').rglob('*.md'))
LINK = re.compile(r'\[[^\]]*\]\((?!\w+:)([^)\s]*)\)')


def name(path):
    return str(path.relative_to(ROOT))


def without_code(markdown):
    return re.sub(r'```.*?```|`[^`\n]*`', '', markdown, flags=re.DOTALL)


def anchors(markdown):
    """As GitHub makes them of headings."""
    titles = re.findall(r'^#+ (.*)$', re.sub(r'```.*?```', '', markdown, flags=re.DOTALL), re.M)
    titles = [re.sub(r'\[([^\]]*)\]\([^)]*\)', r'\1', title) for title in titles]
    return {re.sub(r'[^\w -]', '', title.strip().lower()).replace(' ', '-') for title in titles}


def python_blocks(path):
    return re.findall(r'```python\n(.*?)```', path.read_text(), re.DOTALL)


@pytest.mark.docs
def test_the_site_has_every_page_and_no_warning(tmp_path):
    """Dead links, and classes that a page names and there are not, are warnings of Sphinx."""
    pytest.importorskip('sphinx', reason='no Sphinx: pip install -r requirements/docs.txt')
    command = ['bash', ROOT / '.dev_scripts/build_docs.sh', '--out', tmp_path]
    subprocess.run(command, check=True, env={**os.environ, 'PYTHON': sys.executable})
    for page in PAGES:
        assert (tmp_path / page.relative_to(ROOT / 'docs')).with_suffix('.html').is_file()


@pytest.mark.parametrize('path', [*READMES, *PAGES], ids=name)
def test_relative_links_exist_in_the_repository(path):
    for link in LINK.findall(without_code(path.read_text())):
        target, _, place = link.partition('#')
        file = (path.parent / target).resolve() if target else path
        assert file.exists(), f'{name(path)}: {link}'
        if place and file.suffix == '.md' and not place.startswith('mmlaplace.'):
            assert place in anchors(file.read_text()), f'{name(path)}: {link}'


@pytest.mark.slow
def test_the_attention_of_the_tutorial_runs(tmp_path):
    attention, *rest = python_blocks(ROOT / 'docs/tutorials/add_attention.md')
    # The file that a reader saves, and what is typed after importing it.
    (tmp_path / 'elu_attention.py').write_text(attention)
    script = '\n'.join(['from elu_attention import *', *rest])
    result = subprocess.run(
        [sys.executable, '-c', script], cwd=tmp_path, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert '(1, 128, 8, 11)' in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize('page', ['get_started.md', 'tutorials/own_config.md', 'timm.md'])
def test_python_of_a_page_that_imports_runs_and_gives_what_it_says(page, capsys):
    """An expression, and after it a comment with its value or with what it prints, is compared."""
    if page == 'timm.md':
        pytest.importorskip('timm')
    names, compared = {}, 0
    for block in python_blocks(ROOT / 'docs' / page):
        if not re.match('from|import', block):
            continue  # a config, which tests/configs and the toolboxes' tests build
        lines = [*block.splitlines(), '']
        for statement in ast.parse(block).body:
            code, after = ast.unparse(statement), lines[statement.end_lineno]
            if not isinstance(statement, ast.Expr):
                exec(code, names)
                continue
            value = eval(code, names)
            printed = capsys.readouterr().out.strip()
            if after.startswith('# '):
                assert (printed or str(value)) == after[2:]
                compared += 1
    assert compared


def test_the_page_of_options_is_in_step():
    tool = load_tool('.dev_scripts/make_options.py')
    assert tool.PAGE.read_text() == tool.page(), 'run python .dev_scripts/make_options.py'


@pytest.mark.parametrize('path', PAGES, ids=name)
def test_python_of_the_pages_is_python(path):
    for block in python_blocks(path):
        compile(textwrap.dedent(block), name(path), 'exec')
