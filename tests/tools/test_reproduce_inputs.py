"""What tools/reproduce.py takes from outside: data that may be missing, and given weights."""

import pytest
from reproduce_modules import jobs, plan, tool


@pytest.mark.parametrize(
    ('name', 'task', 'made_by'),
    [
        ('polaformer_table_4/polaformer-alpha-3', 'text', 'convert_lra.py text makes it'),
        ('polaformer_table_4/polaformer-alpha-3', 'listops', '--tasks listops makes it'),
        ('softpp_table_7/upernet-softpp-small', 'cityscapes', 'docs/train_it_yourself.md tells'),
    ],
)
def test_missing_data_stops_only_the_runs_that_need_it(name, task, made_by, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = plan(tmp_path, name, scale='full', options={'auto_scale_lr.enable': True})
    data = {job.missing_data().partition(' ')[0]: job for job in made.trainings}
    (folder,) = (folder for folder in data if task in folder)
    assert made_by in data[folder].missing_data() and folder in tool.why_not_now(made)
    for other in data.keys() - {folder}:
        (tmp_path / other).mkdir(parents=True)
    assert tool.why_not_now(made) == ''
    with pytest.raises(jobs.JobFailed, match=f'{folder} is missing; .*{made_by}'):
        data[folder].run()


def test_weights_that_were_written_again_are_tested_again(tmp_path):
    file, name = tmp_path / 'mine.pth', 'softpp_table_3/softpp-small'
    keys = set()
    for content in ('a', 'longer'):
        file.write_text(content)
        keys |= {job.key for job in plan(tmp_path, name, weights={name: file}).trainings}
    assert len(keys) == 2
