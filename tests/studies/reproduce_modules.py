"""studies/reproduce.py and its modules, for the tests of it."""

from conftest import load_tool
from reproduction import jobs, launching, paper_tables, report, running  # noqa: F401

tool = load_tool('studies/reproduce.py')


def settings(tmp_path, **changes) -> launching.Settings:
    return launching.Settings(**{'work_dir': tmp_path, 'scale': 'mini', **changes})


def plan(tmp_path, *names, seeds=(0,), **changes) -> tool.Plan:
    rows = [paper_tables.find_row(name) for name in names]
    return tool.Plan(rows, list(seeds), settings(tmp_path, **changes))


def trained(**scores) -> dict:
    return dict(scores=scores, config_hash='abc', log='/runs/test/1.json', seconds=1.0)
