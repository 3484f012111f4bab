"""Files stay short enough to be read in one go."""

import subprocess

import pytest
from conftest import ROOT

MOST_LINES = 400
# What has a stricter limit of its own.
LIMITS = {
    'mmlaplace/models/backbones/base.py': 150,
    'mmlaplace/models/attentions/agent.py': 90,
    'mmlaplace/models/attentions/flatten.py': 90,
    'mmlaplace/models/attentions/xca.py': 90,
}
FILES = subprocess.run(
    ['git', 'ls-files', '*.py'], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.split()


def test_limits_are_for_files_that_there_are():
    assert set(LIMITS) <= set(FILES)


@pytest.mark.parametrize('limit', sorted({MOST_LINES, *LIMITS.values()}))
def test_no_python_file_is_longer_than_its_limit(limit):
    lines = {
        name: len((ROOT / name).read_text().splitlines())
        for name in FILES
        if (ROOT / name).is_file() and LIMITS.get(name, MOST_LINES) == limit
    }
    assert {name: count for name, count in lines.items() if count > limit} == {}
