"""tools/reproduce.py: plans, runs that are killed and go on, failures, and reports."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, run_script
from mmengine.config import Config
from reproduce_modules import files, jobs, launching, paper_tables, plan, running, tool

TOOL = ROOT / 'tools/reproduce.py'
LIMITED = (  # so few images that an epoch takes a second
    'train_dataloader.dataset.indices=64', 'val_dataloader.dataset.indices=32',
    'test_dataloader.dataset.indices=32', 'train_dataloader.num_workers=0',
    'train_dataloader.persistent_workers=False', 'train_cfg.max_epochs=4',
)  # fmt: skip


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch):
    monkeypatch.setattr(running, 'LOOK', 0.01)
    monkeypatch.setattr(launching, 'LOOK', 0.01)


@pytest.mark.slow
def test_tables_and_rows_are_listed():
    listed = run_script(TOOL, '--list').stdout
    assert all(name in listed for name in paper_tables.table_names())
    rows = run_script(TOOL, '--list', 'polaformer_table_6').stdout
    assert 'ProbSparse' in rows  # why Informer has no command


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
        (('softpp_table_9', '--gpus', '8'), '--gpus 8 needs --launcher pytorch or slurm'),
        (('softpp_table_9', '--kind', 'baseline'), '--kind baseline: none of landmarks-36'),
        (
            ('softpp_table_9', '--weights', f'softpp_table_1/tiny={__file__}'),
            'nothing here takes those of softpp_table_1/tiny',
        ),
        (('softpp_table_9',), 'landmarks-36: its batch and learning rate are for 8 processes'),
        (('polaformer_a4', 'zeros', '--scale', 'mini'), '--tasks listops --size mini makes it'),
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
    (detector,) = given.trainings
    assert detector.source() == 'mine.pth' and not detector.needs


def test_given_weights_of_a_row_are_tested_and_not_trained(tmp_path):
    name = 'softpp_table_3/softpp-small'
    (row,) = plan(tmp_path, name, weights={name: Path('mine.pth')}).trainings
    assert len(row.commands()) == 1 and row.source() == 'mine.pth'
    larger = plan(tmp_path, 'softpp_table_6/softpp-384', weights={name: Path('mine.pth')})
    at_224, at_384 = larger.trainings
    assert at_224.source() == 'mine.pth' and not at_224.trains and not at_384.trains
    with pytest.raises(paper_tables.TableError, match="several runs, one of them 'image'"):
        plan(tmp_path, 'polaformer_table_6/pola', scale='full',
             weights={'polaformer_table_6/pola': Path('mine.pth')})  # fmt: skip


def test_a_batch_that_does_not_fit_the_learning_rate_is_refused(tmp_path):
    def wrong(name='softpp_table_3/softpp-tiny', **changes):
        return [
            job.wrong_batch() for job in plan(tmp_path, name, scale='full', **changes).trainings
        ]

    assert wrong() == [
        'softpp_table_3/softpp-tiny: its batch and learning rate are for 8 processes, and it has 1'
    ]
    assert wrong(launcher='pytorch', gpus=8) == ['']
    assert wrong(launcher='pytorch', gpus=2, options={'optim_wrapper.accumulative_counts': 4}) == [
        ''
    ]
    assert wrong(options={'auto_scale_lr.enable': True}) == ['']
    assert wrong(weights={'softpp_table_3/softpp-tiny': Path('mine.pth')}) == ['']  # no training
    keys = {next(iter(plan(tmp_path, 'softpp_table_3/softpp-tiny', scale='full', gpus=gpus,
                           launcher='pytorch').jobs)) for gpus in (1, 8)}  # fmt: skip
    assert len(keys) == 2  # a run of another batch is another run
    # Runs of one row may want different numbers, and more GPUs than they want are left alone.
    name = 'softpp_table_7/upernet-softpp-small'
    city, ade = (job for job in plan(tmp_path, name, scale='full', launcher='pytorch', gpus=8)
                 .trainings if name in job.label)  # fmt: skip
    assert (city.train_command()[3], ade.train_command()[3]) == ('4', '8')
    assert not city.wrong_batch() and not ade.wrong_batch()


def test_the_best_checkpoint_is_tested_where_a_table_says_so(tmp_path):
    def trained_in(name):
        (job,) = plan(tmp_path, name).trainings
        (job.folder / 'train').mkdir(parents=True)
        (job.folder / 'train/last_checkpoint').write_text('iter_500.pth')
        return job

    job = trained_in('polaformer_a4/zeros')
    with pytest.raises(jobs.JobFailed, match='no best_.*save_best of the config keeps it'):
        job.trained_checkpoint()
    best = job.folder / 'train/best_accuracy_top1_iter_200.pth'
    best.write_text('')
    assert job.trained_checkpoint() == str(best)
    assert trained_in('softpp_table_9/landmarks-49').trained_checkpoint() == 'iter_500.pth'


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
    trainings = plan(tmp_path, 'softpp_table_2/soft', 'softpp_table_2/transformer').trainings
    # The second has softmax attention in SOFT's host.
    assert [job.cfg.model.backbone.type for job in trainings] == ['SOFT', 'SOFTPlusPlus']
    assert [job.has_term() for job in trainings] == [True, False]
    (in_vit,) = plan(tmp_path, 'softpp_table_11/softpp-without-pyramid').trainings
    assert in_vit.cfg.model.backbone.type == 'ViT' and in_vit.has_term()
    command = trainings[0].term_command('epoch_11.pth')
    assert command[3:6] == ['--attention-term', '--checkpoint', 'epoch_11.pth']
    other = next(iter(plan(tmp_path, 'laplacianformer_imagenet/tiny').jobs.values()))
    assert not other.has_term()


def test_launchers_start_the_scripts_of_this_project(tmp_path):
    def commands(**changes):
        made = plan(tmp_path, 'softpp_table_9/landmarks-49', scale='full', **changes)
        return next(iter(made.jobs.values())).commands()

    train, test = commands()
    assert train[1].endswith('tools/train.py') and test[1].endswith('tools/test.py')
    train, test = commands(launcher='pytorch', gpus=4)
    assert train[1].endswith('dist_train.sh') and train[3] == '4'
    assert test[1].endswith('dist_test.sh') and test[4] == '4'
    train, test = commands(launcher='slurm', gpus=8, partition='gpu')
    assert train[1].endswith('slurm_train.sh') and train[2] == 'gpu'
    assert test[:3] == ['srun', '--partition', 'gpu']
    # What is measured or drawn runs on a node too, and not where the tool was called.
    names = 'softpp_table_9/landmarks-49', 'softpp_figures/figure-5'
    for job in plan(tmp_path, *names, launcher='slurm', partition='gpu').jobs.values():
        assert job.commands()[-1][0] == 'srun'
    assert job.place()['Slurm partition'] == 'gpu'


def test_gpus_are_those_that_the_call_may_use(monkeypatch):
    monkeypatch.setattr(tool.torch.cuda, 'device_count', lambda: 3)
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '2,5,GPU-1a')
    assert tool.groups_of_gpus(1) == ['2', '5', 'GPU-1a'] and tool.groups_of_gpus(2) == ['2,5']
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES')
    assert tool.groups_of_gpus(1) == ['0', '1', '2']


def test_a_measurement_is_of_the_changed_config_and_of_its_machine(tmp_path):
    def keys(**changes):
        made = plan(tmp_path, 'softpp_table_9/landmarks-49', **changes)
        return {
            job.timed: key for key, job in made.jobs.items() if isinstance(job, jobs.Measurement)
        }

    here, changed = keys(), keys(options={'model.backbone.drop_path_rate': 0.2})
    elsewhere = keys(launcher='slurm', partition='gpu')
    assert here[False] != changed[False] and here[True] != changed[True]
    assert here[False] == elsewhere[False] and here[True] != elsewhere[True]


def test_speeds_are_measured_alone_where_jobs_share_a_cpu(tmp_path, monkeypatch):
    def alone(**changes):
        made = plan(tmp_path, 'softpp_table_2/softpp', **changes)
        measured = [job for job in made.jobs.values() if isinstance(job, jobs.Measurement)]
        assert [job.timed for job in measured] == [False, True]
        assert not any(job.alone for job in made.trainings)
        return [job.alone for job in measured]

    monkeypatch.setattr(jobs.torch.cuda, 'device_count', lambda: 0)
    assert alone() == [False, True]
    assert alone(launcher='slurm', partition='gpu') == [False, False]
    monkeypatch.setattr(jobs.torch.cuda, 'device_count', lambda: 2)
    assert alone() == [False, False]


def test_a_config_stands_alone(tmp_path):
    path = tmp_path / 'config.py'
    cfg = Config.fromfile(ROOT / 'configs/detection/soft/mask-rcnn_softpp-tiny_fpn_1x_coco.py')
    path.write_text(files.config_text(cfg))
    assert Config.fromfile(path).to_dict() == cfg.to_dict()


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
