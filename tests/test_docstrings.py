"""Docstrings tell the defaults that the code has and every argument, and their examples run."""

import ast
import doctest
import importlib.util
import inspect
import pkgutil
import re

import pytest
from conftest import registered
from mmengine.registry import MODELS

import mmlaplace
from mmlaplace import ops
from mmlaplace.models import BaseAttention, PyramidBackbone, layers

SECTIONS = r'Args|Returns|Raises|Attributes|Cost|Published|Source|Examples?|Note|Yields'

# What modules with these starts of names import, and the library does without.
NEEDS = {
    'mmlaplace.timm': 'timm',
    'mmlaplace.transformers': 'transformers',
    'mmlaplace.models.ssd': 'mmdet',
    'mmlaplace.models.det_preprocessor': 'mmdet',
    'mmlaplace.models.seg_preprocessor': 'mmseg',
}


def public() -> dict:
    """Functions and classes of the library that a user can name, by their full name."""
    found = {}
    for module in pkgutil.walk_packages(mmlaplace.__path__, 'mmlaplace.'):
        last = module.name.split('.')[-1]
        if last.startswith('_C') or last == '__main__':  # the compiled ops, and a program
            continue
        needs = [need for start, need in NEEDS.items() if module.name.startswith(start)]
        if not all(map(importlib.util.find_spec, needs)):
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            if name.startswith('_') or getattr(value, '__module__', None) != module.name:
                continue
            if inspect.isfunction(value) or inspect.isclass(value):
                found[f'{module.name}.{name}'] = value
    return found


def arguments(documented) -> dict:
    """What the section Args says of each name."""
    doc = inspect.getdoc(documented) or ''
    section = re.search(rf'^Args:\n(.*?)(?=^(?:{SECTIONS}):|\Z)', doc, re.MULTILINE | re.DOTALL)
    if section is None:
        return {}
    entry = re.compile(r'^ {4}([\w*, ]+): (.*?)(?=^ {4}\S|\Z)', re.MULTILINE | re.DOTALL)
    return {
        name.strip(): ' '.join(text.split())
        for names, text in entry.findall(section[1] + '\n')
        for name in names.split(',')
    }


# "Default: 3.", "``'auto'`` (default)" and "``'conv'`` (r x r, stride r, the default)".
FORMS = (
    r"Default: (``.*?``|'[^']*'|\([^)]*\)|[-\w.+]+?)(?=[.,;]?(?:\s|$))",
    r'(``[^`]*``) \((?:[^()]*, the )?default\b',
)


def stated(text: str) -> list:
    """The value that an argument's text gives as its default, if that is a literal."""
    for form in FORMS:
        match = re.search(form, text)
        if match is not None:
            try:
                return [ast.literal_eval(match[1].strip('`'))]
            except (ValueError, SyntaxError):
                continue  # words, such as "all" or "the one above"
    return []


DOCUMENTED = {
    name: value
    for name, value in public().items()
    if arguments(value) and not (inspect.isclass(value) and issubclass(value, tuple))
}


@pytest.mark.parametrize('name', DOCUMENTED)
def test_every_argument_is_told_with_its_default(name):
    told = arguments(DOCUMENTED[name])
    for argument, parameter in inspect.signature(DOCUMENTED[name]).parameters.items():
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            assert argument in told
        default = parameter.default
        # None stands for what is worked out from the other arguments; the text says how.
        if default in (parameter.empty, None) or 'As in' in told[argument]:
            continue
        assert stated(told[argument]) == [default], f'{argument}={default!r}: {told[argument]}'


# A user builds these, or calls them.
WITH_EXAMPLES = [
    *(MODELS.get(name) for base in (BaseAttention, PyramidBackbone) for name in registered(base)),
    *(getattr(layers, name) for name in layers.__all__),
    *(getattr(ops, name) for name in ops.__all__),
]


@pytest.mark.parametrize('documented', WITH_EXAMPLES, ids=lambda kind: kind.__name__)
def test_attentions_layers_backbones_and_ops_have_an_example(documented):
    assert 'Examples:' in vars(documented).get('__doc__', documented.__doc__)


@pytest.mark.parametrize('name', [n for n, v in public().items() if '>>> ' in (v.__doc__ or '')])
def test_an_example_gives_what_it_says(name):
    finder = doctest.DocTestFinder(recurse=False)
    (example,) = finder.find(public()[name], name, module=False, globs={})
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example)
    assert result.attempted and not result.failed
