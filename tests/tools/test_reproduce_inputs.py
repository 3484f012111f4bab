"""What tools/reproduce.py takes from outside: data, weights, GPUs and threads."""

import sys

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


def test_a_batch_that_only_the_name_of_a_config_tells_is_kept(tmp_path):
    def trainings(**changes):
        return plan(tmp_path, 'softpp_table_7/fcn-resnet-101', scale='full', **changes).trainings

    enough = trainings(launcher='pytorch', gpus=8)
    # mmseg's 4xb2 of Cityscapes and 4xb4 of ADE20K: four processes each.
    assert {job.cfg.filename.rpartition('_4xb')[2][0] for job in enough} == {'2', '4'}
    for job in enough:
        assert job.processes == 4 and not job.wrong_batch()
    for job in trainings():
        assert 'are for 4 processes, and it has 1' in job.wrong_batch()


def test_the_term_of_soft_is_not_asked_of_sequences(tmp_path):
    for scale in ('mini', 'full'):
        for job in plan(tmp_path, 'softpp_table_12/soft', scale=scale).trainings:
            assert job.cfg.model.backbone.type == 'SequenceEncoder' and not job.has_term()


def test_more_gpus_than_there_are_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(tool.torch.cuda, 'device_count', lambda: 4)
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
    arguments = ['softpp_table_9', '--launcher', 'pytorch', '--gpus', '8', '--dry-run']
    monkeypatch.setattr(sys, 'argv', ['reproduce.py', *arguments])
    with pytest.raises(SystemExit):
        tool.main()
    assert '--gpus 8 need more than the 4 GPUs here' in ' '.join(capsys.readouterr().err.split())


@pytest.mark.parametrize('out', ['report.md', 'report.png', 'report', 'folder.json'])
def test_a_report_is_no_file_that_the_next_would_replace(out, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'folder.json').mkdir()
    monkeypatch.setattr(sys, 'argv', ['reproduce.py', 'softpp_table_9', '--report', '--out', out])
    with pytest.raises(SystemExit):
        tool.main()
    said = ' '.join(capsys.readouterr().err.split())
    assert f'--out {out}: a file that ends with .json' in said


def test_processes_of_a_run_share_its_threads(tmp_path, monkeypatch):
    monkeypatch.delenv('OMP_NUM_THREADS', raising=False)
    settings = dict(scale='full', launcher='pytorch', gpus=8, threads=64)
    (job,) = plan(tmp_path, 'softpp_table_9/landmarks-49', **settings).trainings
    assert job.threads == job.place()['threads'] == '8'
