"""The comparison of linearized classifiers: its steps, what fails, and its report."""

import json
from argparse import Namespace
from pathlib import Path
from unittest import mock

import pytest
import torch
from conftest import load_tool, toolbox_model

from mmlaplace.lab.side_by_side import linearizing_report, linearizing_study


def test_a_short_training_has_a_point_for_each_quarter_too(monkeypatch):
    monkeypatch.setattr(linearizing_study, 'top1', mock.Mock(side_effect=range(99)))
    for steps in (3, 148, 152, 400):
        curve = linearizing_study.Curve(torch.nn.Identity(), None, steps)
        for step in (*range(50, steps, 50), steps):  # where the loop saves
            curve(dict(step=step, seconds=float(step)))
        seconds = [point[0] for point in curve.points]
        assert len(seconds) == 4 and seconds == sorted(seconds)


@pytest.mark.parametrize('seconds', [(9.0, 9.0, 0.1), (0.1, 9.0, 0.1), (1.0, 1.0, 1.0)])
def test_each_phase_of_a_distillation_has_a_step_on_a_slow_machine(monkeypatch, seconds):
    monkeypatch.setattr(linearizing_study, 'seconds_a_step', lambda trainings: seconds)
    assert min(linearizing_study.steps_of(2, None, None, None, None)) >= 1
    assert linearizing_study.steps_of(100, None, None, None, None) == (
        max(1, round(25 * seconds[2] / seconds[0])), max(1, round(75 * seconds[2] / seconds[1]))
    )  # fmt: skip


def test_an_attention_that_fails_leaves_the_others_their_results(tmp_path, monkeypatch):
    tool = load_tool('tools/analysis_tools/compare_linearized.py')

    def run(attention, *_):
        if attention == 'PolaAttention':
            raise FloatingPointError('the loss is nan')
        return dict(settings=dict(attention=attention), top1={})

    monkeypatch.setattr(linearizing_study, 'run', run)
    monkeypatch.setattr(tool, 'teacher_of', lambda *_: Path(__file__))
    names = ['LinearAttention', 'PolaAttention', 'XCAttention']
    args = Namespace(minutes=1, seeds=[0], attentions=names, work_dir=tmp_path, epochs=2,
                     classifiers=tmp_path, data_root=tmp_path)  # fmt: skip
    (failure,) = tool.run_all(None, args)
    assert failure == 'PolaAttention, seed 0: FloatingPointError: the loss is nan'
    found = json.loads((tmp_path / 'results.json').read_text())['results']
    assert [one['settings']['attention'] for one in found] == names[::2]


@pytest.mark.training
def test_the_study_has_five_accuracies_and_a_report(fashion_files, tmp_path):
    fashion_files(tmp_path / 'data/fashion')
    softmax = linearizing_study.candidates()['SoftmaxAttention']
    old = toolbox_model(linearizing_study.study_cfg(softmax, tmp_path / 'data'))
    torch.save(old.state_dict(), tmp_path / 'softmax.pth')
    found = [
        linearizing_study.run('PolaAttention', seed, 2, tmp_path / 'softmax.pth', tmp_path / 'data')
        for seed in (0, 1)
    ]
    assert set(found[0]['top1']) == set(linearizing_study.COLUMNS)
    assert min(found[0]['steps'].values()) > 0
    for kind in ('distilled', 'scratch'):
        seconds, accuracies = zip(*found[0]['points'][kind])
        assert list(seconds) == sorted(seconds) and accuracies[-1] == found[0]['top1'][kind]
    assert found[0]['points']['distilled'][0] == (0.0, found[0]['top1']['swapped'])
    text, picture = linearizing_report.write_report(found, tmp_path / 'report')
    assert '| Pola |' in text.read_text() and picture.stat().st_size > 1000
