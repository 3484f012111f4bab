"""studies/reproduce.py: plans, input from outside, the order of jobs, failures, a killed call."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, fast_with, output_of, refusal_of
from processes import wait_until
from reproduce_modules import (
    jobs,
    launching,
    paper_tables,
    plan,
    running,
    settings,
    tool,
    trained,
)
from rich.console import Console

TOOL = ROOT / 'studies/reproduce.py'
LIMITED = (  # so few images that an epoch takes a second
    'train_dataloader.dataset.indices=64',
    'val_dataloader.dataset.indices=32',
    'test_dataloader.dataset.indices=32',
    'train_dataloader.num_workers=0',
    'train_dataloader.persistent_workers=False',
    'train_cfg.max_epochs=4',
)
# Of the table with the fastest names; the classifier that softpp_table_6 and others start from.
NAMED, SMALL = 'softpp_table_9/landmarks-49', 'softpp_table_3/softpp-small'


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (
            'softpp_tabel_1',
            r"softpp_tabel_1' \(did you mean 'softpp_table_1'\?\); there are: .*softpp",
        ),
        ('softpp_table_9 49', "no row '49'; its rows are: landmarks-36, landmarks-49"),
        ('softpp_table_9', 'landmarks-36: its batch size and learning rate are for 8 processes'),
        (
            'softpp_table_9 landmarks-49 --scale mini',
            '_datasets.py --tasks classification makes it',
        ),
        ('softpp_table_9 --report --out report.md', r'--out report\.md: .*\.json'),
    ],
)
def test_bad_input_is_quoted(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert re.search(message, ' '.join(refusal_of(TOOL, *arguments.split()).split()))


@pytest.mark.parametrize('name', fast_with(paper_tables.table_files(), 'laplacianformer_bandwidth'))
def test_dry_run_says_what_each_row_would_do(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = output_of(TOOL, name, '--dry-run')
    assert all(row.name in printed for row in paper_tables.read_table(name).rows)
    output_of(TOOL, name, '--scale', 'mini', '--dry-run')
    assert not list(tmp_path.iterdir())


def test_rows_with_the_same_config_share_a_run_and_changes_of_it_do_not(tmp_path):
    same = 'softpp_table_2/softpp', 'softpp_table_11/softpp-overlapped'
    made = plan(tmp_path, *same, seeds=(0, 1))
    runs = {key for _, runs in made.rows for _, keys, _ in runs for key in keys.values()}
    assert len(runs) == 2  # of two seeds
    changed = plan(tmp_path, same[0], options={'optim_wrapper.optimizer.lr': 2e-3})
    assert not runs & set(changed.jobs)


def test_the_classifier_of_a_detector_comes_first_and_hands_on_its_weights(tmp_path):
    name, source = 'laplacianformer_coco/retinanet-tiny', 'laplacianformer_imagenet/tiny'
    classifier, detector = list(plan(tmp_path, name).jobs.values())[:2]
    assert classifier.label == source and detector.needs == {source: classifier}
    classifier.folder.mkdir(parents=True)
    (classifier.folder / 'result.json').write_text('{"checkpoint": "epoch_11.pth"}')
    assert detector.source() == 'epoch_11.pth'
    (detector,) = plan(tmp_path, name, weights={source: Path('mine.pth')}).trainings
    assert detector.source() == 'mine.pth' and not detector.needs


def test_given_weights_of_a_row_are_tested_and_not_trained(tmp_path):
    (row,) = plan(tmp_path, SMALL, weights={SMALL: Path('mine.pth')}).trainings
    assert len(row.commands()) == 1 and row.source() == 'mine.pth'
    larger = plan(tmp_path, 'softpp_table_6/softpp-384', weights={SMALL: Path('mine.pth')})
    at_224, at_384 = larger.trainings
    assert at_224.source() == 'mine.pth' and not at_224.trains and not at_384.trains


def test_a_batch_that_does_not_fit_the_learning_rate_is_refused(tmp_path):
    name = 'softpp_table_3/softpp-tiny'

    def wrong(launcher='pytorch', **changes):
        made = plan(tmp_path, name, scale='full', launcher=launcher, **changes)
        return [job.wrong_batch() for job in made.trainings]

    assert 'are for 8 processes, but it has 1' in wrong('none')[0]
    assert wrong(gpus=8) == ['']
    assert wrong(gpus=2, options={'optim_wrapper.accumulative_counts': 4}) == ['']
    assert wrong('none', options={'auto_scale_lr.enable': True}) == ['']
    assert wrong('none', weights={name: Path('mine.pth')}) == ['']  # no training


def test_the_best_checkpoint_is_tested_where_a_table_says_so(tmp_path):
    best_of, last_of = plan(tmp_path, 'polaformer_a4/zeros', NAMED).trainings
    for job in (best_of, last_of):
        (job.folder / 'train').mkdir(parents=True)
        (job.folder / 'train/last_checkpoint').write_text('iter_500.pth')
    with pytest.raises(jobs.JobFailed, match='no best_'):
        best_of.trained_checkpoint()
    best = best_of.folder / 'train/best_accuracy_top1_iter_1000.pth'
    for hour, path in enumerate((best, best.with_name('best_accuracy_top1_iter_200.pth'))):
        path.write_text('')
        os.utime(path, (3600 * hour, 3600 * hour))  # a copy of a folder may have any times
    assert best_of.trained_checkpoint() == str(best)
    assert last_of.trained_checkpoint() == 'iter_500.pth'


def test_launchers_start_the_scripts_of_this_project(tmp_path):
    def commands(**changes):
        made = plan(tmp_path, NAMED, scale='full', **changes)
        return next(iter(made.jobs.values())).commands()

    train, test = commands(launcher='pytorch', gpus=4)
    assert train[1].endswith('dist_train.sh') and train[3] == '4'
    assert test[1].endswith('dist_test.sh') and test[4] == '4'
    train, test = commands(gpus=8, launcher='slurm', partition='gpu')
    assert train[1].endswith('slurm_train.sh') and train[2] == 'gpu'
    assert test[:3] == ['srun', '--partition', 'gpu']


def test_missing_data_stops_only_the_runs_that_need_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = plan(tmp_path, 'polaformer_table_4/polaformer-alpha-3', scale='full')
    data = {job.missing_data().partition(' ')[0]: job for job in made.trainings}
    (folder,) = (folder for folder in data if 'listops' in folder)
    made_by = '--tasks listops makes it'
    assert made_by in data[folder].missing_data() and folder in tool.why_not_now(made)
    for other in data.keys() - {folder}:
        (tmp_path / other).mkdir(parents=True)
    assert tool.why_not_now(made) == ''
    with pytest.raises(jobs.JobFailed, match=f'{folder} is missing; .*{made_by}'):
        data[folder].run()


def call(cwd, *arguments) -> subprocess.Popen:
    command = [sys.executable, TOOL, 'softpp_table_6', 'softpp-224', 'softpp-384', *arguments]
    return subprocess.Popen(
        [*map(str, command), '--scale', 'mini', '--cfg-options', *LIMITED],
        cwd=cwd,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


@pytest.mark.thorough
@pytest.mark.training
def test_a_killed_call_goes_on_where_it_was_and_reports(mini_data, tmp_path):
    (tmp_path / 'data').mkdir()
    (tmp_path / 'data/mini').symlink_to(mini_data)
    first, runs = call(tmp_path), tmp_path / 'work_dirs/reproduce/runs'
    wait_until(lambda: list(runs.glob('*/train/epoch_2.pth')), [first])
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    refused = ' '.join(call(tmp_path).communicate()[0].split())
    assert 'is there already; --resume continues it' in refused
    output = call(tmp_path, '--resume').communicate()[0]
    _, after = sorted(runs.glob('*/train/*/vis_data/scalars.json'))
    epochs = [json.loads(line).get('epoch', 9) for line in after.read_text().splitlines()]
    # The last epoch of the killed run may have been cut off, and none before it is repeated.
    assert min(epochs) >= 2
    content = json.loads((runs.parent / 'softpp_table_6-mini.json').read_text())
    assert [row['name'] for row in content['rows']] == ['softpp-224', 'softpp-384']
    assert all((tmp_path / row['runs'][0]['logs']['0']).is_file() for row in content['rows'])
    assert '| SOFT++ 384² | own | top-1, % | 82.6 |' in output


class Command(jobs.Job):
    """A job that runs Python code."""

    kind = 'commands'

    def carry_out(self, lock):
        self.call([sys.executable, '-c', self.identity], 'command.log', lock)
        return dict(done=True)


def test_a_failure_has_the_end_of_its_log(tmp_path, monkeypatch):
    monkeypatch.setattr(launching, 'LOOK', 0.01)
    made = tool.Plan([], [0], settings(tmp_path))
    code = "print('first'); [print(i) for i in range(40)]; raise SystemExit('the reason')"
    made.add(Command('bad', settings(tmp_path), code))
    made.add(Command('good', settings(tmp_path), 'print(1)'))
    bad, good = running.run_all(made.jobs, 2, [], Console(quiet=True)).values()
    assert bad.startswith(f'{sys.executable} -c') and 'status 1' in bad
    assert bad.endswith('the reason') and '\nfirst\n' not in bad
    assert good['done'] is True


def test_finished_runs_are_kept_a_line_each_and_reported_from_there(tmp_path):
    """Keeping twice replaces a line. The report of the kept lines is that of the folders."""
    name, kept = 'polaformer_a4/zeros', tmp_path / 'kept'
    (job,) = plan(tmp_path / 'runs', name).jobs.values()
    log = job.folder / 'train/1/vis_data/scalars.json'
    log.parent.mkdir(parents=True)
    log.write_text('{"loss": 2.0}\n{"loss": 1.0}\n')
    result = dict(trained(**{'accuracy/top1': 40.0}), seed=0, label=name)
    (job.folder / 'result.json').write_text(json.dumps(result))
    call = (*name.split('/'), '--scale', 'mini', '--report')
    options = ('--work-dir', tmp_path / 'runs', '--keep', kept)
    for _ in range(2):
        output_of(TOOL, *call, *options, '--out', tmp_path / 'one.json')
    (line,) = map(json.loads, (kept / 'runs.jsonl').read_text().splitlines())
    assert line['job'] == job.folder.name and line['result']['log'] == str(kept / 'runs.jsonl')
    assert [step['loss'] for step in line['training']] == [2.0, 1.0]
    (report,) = map(json.loads, (kept / 'reports.jsonl').read_text().splitlines())
    assert report == json.loads((tmp_path / 'one.json').read_text())
    output_of(TOOL, *call, '--work-dir', kept, '--out', tmp_path / 'two.json')
    (row,) = json.loads((tmp_path / 'two.json').read_text())['rows']
    assert row['runs'][0]['metrics'] == report['rows'][0]['runs'][0]['metrics']
    assert row['runs'][0]['metrics']['top-1']['mean'] == 40.0


@pytest.mark.slow
@pytest.mark.parametrize('name', ['polaformer_a4', 'softpp_table_10'])
def test_the_logs_have_the_runs_of_the_configs_as_they_are(name, tmp_path, monkeypatch):
    """A run is found by all options of its config, so a config that changes loses it."""
    monkeypatch.chdir(ROOT)
    logs = ROOT / 'docs/logs/reproduce'
    options = ('--scale', 'mini', '--report', '--work-dir', logs, '--out', tmp_path / 'a.json')
    output_of(TOOL, name, *options)
    made = json.loads((tmp_path / 'a.json').read_text())
    reports = map(json.loads, (logs / 'reports.jsonl').read_text().splitlines())
    (report,) = (report for report in reports if report['table'] == name)
    for new, old in zip(made['rows'], report['rows']):
        for now, then in zip(new['runs'], old['runs']):
            assert now['config'] == then['config']
            assert now['config_hashes'] == then['config_hashes']
            assert now['metrics']['top-1'] == then['metrics']['top-1']
