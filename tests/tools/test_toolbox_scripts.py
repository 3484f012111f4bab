"""What the scripts of the toolboxes leave behind when they are done."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from mmlaplace.commands.toolbox_scripts import end_process_groups

before = os.listdir('/proc/self/task')
dist.init_process_group('gloo', init_method='file://{store}', rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Linear(2, 2))
model.itself = [model]  # as runners are parts of cycles
del model
assert os.listdir('/proc/self/task') != before
end_process_groups()
assert not dist.is_initialized()
assert os.listdir('/proc/self/task') == before
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir('/proc/self/task'), reason='nothing here lists threads')
def test_process_groups_end_with_their_threads(tmp_path):
    """A thread of gloo that is left to the end of Python may abort a run that is done."""
    script = SCRIPT.format(store=tmp_path / 'store')
    result = subprocess.run([sys.executable, '-c', script], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
