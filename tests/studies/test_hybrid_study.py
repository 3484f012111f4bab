"""The study of hybrids goes on where it was, and draws what its log has."""

import json

import pytest
from conftest import load_tool
from PIL import Image

SOFTMAX = dict(
    settings=dict(task='textures', variant='softmax', steps=1), score=dict(small=60.0, large=50.0)
)


def linear(seed, small, **changed):
    names = dict(task='textures', attention='FLattenAttention', variant='harm', keep=0, seed=seed)
    return dict(settings=dict(names, **changed), swapped=9.0, score=dict(small=small, large=1.0))


@pytest.fixture
def study():
    return load_tool('studies/study_hybrids.py')


def test_a_finished_run_is_not_repeated(study, tmp_path):
    log, settings = tmp_path / 'logs/hybrids.jsonl', linear(0, 58)['settings']
    for _ in range(2):
        runs = study.Study(log, tmp_path, tmp_path)
        runs.run(lambda **names: dict(score=dict(small=58.0, large=1.0)), **settings)
        assert len(log.read_text().splitlines()) == 1
    log.write_text(log.read_text()[:-9])  # killed while it wrote
    with pytest.warns(UserWarning, match='line 1 of .* is repeated'):
        runs = study.Study(log, tmp_path, tmp_path)
    found = runs.run(lambda **names: dict(score=names), **settings)
    assert found['score'] == settings


def test_the_table_and_the_picture_have_what_the_log_has(study, tmp_path):
    results = [SOFTMAX, linear(0, 58.0), linear(1, 56.0), linear(0, 55.0, variant='new FFNs')]
    times = {'small': {'64': {'softmax': 4.0, 'FLattenAttention 0': 1.0}}, 'machine': {'CPU': 'a'}}
    assert study.share_of_time(times, 'FLattenAttention', 3) == pytest.approx(0.625)  # half way
    lines = study.table(results, times).splitlines()
    for line in (
        '| softmax | 60.0; 50.0 |',
        '| FLatten, 0 kept | 57.0 ± 12.7; 1.0 ± 0.0 (2 of 3 seeds) |',
        '| FLatten, 0 kept, new FFNs | 55.0; 1.0 (1 of 3 seeds) |',
        '| Agent, 0 kept | not run |',
    ):
        assert f'{line} not run | not run | not run |' in lines
    assert '| small, 64² | 4.00 s | 0.25 |' in lines
    study.draw(results, times, tmp_path / 'hybrids.png')
    with Image.open(tmp_path / 'hybrids.png') as picture:
        assert picture.width <= 900


def test_hybrids_are_timed(study, tmp_path, monkeypatch):
    monkeypatch.setattr(study, 'TIMED', {'small': (study.TIMED['small'][0], (32,))})
    study.time_all(tmp_path / 'times.json')
    seconds = json.loads((tmp_path / 'times.json').read_text())['small']['32']
    assert {'softmax', 'FLattenAttention 2', 'AgentAttention 0'} <= set(seconds)
    assert all(value > 0 for value in seconds.values())
