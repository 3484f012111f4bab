"""tools/reproduce.py and its modules, for the tests of it."""

import sys
from unittest import mock

from conftest import ROOT, load_tool

with mock.patch.object(sys, 'path', [str(ROOT / 'tools'), *sys.path]):
    tool = load_tool('tools/reproduce.py')
    from reproduction import files, jobs, paper_tables, report

__all__ = ['files', 'jobs', 'paper_tables', 'report', 'tool']
