"""The tables of models are those of the metafiles."""

import sys

from conftest import load_tool


def test_all_files_are_in_step(monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['make_model_zoo.py', '--check'])
    load_tool('.dev_scripts/make_model_zoo.py').main()
    assert 'in step' in capsys.readouterr().out
