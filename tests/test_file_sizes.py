"""Files stay short enough to be read in one go."""

import subprocess

from conftest import ROOT

MOST_LINES = 400
# What has a stricter limit of its own.
LIMITS = {
    'mmlaplace/models/backbones/base.py': 150,
    'mmlaplace/models/attentions/agent.py': 90,
    'mmlaplace/models/attentions/flatten.py': 90,
    'mmlaplace/models/attentions/xca.py': 90,
}


def test_no_python_file_is_longer_than_its_limit():
    listed = subprocess.check_output(['git', 'ls-files', '*.py'], cwd=ROOT, text=True).split()
    lines = {name: len((ROOT / name).read_text().splitlines()) for name in listed
             if (ROOT / name).is_file()}  # fmt: skip
    assert {n: count for n, count in lines.items() if count > LIMITS.get(n, MOST_LINES)} == {}
