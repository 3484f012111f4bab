"""The studies can be imported where nothing draws."""

import json

from conftest import run_python

CODE = """
import importlib, json, pkgutil, sys
import mmlaplace.lab
names = [m.name for m in pkgutil.walk_packages(mmlaplace.lab.__path__, 'mmlaplace.lab.')]
heavy = {}
for name in names:
    importlib.import_module(name)
    found = {'matplotlib', 'pandas'} & set(sys.modules)
    if found and not heavy:
        heavy[name] = sorted(found)
print(json.dumps([len(names), heavy]))
"""


def test_no_module_imports_matplotlib_or_pandas():
    result = run_python('-c', CODE)
    assert result.returncode == 0, result.stderr
    number, heavy = json.loads(result.stdout)
    assert number > 30 and heavy == {}
