"""Docstrings tell the defaults that the code has, and name every argument."""

import ast
import importlib
import inspect
import pkgutil
import re

import pytest

import mmlaplace

SECTIONS = r'Args|Returns|Raises|Attributes|Source|Examples?|Note|Yields'


def public() -> dict:
    """Functions and classes of the library that a user can name, by their full name."""
    found = {}
    for module in pkgutil.walk_packages(mmlaplace.__path__, 'mmlaplace.'):
        if module.name.split('.')[-1].startswith('_C'):  # the compiled ops, no Python module
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
    entries = re.findall(
        r'^ {4}([\w*, ]+): (.*?)(?=^ {4}\S|\Z)', section[1] + '\n', re.MULTILINE | re.DOTALL
    )
    return {
        name.strip(): ' '.join(text.split()) for names, text in entries for name in names.split(',')
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


def test_there_is_something_to_compare():
    told = [stated(text) for value in DOCUMENTED.values() for text in arguments(value).values()]
    assert len(DOCUMENTED) > 30
    assert sum(map(bool, told)) > 60


@pytest.mark.parametrize('name', DOCUMENTED)
def test_defaults_are_those_that_are_told(name):
    told = arguments(DOCUMENTED[name])
    for argument, parameter in inspect.signature(DOCUMENTED[name]).parameters.items():
        default = parameter.default
        # None stands for what is worked out from the other arguments; the text says how.
        if default is inspect.Parameter.empty or default is None:
            continue
        if 'As in' not in told[argument]:
            assert stated(told[argument]) == [default], f'{argument}={default!r}: {told[argument]}'


@pytest.mark.parametrize('name', DOCUMENTED)
def test_every_argument_is_told(name):
    parameters = inspect.signature(DOCUMENTED[name]).parameters.values()
    has = {p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    missing = has - set(arguments(DOCUMENTED[name]))
    assert not missing, f'not told: {sorted(missing)}'
