"""Old import paths of 0.1 still work, and say where the module is now."""

import importlib
import sys

import pytest

from mmlaplace._moved import MOVED


@pytest.mark.parametrize('old', MOVED)
def test_an_old_path_gives_the_module_of_today_and_names_it(old):
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f'{MOVED[old]} now') as caught:
        module = importlib.import_module(old)
    assert caught
    new = importlib.import_module(MOVED[old])
    for name, value in vars(new).items():
        assert name.startswith('__') or getattr(module, name) is value


def test_another_name_in_the_old_package_is_not_found():
    with pytest.raises(ModuleNotFoundError, match='mmlaplace.utils.nothing'):
        importlib.import_module('mmlaplace.utils.nothing')
