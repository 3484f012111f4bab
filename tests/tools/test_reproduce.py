"""tools/reproduce.py: plans, runs that are killed and go on, failures, and reports."""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest import ROOT, run_script
from mmengine.config import Config
from reproduce_modules import files, jobs, paper_tables, report, tool
from rich.console import Console

TOOL = ROOT / 'tools/reproduce.py'
LIMITED = (  # so few images that an epoch takes a second
    'train_dataloader.dataset.indices=64', 'val_dataloader.dataset.indices=32',
    'test_dataloader.dataset.indices=32', 'train_dataloader.num_workers=0',
    'train_dataloader.persistent_workers=False', 'train_cfg.max_epochs=4',
)  # fmt: skip


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch):
    monkeypatch.setattr(tool, 'LOOK', 0.01)
    monkeypatch.setattr(jobs, 'LOOK', 0.01)


def settings(tmp_path, **changes) -> jobs.Settings:
    return jobs.Settings(**{'work_dir': tmp_path, 'scale': 'mini', **changes})


def plan(tmp_path, *names, seeds=(0,), **changes) -> 'tool.Plan':
    rows = [paper_tables.find_row(name) for name in names]
    return tool.Plan(rows, list(seeds), settings(tmp_path, **changes))


@pytest.mark.slow
def test_tables_and_rows_are_listed():
    listed = run_script(TOOL, '--list').stdout
    assert all(name in listed for name in paper_tables.table_names())
    rows = run_script(TOOL, '--list', 'polaformer_table_6').stdout
    assert 'this attention is' in rows  # not among those of this project


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ((), 'name a table; --list prints those there are'),
        (('softpp',), "there is no table 'softpp'; there are: .*softpp_table_1"),
        (('softpp_table_9', '49'), "no row '49'; its rows are: landmarks-36, landmarks-49"),
        (('softpp_table_9', '--launcher', 'slurm'), 'slurm needs --partition'),
        (('softpp_table_9', '--jobs', '0'), r'--gpus \(1\) and --jobs \(0\) must be at least 1'),
        (('softpp_table_9', '--weights', 'a=b'), "takes TABLE/ROW=FILE with a file, got 'a=b'"),
        (('softpp_table_9', '--scale', 'tiny'), "invalid choice: 'tiny'"),
    ],
)
def test_bad_input_is_quoted(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run_script(TOOL, *arguments)
    assert result.returncode == 2
    assert re.search(message, ' '.join(result.stderr.split()))


def test_missing_small_data_names_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run_script(TOOL, 'softpp_table_9', 'landmarks-49', '--scale', 'mini')
    assert result.returncode == 2
    assert 'python tools/dataset_converters/make_mini_datasets.py makes it' in result.stderr


@pytest.mark.parametrize(
    'name',
    [
        pytest.param(n, marks=[] if n == 'laplacianformer_bandwidth' else pytest.mark.slow)
        for n in paper_tables.table_names()
    ],
)
def test_dry_run_says_what_each_row_would_do(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = paper_tables.read_table(name)
    for scale in paper_tables.SCALES:
        result = run_script(TOOL, name, '--scale', scale, '--dry-run')
        assert result.returncode == 0, result.stderr
        for row in table.rows:
            if not row.covered or any(run.spec(scale) for run in row.runs):
                assert row.name in result.stdout or scale == 'mini'
        assert not list(tmp_path.iterdir())


def test_rows_with_the_same_config_share_a_run(tmp_path):
    made = plan(
        tmp_path, 'softpp_table_2/softpp', 'softpp_table_11/softpp-overlapped', seeds=(0, 1)
    )
    runs = {key for _, runs in made.rows for _, keys, _ in runs for key in keys.values()}
    assert len(runs) == 2  # of two seeds
    changed = plan(tmp_path, 'softpp_table_2/softpp', options={'optim_wrapper.optimizer.lr': 2e-3})
    assert not runs & set(changed.jobs)


def test_the_classifier_of_a_detector_comes_first_and_hands_on_its_weights(tmp_path):
    made = plan(tmp_path, 'laplacianformer_coco/retinanet-tiny')
    classifier, detector = list(made.jobs.values())[:2]
    assert classifier.label == 'laplacianformer_imagenet/tiny'
    assert detector.needs == {'laplacianformer_imagenet/tiny': classifier}
    classifier.folder.mkdir(parents=True)
    (classifier.folder / 'result.json').write_text('{"checkpoint": "epoch_11.pth"}')
    assert detector.source() == 'epoch_11.pth'
    given = plan(
        tmp_path, 'laplacianformer_coco/retinanet-tiny',
        weights={'laplacianformer_imagenet/tiny': Path('mine.pth')},
    )  # fmt: skip
    (detector,) = (job for job in given.jobs.values() if isinstance(job, jobs.Training))
    assert detector.source() == 'mine.pth' and not detector.needs


def test_a_figure_gets_configs_results_and_images_of_its_scale(tmp_path):
    for scale, folder in (('full', 'data/imagenet/val'), ('mini', 'data/mini/classification/val')):
        made = plan(tmp_path, 'softpp_figures/figure-5', 'softpp_figures/figure-1a', scale=scale)
        drawings = [job for job in made.jobs.values() if isinstance(job, jobs.Drawing)]
        (newton,), (parameters,) = (job.commands() for job in drawings)
        (model,) = drawings[0].needs.values()
        assert newton[2:6] == ['softpp-5', '--model', str(model.config), 'CHECKPOINT']
        assert newton[newton.index('--images') + 1 :][:2] == ['classification', folder]
        twin = next(iter(drawings[1].needs.values()))
        assert parameters[3:6] == ['--run', str(twin.config), str(twin.folder / 'result.json')]


def test_a_row_of_soft_is_looked_into_after_its_test(tmp_path):
    made = plan(tmp_path, 'softpp_table_2/soft', 'softpp_table_2/transformer')
    trainings = [job for job in made.jobs.values() if isinstance(job, jobs.Training)]
    assert [job.cfg.model.backbone.type for job in trainings] == ['SOFT', 'SOFTPlusPlus']
    assert all(job.has_term() for job in trainings)
    command = trainings[0].term_command('epoch_11.pth')
    assert command[3:6] == ['--attention-term', '--checkpoint', 'epoch_11.pth']
    other = next(iter(plan(tmp_path, 'laplacianformer_imagenet/tiny').jobs.values()))
    assert not other.has_term()


def test_launchers_start_the_scripts_of_this_project(tmp_path):
    def commands(**changes):
        job = next(iter(plan(tmp_path, 'softpp_table_9/landmarks-49', **changes).jobs.values()))
        return job.commands()

    train, test = commands()
    assert train[1].endswith('tools/train.py') and test[1].endswith('tools/test.py')
    train, test = commands(launcher='pytorch', gpus=4)
    assert train[1].endswith('dist_train.sh') and train[3] == '4'
    assert test[1].endswith('dist_test.sh') and test[4] == '4'
    train, test = commands(launcher='slurm', gpus=8, partition='gpu')
    assert train[1].endswith('slurm_train.sh') and train[2] == 'gpu'
    assert test[:3] == ['srun', '--partition', 'gpu']


class Command(jobs.Job):
    """A job that runs Python code."""

    kind = 'commands'

    def commands(self):
        return [[sys.executable, '-c', self.identity]]

    def work(self, lock):
        self.call(self.commands()[0], 'command.log', lock)
        return dict(done=True)


def planned(*made) -> 'tool.Plan':
    whole = tool.Plan([], [0], settings(Path()))
    for job in made:
        whole.add(job)
    return whole


def test_a_failure_has_the_end_of_its_log_and_stops_only_what_needs_it(tmp_path):
    here = settings(tmp_path)
    code = "print('first'); [print(i) for i in range(40)]; raise SystemExit('the reason')"
    bad = Command('bad', here, code)
    after = Command('after', here, 'pass', {'bad': bad})
    good = Command('good', here, 'print(1)')
    whole = planned(bad, after, good)
    outcomes = tool.run_all(whole, 2, [], Console(quiet=True))
    found = {whole.jobs[key].label: outcome for key, outcome in outcomes.items()}
    assert found['good']['done'] is True
    assert found['bad'].startswith(f'{sys.executable} -c') and 'status 1' in found['bad']
    assert found['bad'].endswith('the reason') and '\nfirst\n' not in found['bad']
    assert found['after'] == 'it needs bad, which failed'


def test_what_is_finished_is_not_repeated_and_what_failed_is(tmp_path):
    marks = tmp_path / 'marks'
    code = f"open({str(marks)!r}, 'a').write('x')"
    for _ in range(2):
        tool.run_all(planned(Command('a', settings(tmp_path), code)), 1, [], Console(quiet=True))
    assert marks.read_text() == 'x'
    failing = code + '; raise SystemExit(1)'
    for _ in range(2):
        tool.run_all(planned(Command('b', settings(tmp_path), failing)), 1, [], Console(quiet=True))
    assert marks.read_text() == 'xxx'


def test_a_report_of_what_is_finished_says_that_the_rest_was_not_run(tmp_path):
    table = paper_tables.read_table('laplacianformer_bandwidth')
    made = plan(tmp_path, *(f'{table.name}/{row}' for row in ('lambda-4', 'lambda-8')))
    done = next(iter(made.jobs.values()))
    done.folder.mkdir(parents=True)
    (done.folder / 'result.json').write_text(json.dumps(trained(**{'accuracy/top1': 80.0})))
    about = dict(scale='mini', seeds=[0], call='x', versions={}, machine={})
    whole = tool.make_report(table, made, tool.finished(made), about)
    text = report.markdown(whole, tmp_path)
    assert '| λ=4 | own | top-1, % | 81.4 | 80, of the twin |' in text
    assert '| λ=8 | own | top-1, % | 78.5 | not run |' in text


def test_a_job_waits_for_a_process_that_still_works_in_its_folder(tmp_path):
    job = Command('a', settings(tmp_path), 'pass')
    job.folder.mkdir(parents=True)
    with (job.folder / 'lock').open('w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=job.run)
        thread.start()
        thread.join(0.5)
        assert thread.is_alive() and job.state == 'waits for another process'
    thread.join(30)
    assert job.result()['done'] is True


def test_a_config_stands_alone(tmp_path):
    path = tmp_path / 'config.py'
    cfg = Config.fromfile(ROOT / 'configs/detection/soft/mask-rcnn_softpp-tiny_fpn_1x_coco.py')
    path.write_text(files.config_text(cfg))
    assert Config.fromfile(path).to_dict() == cfg.to_dict()


def trained(**scores) -> dict:
    return dict(scores=scores, config_hash='abc', log='/runs/test/1.json', seconds=1.0)


@pytest.fixture
def whole_report() -> dict:
    """Of one row with three seeds, and a fourth that failed."""
    table = paper_tables.read_table('softpp_table_9')
    run = table.row('landmarks-49').runs[0]
    outcomes = {i: trained(**{'accuracy/top1': 80.0 + i}) for i in range(3)}
    counts = dict(macs=2.1e9, parameters=13e6)
    entry = report.run_report(run, 'full', {**outcomes, 3: 'the end of a log'}, [counts])
    row = report.row_report(table.row('landmarks-49'), [entry])
    about = dict(scale='full', seeds=[0, 1, 2], call='x', versions={'torch': '2'}, machine={})
    return dict(report.new_report(table, **about), rows=[row])


@pytest.mark.slow
def test_a_plot_is_drawn_where_there_are_scores(whole_report, tmp_path):
    assert report.plot(whole_report, tmp_path / 'a.png') and (tmp_path / 'a.png').is_file()
    assert not report.plot(dict(whole_report, rows=[]), tmp_path / 'b.png')
    assert not (tmp_path / 'b.png').exists()


def test_a_report_has_means_spreads_differences_and_failures(whole_report, tmp_path):
    table = paper_tables.read_table('softpp_table_9')
    run = table.row('landmarks-49').runs[0]
    (entry,) = whole_report['rows'][0]['runs']
    top1 = entry['metrics']['top-1']
    assert (top1['mean'], top1['s'], round(top1['difference'], 6)) == (81.0, 1.0, 0.1)
    assert entry['metrics']['MACs with kernels']['difference'] == pytest.approx(0.2)
    assert entry['metrics']['training memory']['values'] == []
    assert entry['failures'] == {'seed 3': 'the end of a log'}
    text = report.markdown(whole_report, tmp_path)
    assert '| 80.9 | 81 ± 1 | +0.10 |' in text and 'the end of a log' in text and 'abc' in text
    outcomes = {0: trained(**{'accuracy/top1': 80.0})}
    counts = dict(macs=2.1e9, parameters=13e6)
    small = report.run_report(run, 'mini', outcomes, [counts])['metrics']
    assert small['top-1']['difference'] is None  # of other data
    assert small['MACs with kernels']['difference'] == pytest.approx(0.2)  # of the full size
    missing = report.run_report(run, 'full', {0: trained(other=1)}, [])
    assert missing['failures']['top-1'] == "the log has no 'accuracy/top1'"


def test_a_report_has_the_sizes_of_attention_terms(tmp_path):
    table = paper_tables.read_table('softpp_table_9')
    row = table.row('landmarks-49')
    terms = [dict(attention='stages.0.blocks.0.attn', mixed=1e-5, local=0.1)]
    outcome = dict(trained(**{'accuracy/top1': 80.0}), attention_terms=terms)
    entry = report.run_report(row.runs[0], 'mini', {0: outcome}, [])
    about = dict(scale='mini', seeds=[0], call='x', versions={}, machine={})
    whole = dict(report.new_report(table, **about), rows=[report.row_report(row, [entry])])
    assert '- 49, seed 0: 1.0e-05 beside 1.0e-01' in report.markdown(whole, tmp_path)


def test_text_is_the_same_or_other_and_means_over_runs_need_all(tmp_path):
    table = paper_tables.read_table('softpp_table_1')
    run = table.row('small').runs[0]
    measured = [dict(embed_dims=[96, 192, 384, 768], depths=[1, 2, 5, 2], num_heads=[3, 6, 12, 24])]
    metrics = report.run_report(run, 'mini', {}, measured)['metrics']
    assert [metrics[n]['difference'] for n in ('widths', 'depths')] == ['same', 'other']
    row = paper_tables.read_table('softpp_table_12').row('soft')
    for score, mean in ((50.0, 50.0), (None, None)):
        outcomes = {} if score is None else {0: trained(**{'accuracy/top1': score})}
        entries = [report.run_report(run, 'full', outcomes, []) for run in row.runs]
        assert report.row_report(row, entries)['averages']['top-1'].get('mean') == mean


def call(cwd, *arguments) -> subprocess.Popen:
    limited = ('--cfg-options', *LIMITED)
    command = [sys.executable, TOOL, 'softpp_table_6', 'softpp-224', 'softpp-384', *arguments]
    return subprocess.Popen(
        [*map(str, command), '--scale', 'mini', *limited], cwd=cwd, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


@pytest.mark.training
def test_a_killed_call_goes_on_where_it_was_and_reports(mini_data, tmp_path):
    (tmp_path / 'data').mkdir()
    (tmp_path / 'data/mini').symlink_to(mini_data)
    first = call(tmp_path)
    runs = tmp_path / 'work_dirs/reproduce/runs'
    deadline = time.time() + 600
    while not list(runs.glob('*/train/epoch_2.pth')):
        assert first.poll() is None and time.time() < deadline, first.communicate()[0][-3000:]
        time.sleep(0.2)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    refused = call(tmp_path)
    assert 'is there already; --resume goes on with it' in ' '.join(
        refused.communicate()[0].split()
    )
    assert refused.returncode == 2
    second = call(tmp_path, '--resume')
    output = second.communicate()[0]
    assert second.returncode == 0, output[-3000:]
    before, after = sorted(runs.glob('*/train/*/vis_data/scalars.json'))
    epochs = [
        [json.loads(line).get('epoch') for line in log.read_text().splitlines()]
        for log in (before, after)
    ]
    # The last epoch of the killed run may have been cut off, and none before it is repeated.
    started = min(epoch for epoch in epochs[1] if epoch is not None)
    assert started >= 2
    content = json.loads((runs.parent / 'softpp_table_6-mini.json').read_text())
    assert [row['name'] for row in content['rows']] == ['softpp-224', 'softpp-384']
    for row in content['rows']:
        (run,) = row['runs']
        assert 0 <= run['metrics']['top-1']['mean'] <= 100 and run['config_hashes']
        assert Path(tmp_path / run['logs']['0']).is_file()
    assert content['versions']['torch'] and content['machine']['CPU']
    assert '| SOFT++ 384² | own | top-1, % | 82.6 |' in output
    assert (runs.parent / 'softpp_table_6-mini.png').is_file()
    logs = len(list(runs.glob('*/t*/*/*.log')))
    third = call(tmp_path, '--resume')
    assert third.wait() == 0
    assert len(list(runs.glob('*/t*/*/*.log'))) == logs  # nothing is repeated
