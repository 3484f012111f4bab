"""docs/formulas.md: what each attention computes, from its docstring."""

import inspect
import re

from mmlaplace.models import BaseAttention

from .files import ROOT, Files
from .options import papers, registered

PAGE = ROOT / 'docs/formulas.md'
HEAD = """# Formulas of all attentions

For people who compare attentions on paper. Each text is from the class's docstring. Its options
are in [a list](options.md). The layers around a formula, such as linears and a convolution of V,
are those of the [frame](options.md). [Maths](maths.md) derives the ones of
LaplacianFormer, SOFT and PolaFormer.

<!-- This page is made by .dev_scripts/make_pages.py. -->
"""


def update(files: Files) -> None:
    attentions = registered(BaseAttention)
    files.write(PAGE, '\n'.join([HEAD, *map(entry, attentions)]))


def entry(cls: type) -> str:
    """The heading, the formula and the source of an attention."""
    return f'## {cls.__name__}\n\n{markdown(description(cls))}\n\nSource: {papers(cls)}.\n'


def description(cls: type) -> str:
    """A docstring up to its first section."""
    doc = inspect.cleandoc(cls.__doc__ or '')
    return re.split(
        r'^(?:Args|Attributes|Cost|Published|Source|Examples|Raises):', doc, flags=re.M
    )[0].strip()


def markdown(text: str) -> str:
    """reStructuredText as Markdown: formulas between dollars, and names in code."""
    # A formula may begin behind the directive, or on a line below it.
    blocks = re.split(r'^\.\. math::(.*\n(?:[ \t]+.*\n?|\n)*)', text + '\n', flags=re.M)
    parts = []
    for number, block in enumerate(blocks):
        if number % 2:
            formulas = re.split(r'\n\s*\n', inspect.cleandoc(block).strip())
            parts += [f'$$\n{aligned(formula)}\n$$' for formula in formulas]
            continue
        block = re.sub(r':math:`([^`]*)`', lambda found: f'${" ".join(found[1].split())}$', block)
        block = re.sub(r':\w+:`~?(?:[\w.]*\.)?(\w+)`', r'`\1`', block)
        parts.append(block.replace('``', '`').strip())
    return '\n\n'.join(part for part in parts if part)


def aligned(formula: str) -> str:
    """A formula of several lines, as Sphinx takes it, with the environment that others need."""
    several = '\\\\' in formula and '\\begin' not in formula
    return f'\\begin{{aligned}}\n{formula}\n\\end{{aligned}}' if several else formula
