"""The command that makes generated files finds new ones, says what changed, and names the fix."""

import re
import sys
from pathlib import Path

import pytest
from conftest import ROOT, load_tool

from mmlaplace.models import BaseAttention, LinearAttention

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / '.dev_scripts')
    from pages import api, choose, files, formulas, options, package, which_attention


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A folder in the place of the clone."""
    monkeypatch.setattr(files, 'ROOT', tmp_path)
    monkeypatch.setattr(package, 'ROOT', tmp_path)
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


REGISTERED = '@MODELS.register_module()\nclass {}:\n    pass\n'


def exported(clone: Path, folder: str) -> str:
    made = files.Files()
    package.export(made, clone / folder)
    assert made.save()
    return (clone / folder / '__init__.py').read_text()


def test_registered_classes_of_new_files_are_exported_and_lines_by_hand_stay(clone):
    write(clone / 'attentions/__init__.py', '"""Doc."""\n\nfrom .base import Base as Base\n')
    write(clone / 'attentions/base.py', 'class Base:\n    pass\n')
    write(clone / 'attentions/new.py', REGISTERED.format('New') + 'class _Part:\n    pass\n')
    write(clone / 'attentions/_private.py', REGISTERED.format('Private'))
    assert exported(clone, 'attentions') == (
        '"""Doc."""\n\nfrom .base import Base as Base\nfrom .new import New as New\n'
    )
    (clone / 'attentions/new.py').unlink()  # as in a renamed file
    write(clone / 'attentions/another.py', REGISTERED.format('Other') + REGISTERED.format('Two'))
    assert exported(clone, 'attentions').endswith(
        'from .another import Other as Other\nfrom .another import Two as Two\n'
        'from .base import Base as Base\n'
    )


def test_a_function_of_an_op_is_public_with_an_example(clone):
    write(clone / 'ops/__init__.py', "from .old import old as old\n\n__all__ = [\n    'old',\n]\n")
    with_example = 'def {}():\n    """Doc.\n\n    Examples:\n        >>> 1\n    """\n'
    write(clone / 'ops/cube.py', with_example.format('cube') + with_example.format('helper'))
    write(clone / 'ops/internal.py', 'def internal():\n    """Doc."""\n')
    assert (
        exported(clone, 'ops') == "from .cube import cube as cube\n\n__all__ = [\n    'cube',\n]\n"
    )


def test_changes_are_told_and_with_check_nothing_is_written(clone, capsys):
    page = write(clone / 'page.md', 'one\ntwo\n')
    made = files.Files()
    made.write(page, 'one\n2\nthree\n')
    made.write(clone / 'picture.png', b'\x89PNG')
    assert made.save(only_tell=True) and page.read_text() == 'one\ntwo\n'
    assert capsys.readouterr().out == (
        'page.md: 2 lines new, 1 old ones gone\npicture.png: other bytes\n'
    )
    assert made.save() and page.read_text() == 'one\n2\nthree\n'
    assert not made.save()


def test_a_count_needs_its_words_once():
    assert files.with_count('has 3 attentions', r'has (\d+) attentions', 48) == 'has 48 attentions'
    with pytest.raises(ValueError, match='is 0 times on the page; bring it up to date'):
        files.with_count('has three attentions', r'has (\d+) attentions', 48)


class TwoFormulas(BaseAttention):
    r"""The first formula, :math:`a`, is behind the directive:

    .. math:: y = \frac{a}{b}, \quad
              b = 1

    And the second below it:

    .. math::
        z = 2

    Args:
        eps: Not on the page.
    """


def test_formulas_are_between_dollars_wherever_they_begin():
    text = formulas.markdown(formulas.description(TwoFormulas))
    assert text == (
        'The first formula, $a$, is behind the directive:\n\n'
        '$$\ny = \\frac{a}{b}, \\quad\nb = 1\n$$\n\nAnd the second below it:\n\n$$\nz = 2\n$$'
    )
    page = (ROOT / 'docs/formulas.md').read_text()
    assert '.. math' not in page and page.count('$$') % 2 == 0


class Unsourced(BaseAttention):
    """An attention without the line."""


def test_an_attention_without_a_source_ends_the_command_with_the_fix(monkeypatch, capsys):
    assert options.papers(LinearAttention).startswith('[Transformers are RNNs](https://arxiv.org/')
    with pytest.raises(
        ValueError, match=r'Unsourced has no source; add a line "Source: NAME \(arX'
    ):
        options.papers(Unsourced)
    tool = load_tool('.dev_scripts/make_pages.py')
    monkeypatch.setattr(sys, 'argv', ['make_pages.py', 'api'])
    monkeypatch.setattr(api, 'update', lambda _: options.papers(Unsourced))
    with pytest.raises(SystemExit, match='^make_pages.py: error: api: .* Unsourced has no source'):
        tool.main()
    monkeypatch.setattr(sys, 'argv', ['make_pages.py', 'nothing'])
    with pytest.raises(SystemExit):
        tool.main()
    assert 'there is no nothing; the names are package, ' in capsys.readouterr().err


def test_a_page_that_is_not_in_step_ends_a_check_with_the_command(clone, monkeypatch, capsys):
    tool = load_tool('.dev_scripts/make_pages.py')
    page = write(clone / 'page.md', 'old\n')
    monkeypatch.setattr(sys, 'argv', ['make_pages.py', '--check', 'api'])
    monkeypatch.setattr(api, 'update', lambda made: made.write(page, 'new\n'))
    with pytest.raises(SystemExit, match='not in step; run python .dev_scripts/make_pages.py'):
        tool.main()
    assert page.read_text() == 'old\n' and 'page.md: 1 lines new' in capsys.readouterr().out


def test_an_attention_has_its_cost_and_a_new_one_is_in_the_last_table(monkeypatch):
    assert api.row(LinearAttention)[1:3] == ['NCd', '4C²']
    listed = [name for group in api.TABLES.values() for name in group]
    assert 'Linear' in listed and '`LinearAttention`' not in api.table('vision')
    assert '`LinearAttention`' in api.table('classic')
    monkeypatch.setitem(api.TABLES, 'classic', ())
    assert '`LinearAttention`' in api.table('vision')


def test_times_in_tables_are_those_of_the_log():
    table = '| backbone | 224², ms | MB, 512² | 2048² |\n|---|---:|---:|---|\n'
    unknown = '| b | 5 | 6 | 7 |\n'
    rows = '| **`a-tiny`** | 1 | 2 | not run |\n| Swin-T of mmpretrain | 3 | 4 | not run |\n'
    swin = 'mmpretrain:SwinTransformer-tiny'
    times, memory = {('a-tiny', 224): 1234.4, (swin, 224): 26.6}, {('a-tiny', 512): 8.2}
    assert choose.filled(table + rows + unknown, times, memory) == table + (
        '| **`a-tiny`** | 1,234 | 8 | not run |\n'
        '| Swin-T of mmpretrain | 27 | 4 | not run |\n' + unknown
    )


def test_no_attention_that_solves_the_tasks_and_costs_less_is_left_out():
    found, costs, _ = which_attention.read()
    table, newest = found['attentions'], which_attention.read_costs(which_attention.NEWEST)
    beside = which_attention.beside_linear(costs, newest)
    assert beside['MiTA'].keys() == beside['Linear'].keys() and 'MiTA' not in costs
    ratio = newest['MiTA']['ms 1024²'] / newest['Linear']['ms 1024²']
    assert beside['MiTA']['ms 1024²'] == ratio and set(beside['Linear'].values()) == {1}
    page = (ROOT / 'docs/which_attention.md').read_text()
    numbers = [which_attention.titles_of(table).index(title) for title in ('recall', 'one of many')]
    (row,) = [line for line in page.splitlines() if line.startswith('| recall; one of many |')]
    named = re.findall(r'(\w+)(?: with [^†(]+)?(†?) \(([\d.]+)', row)
    ratios = [float(ratio) for *_, ratio in named]
    assert ratios == sorted(ratios)
    for name in table.rows:
        if all((table.level(name, number) or 0) >= 0.9 for number in numbers):
            cost = beside.get(name, {}).get('ms 1024²', 1e9)
            plain = name.partition(',')[0]
            assert cost > max(ratios) + 1 or plain in {name for name, *_ in named}, name
            unsure = not all(table.solved_by_all(name, number, 0.9) for number in numbers)
            marks = [mark for each, mark, _ in named if each == plain]
            assert not marks or marks == ['†' * unsure]
