"""The studies can be imported where nothing draws."""

from conftest import run_python

CODE = """
import importlib, pkgutil, sys
import mmlaplace.lab
for module in pkgutil.walk_packages(mmlaplace.lab.__path__, 'mmlaplace.lab.'):
    importlib.import_module(module.name)
    assert not {'matplotlib', 'pandas'} & set(sys.modules), module.name
assert 'mmlaplace.lab.runner' in sys.modules
"""


def test_no_module_imports_matplotlib_or_pandas():
    result = run_python('-c', CODE)
    assert result.returncode == 0, result.stderr
