"""The documentation: it builds, links lead somewhere, examples and commands run or exist."""

import ast
import doctest
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections import Counter
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path

import pytest
import torch
from conftest import ROOT, imports_forgotten, output_of
from reading_golden_files import assert_as_described

from mmlaplace import ops
from mmlaplace.ops import table

READMES = [*ROOT.glob('*.md'), ROOT / 'ops/README.md', *(ROOT / 'configs').rglob('README.md')]
PAGES = sorted((ROOT / 'docs').rglob('*.md'))
README = ROOT / 'README.md'
LINK = re.compile(r'\[([^\]]*)\]\((?!\w+:)([^)\s]*)\)')


def name(path):
    return str(path.relative_to(ROOT))


def without_code(markdown):
    return re.sub(r'`[^`\n]*`', 'code', re.sub(r'```.*?```', '', markdown, flags=re.DOTALL))


def anchors(markdown):
    """As GitHub makes them of headings: the second of equal ones gets -1."""
    titles = re.findall(r'^#+ (.*)$', re.sub(r'```.*?```', '', markdown, flags=re.DOTALL), re.M)
    found, seen = set(), Counter()
    for title in titles:
        title = re.sub(r'\[([^\]]*)\]\([^)]*\)', r'\1', title).strip().lower()
        place = re.sub(r'[^\w -]', '', title).replace(' ', '-')
        found.add(f'{place}-{seen[place]}' if seen[place] else place)
        seen[place] += 1
    return found


def code_blocks(document: Path, language: str) -> list:
    return re.findall(rf'```{language}\n(.*?)```', document.read_text(), flags=re.DOTALL)


@pytest.mark.docs
@pytest.mark.thorough
def test_the_site_has_every_page_and_no_warning(tmp_path):
    """Dead links, and classes that a page names and there are not, are warnings of Sphinx."""
    pytest.importorskip('sphinx', reason='no Sphinx: pip install -r requirements/docs.txt')
    command = ['bash', ROOT / '.dev_scripts/build_docs.sh', '--out', tmp_path]
    subprocess.run(command, check=True, env={**os.environ, 'PYTHON': sys.executable})
    for page in PAGES:
        assert (tmp_path / page.relative_to(ROOT / 'docs')).with_suffix('.html').is_file()


@pytest.mark.parametrize('path', [*READMES, *PAGES], ids=name)
def test_links_work_where_the_file_is_read_and_python_is_python(path):
    """On a code host too, which shows no link without text and knows no classes."""
    for text, link in LINK.findall(without_code(path.read_text())):
        target, _, place = link.partition('#')
        file = (path.parent / target).resolve() if target else path
        assert text, f'{name(path)}: {link} has no text'
        assert file.exists(), f'{name(path)}: {link}'
        if place and file.suffix == '.md':
            assert place in anchors(file.read_text()), f'{name(path)}: {link}'
    for block in code_blocks(path, 'python'):
        compile(textwrap.dedent(block), name(path), 'exec')


@pytest.mark.slow
@pytest.mark.parametrize(
    ('page', 'shape'),
    [
        ('tutorials/add_attention', '(1, 128, 8, 11)'),
        ('developers/add_family', '(1, 64, 8, 13)'),
    ],
)
def test_the_file_of_a_tutorial_runs(page, shape, tmp_path, monkeypatch):
    blocks = map(textwrap.dedent, code_blocks(ROOT / f'docs/{page}.md', 'python'))
    file, *rest = (block for block in blocks if not block.startswith("# where the authors' code"))
    # The file that a reader saves, and what is typed after importing it, in a folder of its own.
    (tmp_path / 'elu_attention.py').write_text(file)
    (tmp_path / 'typed.py').write_text('\n'.join(['from elu_attention import *', *rest]))
    monkeypatch.chdir(tmp_path)
    with imports_forgotten(tmp_path):
        assert shape in output_of(tmp_path / 'typed.py')
        for golden in tmp_path.glob('tests/data/golden/described/*.npz'):
            assert_as_described(golden)


def test_the_python_file_of_an_op_computes_by_its_reference(tmp_path, monkeypatch):
    """Its native sources are not compiled here, but their names and its row are there."""
    page = ROOT / 'docs/developers/add_op.md'
    file, row = code_blocks(page, 'python')
    name = 'mmlaplace.ops.quartic_kernel'
    (tmp_path / 'quartic_kernel.py').write_text(file)
    spec = importlib.util.spec_from_file_location(name, tmp_path / 'quartic_kernel.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(ops, 'quartic_kernel', module.quartic_kernel, raising=False)
    # The first call says that the library has no such op, which is no output of the example.
    module.quartic_kernel(*2 * [torch.zeros(1, 1, 1, 2)], bandwidth=1.0)
    finder = doctest.DocTestFinder(recurse=False)
    (example,) = finder.find(module.quartic_kernel, name, module=False, globs={})
    assert not doctest.DocTestRunner().run(example).failed
    exec(row, names := dict(vars(table)))
    call = names['OPS']['quartic_kernel']
    tensors = [value.double().requires_grad_() for value in call.tensors().values()]
    kernel = partial(module.quartic_kernel, **call.options)
    assert torch.autograd.gradcheck(kernel, tensors, fast_mode=True)
    defined = re.findall(r'library\.def\(\s*"(\w+)', page.read_text())
    assert defined == [module.QUARTIC.name, f'_{module.QUARTIC.name}_backward']


@pytest.mark.slow
@pytest.mark.parametrize(
    'page', ['get_started.md', 'benchmarks.md', 'tutorials/own_config.md', 'timm.md']
)
def test_python_of_a_page_that_imports_runs_and_gives_what_it_says(page, capsys):
    """An expression, and after it a comment with its value or with what it prints, is compared."""
    if page == 'timm.md':
        pytest.importorskip('timm')
    names, compared = {}, 0
    for block in code_blocks(ROOT / 'docs' / page, 'python'):
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


@pytest.mark.slow
def test_what_is_generated_is_in_step():
    pytest.importorskip('mmdet', reason='the table of heads is of all toolboxes')
    pytest.importorskip('nbformat')
    output_of(ROOT / '.dev_scripts/make_pages.py', '--check')


DOCUMENTS = sorted([*READMES, *PAGES])
# They hand their options on to the toolbox's script, or to pytest.
OF_MMLAPLACE = [ROOT / 'mmlaplace/check/report.py', *(ROOT / 'mmlaplace/lab/compare').glob('*.py')]
PASS_ON = (
    'train.py',
    'test.py',
    'dist_train.sh',
    'dist_test.sh',
    'slurm_train.sh',
    'check_upstream.sh',
    'run_tests.sh',
)
# Programs of others; of the shell's own, only what sets something up.
OTHERS = (
    'pip pre-commit mim hf git cd source export docker apt-get cp ls curl tensorboard aoti_classify'
)


def lines(page) -> list:
    """Each command of a page as one line, after the variables that the lines before it set."""
    found, variables = [], ''
    for block in code_blocks(page, 'bash'):
        for line in block.replace('\\\n', ' ').splitlines():
            line = line.split(' #')[0].strip()
            if re.fullmatch(r'\w+=\S+', line):
                variables += f'{line}; '
            elif line and not line.startswith('#'):
                found.append((variables, line))
    return found


def commands(document: Path) -> list:
    """Each command as words, without variables in front."""
    parts = [part for _, line in lines(document) for part in re.split('&&|;', line)]
    return [shlex.split(re.sub(r'^(\s*\w+=\S*)+ ', '', part)) for part in parts]


@pytest.mark.parametrize('document', DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_name_scripts_options_and_configs_that_exist(document):
    for words in commands(document):
        program = Path(words[0]).name
        if program not in ('python', 'python3', 'bash'):
            assert program in OTHERS.split(), words
            continue
        if words[1:3] == ['-m', 'mmlaplace']:
            files = [*(ROOT / 'mmlaplace/commands').glob('*.py'), *OF_MMLAPLACE]
            text = ''.join(file.read_text() for file in files)
            options = {word.split('=')[0] for word in words if word.startswith('--')}
            assert not [option for option in options if f"'{option}'" not in text], words
            continue
        if words[1].startswith(('-m', '-c', 'MMDETECTION', 'setup.py')):
            continue
        script = ROOT / words[1]
        assert script.is_file(), words
        options = {word.split('=')[0] for word in words[2:] if word.startswith('--')}
        if script.name not in PASS_ON:
            # Options may be added by a module of the library that the script imports.
            imported = re.findall(r'^from (mmlaplace\.[\w.]+)', script.read_text(), re.MULTILINE)
            paths = (ROOT / f'{name.replace(".", "/")}.py' for name in imported)
            files = [script, *(path for path in paths if path.exists())]
            files += (ROOT / 'mmlaplace/commands').glob('*.py')
            text = ''.join(file.read_text() for file in files)
            assert not [option for option in options if option not in text], words
        configs = [word for word in words[2:] if re.match(r'configs/[^*{…]*$', word)]
        assert all((ROOT / config).exists() for config in configs), words


@pytest.mark.slow
def test_the_readmes_first_lines_print_what_it_shows():
    code, shown = code_blocks(README, 'python')[0], code_blocks(README, 'text')[0]
    with redirect_stdout(StringIO()) as printed:
        exec(code, {})
    assert printed.getvalue() == shown
