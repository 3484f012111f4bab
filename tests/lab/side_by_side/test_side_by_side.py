"""The benchmarks take any backbone, lose none for another's failure, and write what they print.

The comparison of attentions trains, goes on, measures and tabulates.
"""

import json
import math
import re
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from conftest import ROOT, load_tool, output_of, refusal_of, registered, run_script
from mmengine.config import Config
from mmengine.device import get_device
from PIL import Image
from torch import nn

from mmlaplace.analysis import attention_statistics
from mmlaplace.lab.compare import trainings
from mmlaplace.lab.probes.report import read_costs
from mmlaplace.lab.side_by_side import (
    attention_jobs,
    attention_report,
    attention_results,
    attention_study,
    attention_training,
    seed_differences,
)
from mmlaplace.lab.side_by_side import backbone_candidates as candidates
from mmlaplace.lab.side_by_side.attention_cost import cost_of
from mmlaplace.model_zoo import read_backbones
from mmlaplace.models import BaseAttention, LaplacianAttention

MICRO = 'laplacianformer-micro'
tool = load_tool('tools/benchmarks/benchmark_backbone.py')


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs the tool in this process for one tiny round; returns its status and what it wrote."""
    out = tmp_path / 'backbone.json'
    # Which gives all freed memory of this process back first: seconds.
    monkeypatch.setattr(tool, 'process_memory', lambda job: 2**20)
    monkeypatch.setenv('COLUMNS', '250')  # so that no cell is wrapped

    def run(*arguments, force=('--force',)):
        options = ['--rounds', '1', '--out', str(out), *force]
        monkeypatch.setattr(sys, 'argv', ['benchmark_backbone.py', *map(str, arguments), *options])
        status = tool.main()
        return status, json.loads(out.read_text())

    return run


@pytest.mark.slow
def test_the_tool_writes_json_and_plots_and_keeps_what_is_there(run, tmp_path, capsys):
    names = [MICRO, f'{MICRO}+SoftmaxAttention', f'{MICRO}+PolaAttention']
    plots = tmp_path / 'a.png', tmp_path / 'top1.png'
    command = [
        *names,
        '--image-size',
        '32x2',
        '64x2',
        '--train',
        '--threads',
        1,
        '--base',
        names[1],
        '--plot',
        plots[0],
        '--plot-top1',
        plots[1],
    ]
    status, written = run(*command)
    rows = written['rows']
    assert status == 0 and set(written['exponents']) == set(names)
    found = [(row['candidate'], row['side']) for row in rows]
    assert found == [(name, side) for side in (32, 64) for name in names]
    for row in rows:
        assert row['median ms'] > 0 and row['MB'] == 1
        assert row['images per second'] * row['median ms'] / 2 == pytest.approx(1000)
    assert all(min(Image.open(plot).size) > 300 for plot in plots)
    assert re.search(re.escape(names[1]) + '.*│.* 1.00 ', capsys.readouterr().out)
    with pytest.raises(SystemExit, match='2'):
        run(*command, force=())
    assert '--force replaces it' in capsys.readouterr().err
    report = ('--report', tmp_path / 'backbone.json')
    printed = output_of(Path(tool.__file__), *names[:2], *report)
    assert f'| {MICRO} ' in printed and names[2] not in printed


def test_every_backbone_of_ours_with_an_arch_is_a_candidate(monkeypatch):
    monkeypatch.setattr('mmlaplace.model_zoo.initialise', id)  # which takes seconds
    known = list(candidates.catalogue(''))
    assert known == [model.name for model in read_backbones()]
    linear = candidates.find('deit-micro+LaplacianAttention')(False)  # without its class token
    assert type(linear.stages[0]['blocks'][0].attn) is LaplacianAttention


def test_sizes_with_equal_tuples_are_sizes_of_their_own():
    pytest.importorskip('mmpretrain')
    models = [candidates.find(f'mmpretrain:EfficientNet-{size}')(False) for size in ('b0', 'es')]
    assert len({sum(p.numel() for p in model.parameters()) for model in models}) == 2


@pytest.mark.parametrize(
    'name',
    [
        'mmpretrain:SwinTransformer-tiny',
        'mmdet:PyramidVisionTransformerV2-b0',
    ],
)
def test_the_backbones_of_a_toolbox_are_its_own(name):
    toolbox = name.partition(':')[0]
    pytest.importorskip(toolbox)
    model = candidates.find(name)(False)
    model.eval()
    assert type(model).__module__.startswith(f'{toolbox}.models.backbones.')
    with torch.no_grad():
        assert model(torch.randn(1, 3, 224, 224))[-1].shape[0] == 1  # Swin takes no less


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['laplacianformer-tyni'], 'Similar names are .*laplacianformer-tiny.*--list'),
        # mmpretrain's registry finds our Swin, as the root is its parent.
        (['mmpretrain:Swin-tiny'], 'no such backbone'),
        (['--image-size', '224x'], "'224x': give SIDExBATCH"),
    ],
)
def test_a_mistyped_word_stops_the_tool_before_it_measures(words, message, run, capsys):
    with pytest.raises(SystemExit, match='2'):
        run(MICRO, *words)
    assert re.search(message, ' '.join(capsys.readouterr().err.split()))


class Hungry(nn.Conv2d):
    def forward(self, x):
        if x.size(-1) > 32:
            raise torch.cuda.OutOfMemoryError('out of memory')
        return super().forward(x)


@pytest.mark.slow
def test_a_failure_is_named_in_its_row_and_costs_the_others_nothing(run, monkeypatch, capsys):
    builders = dict(hungry=lambda train: Hungry(3, 4, 3), wrong=lambda train: nn.Linear(-1, 2))
    monkeypatch.setattr(tool, 'find', lambda name: builders.get(name) or candidates.find(name))
    monkeypatch.setitem(sys.modules, 'timm', None)  # its import fails
    candidates.catalogue.cache_clear()
    status, written = run('hungry', MICRO, 'wrong', 'timm:resnet18', '--image-size', '32', '64')
    failures = [row['failure'] for row in written['rows']]
    assert status == 0 and 'out of memory' in failures[2] and failures.count('') == 3
    assert 'out of memory' in capsys.readouterr().out
    assert written['failures']['wrong'].startswith('RuntimeError: ')
    assert 'pip install timm' in written['failures']['timm:resnet18']
    status, _ = run('wrong', '--sizes', '32')  # alone, so nothing is measured
    assert status == 1


@pytest.mark.slow
def test_benchmark_ops(tmp_path):
    out, plot, threads = tmp_path / 'ops.json', tmp_path / 'ops.png', torch.get_num_threads()
    options = ['--threads', 1, '--out', out, '--plot', plot, '--train-step']
    output_of(ROOT / 'tools/benchmarks/benchmark_ops.py', '--quick', *options)
    torch.set_num_threads(threads)
    written = json.loads(out.read_text())
    rows = [row for row in written['rows'] if row['candidate'] == 'native']
    ops = {'laplacian_kernel', 'gaussian_kernel', 'newton_schulz_inverse', 'linear_attention'}
    assert {row['op'] for row in rows} == ops
    assert {row['pass'] for row in rows} == {'forward', '+ backward'}
    assert written['peak G diff/s'] > 0 and written['train step']['reference / native'] > 0
    assert min(Image.open(plot).size) > 300


# ---- attentions


TRAININGS = 'mmlaplace', 'compare', 'trainings'
FEW = 'AdditiveAttention', 'SoftmaxAttention'


def test_every_registered_attention_is_compared():
    names = attention_study.candidates()
    assert set(registered(BaseAttention)) - {'WindowAttention'} <= set(names)
    assert all('num_landmarks' not in cfg or cfg['num_landmarks'] == 16 for cfg in names.values())


def test_a_name_has_the_options_of_an_attention():
    asked = {name for names in attention_study.ABLATIONS.values() for name in names}
    assert all(attention_study.config_of(name)['type'] == name.split(',')[0] for name in asked)
    cfg = attention_study.config_of('PolaAttention, gate=false, power=3')
    assert cfg == dict(type='PolaAttention', gate=False, power=3)
    gaussian = 'LaplacianAttention, Gaussian'  # which costs what it costs with its defaults
    costed = attention_study.cost_settings(gaussian, 'vit', (224,))['attn_cfg']
    assert attention_study.config_of(gaussian) == dict(costed, num_landmarks=16)
    with pytest.raises(ValueError, match="no options \\['powers'\\] .*'power'"):
        attention_study.config_of('PolaAttention, powers=3')
    message = "no attention 'PolarAttention' .did you mean 'PolaAttention'"
    with pytest.raises(ValueError, match=message):
        attention_study.config_of('PolarAttention')


def test_a_training_goes_on_with_its_own_settings_alone(tmp_path):
    settings = attention_study.settings_of('XCAttention', 'vit', 0, 'textures', 3)
    for _ in range(2):  # it began, and begins again after it was killed
        attention_results.begin(tmp_path, settings)
    assert not attention_results.finished(tmp_path, settings)
    (tmp_path / 'result.json').write_text(json.dumps(dict(settings=settings)))
    assert attention_results.finished(tmp_path, settings)
    for function in (attention_results.begin, attention_results.finished):
        with pytest.raises(ValueError, match='take another --work-dir'):
            function(tmp_path, dict(settings, seed=1))
    (tmp_path / 'textures').mkdir()  # an empty folder has no data either
    assert 'make_mini_datasets.py' in attention_study.missing_data('textures', tmp_path)


def cost(attention, host, seconds):
    row = dict(side=224, seconds=seconds, MB=3.0)
    found = dict(rows=[row], left_out={'512': 'no memory'}, exponent=math.nan)
    settings = dict(attention=attention, host=host, sizes=[224, 512])
    return dict(settings=settings, cost={'forward': found, 'forward and backward': found})


def test_the_arguments_of_a_comparison_reach_its_jobs(tmp_path):
    words = '--attentions XCAttention LiteMLA --hosts vit swin --seeds 3 4 --epochs 5'
    words += f' --image-size 64 96 --study digits --work-dir {tmp_path} --data-root few'
    args = trainings.parser_of(['XCAttention']).parse_args(words.split())
    jobs = trainings.training_jobs(args)
    first = attention_study.settings_of('XCAttention', 'vit', 3, 'digits', 5)
    assert jobs[0].settings == first and jobs[0].arguments[-2:] == (Path('few'), 'cpu')
    assert len({job.path for job in jobs}) == len(jobs) == 2 * 2 * 2
    of_a_seed = [job.settings['seed'] for job in jobs[:4]]
    assert of_a_seed == [3, 3, 4, 4]  # all attentions have a seed before the next one begins
    costs = trainings.cost_jobs(args)
    for job, name in zip(costs, args.attentions):
        assert job.settings == attention_study.cost_settings(name, 'vit', [64, 96])
        assert job.arguments[:3] == (name, 'vit', [64, 96])


def test_the_device_reaches_the_jobs_and_the_runner_of_a_training(tmp_path, monkeypatch):
    words = f'--attentions XCAttention --hosts vit --seeds 0 --work-dir {tmp_path}'
    args = trainings.parser_of(['XCAttention']).parse_args(words.split())
    args.device = 'cuda'  # which the parser refuses without a GPU
    for job in (*trainings.training_jobs(args), *trainings.cost_jobs(args)):
        assert (job.arguments[-1], job.settings['device']) == ('cuda', 'cuda')
    found = []

    def train(*about):
        found.append(get_device())
        return dict(top1={})

    monkeypatch.setattr(attention_training, 'trained_and_tested', train)
    before = get_device()
    attention_training.train_attention(
        'XCAttention', 'vit', 0, 'textures', 2, tmp_path / 'one', tmp_path, 'meta'
    )
    assert found == ['meta'] and get_device() == before
    cost = cost_of('XCAttention', 'vit', [32], 'meta')  # which has no clock
    assert "got 'meta'" in cost['forward']['left_out'][32]


def test_a_part_of_a_result_is_run_again_and_left_out_of_tables(tmp_path):
    half, whole = tmp_path / 'result.json', made_up('XCAttention', 0, 60.0)
    half.write_text('{"settings": {"atten')
    with pytest.warns(UserWarning, match=r'result\.json is not complete'):
        assert attention_jobs.Work('a', print, (), half, whole['settings']).result() is None
        found = trainings.collect(tmp_path, dict(results=[], costs=[]))
    assert found['results'] == []


def made_up(name, seed, top1):
    matrix = dict.fromkeys(attention_statistics.Statistics._fields, 0.25)
    settings = dict(attention=name, attn_cfg=dict(type=name), host='vit', seed=seed)
    return dict(
        settings=dict(settings, study='textures', phases=[dict(epochs=4)]),
        top1={'64²': top1, '128²': top1 + 5},
        seconds=60,
        parameters=200_000,
        macs=15_000_000,
        matrices=[dict(matrix, stage=1, tokens=256)] if name == 'SoftmaxAttention' else [],
        terms=[dict(attention='a', mixed=0.1, local=0.2)],
    )


def test_tables_have_means_all_seeds_and_what_is_missing(tmp_path):
    results = [made_up('SoftmaxAttention', seed, 50.0 + seed) for seed in (1, 0, 2)]
    resumed = dict(made_up('XCAttention', 0, 60.0), seconds=None)  # which has no time
    costs = [cost('SoftmaxAttention', 'vit', 0.5), cost('LinearAttention', 'laplacianformer', 0.01)]
    content = dict(results=[*results, resumed], costs=costs)
    written = attention_report.write_report(content, tmp_path)
    text = (tmp_path / 'tables.md').read_text()
    lines = [line for line in text.splitlines() if line.startswith('| ')]
    assert lines[2].startswith('| XC | 60.0 | 65.0 | 200 | 15.0 | - |')  # the most accurate first
    assert lines[3].startswith('| Softmax | 51.0 ± 1.0 (50.0, 51.0, 52.0) | 56.0 ± 1.0 ')
    assert 'Softmax, forward, 512²: no memory' in text
    pictures = [path for path in written if path.suffix == '.png']
    assert len(pictures) == 3 and all(min(Image.open(path).size) > 100 for path in pictures)
    tables, path = dict(attention_report.sections(content)), tmp_path / 'results.json'
    assert '| Linear | 10 |' in tables['time in ms, batch 1, one thread: laplacianformer']
    assert '| Softmax | 500 | - |' in tables['time in ms, batch 1, one thread: vit']
    path.write_text(json.dumps(content))
    assert read_costs(path)['Linear']['ms 224²'] == pytest.approx(10)


def test_differences_are_of_pairs_of_seeds():
    results = [made_up('SoftmaxAttention', seed, 50.0 + seed) for seed in (0, 1, 2, 7)]
    results += [made_up('XCAttention', seed, 52.0 + 2 * seed) for seed in (0, 1, 2, 3)]
    results.append(made_up('PolaAttention', 0, 60.0))  # a single pair has no interval
    assert seed_differences.differences(results) == {'XCAttention': [2.0, 3.0, 4.0]}
    # Student's t for 97.5 % and two degrees of freedom is 4.303.
    assert seed_differences.half_width([2.0, 3.0, 4.0]) == pytest.approx(4.303 / 3**0.5, rel=1e-3)
    assert '| XC | +3.00 | ± 2.48 | 3 |' in attention_report.difference_table(results)
    names = 'SoftmaxAttention', 'SoftmaxAttention, qkv_bias=false', 'SOFTAttention'
    results += [made_up(names[1], seed, 52.0 + 2 * seed) for seed in (0, 1, 2)]
    (*_, last) = attention_report.ablation_table(results, names).splitlines()
    assert last == f'| {names[1]} | 54.00 | 59.00 | +3.00 | ± 2.48 | 3 |'
    # A seed that the first name does not have counts in no column.
    further = made_up(names[1], 3, 0.0)
    assert attention_report.ablation_table([*results, further], names).endswith(last)
    found = dict(attention_report.sections(dict(results=results, costs=[])))
    assert names[1] not in found['top-1 in %, mean ± s (seeds): vit, textures']


def test_what_a_seed_adds_to_all_attentions_hides_no_difference():
    gains = dict(SoftmaxAttention=4, XCAttention=4, PolaAttention=4, LiteMLA=20)
    results = [made_up(n, seed, 50.0 + g * seed) for n, g in gains.items() for seed in (0, 1, 2)]
    said = 'Without LiteMLA, whose seeds differ most, seeds have a deviation of 0.00 points'
    assert said in seed_differences.seeds_text(results)


def test_an_interrupted_phase_goes_on_with_its_own_checkpoint(tmp_path, monkeypatch):
    (tmp_path / 'last_checkpoint').touch()
    for name in ('Runner', 'load_or_exit', 'build_model'):
        monkeypatch.setattr(attention_training, name, mock.Mock())
    cfg = Config(dict(train_cfg=dict(max_epochs=6), load_from='the_phase_before.pth'))
    attention_training.train(cfg, tmp_path)
    assert cfg.resume and cfg.load_from is None


@pytest.mark.parametrize(
    ('option', 'message'),
    [
        ('bandwidth=-2', 'error: bandwidth must be positive and finite, got -2'),
        (
            'bandwidth=wide',
            "error: 'LaplacianAttention, bandwidth=wide' has a value of a wrong type",
        ),
    ],
)
def test_an_option_that_the_attention_refuses_is_one_sentence(option, message, tmp_path):
    asked = '--attentions', f'LaplacianAttention, {option}', '--work-dir', tmp_path
    assert re.search(message, refusal_of(*TRAININGS, *asked))
    assert not list(tmp_path.iterdir())


@pytest.mark.training
@pytest.mark.thorough
def test_fashion_is_a_study(fashion_files, tmp_path):
    fashion_files(tmp_path / 'data/fashion')
    name = 'LinearAttention, eps=1.0e-5'
    attention_training.train_attention(
        name, 'small_images', 0, 'fashion', 2, tmp_path, tmp_path / 'data'
    )
    found = json.loads((tmp_path / 'result.json').read_text())
    assert found['settings']['attn_cfg'] == dict(type='LinearAttention', eps=1e-5)
    assert list(found['top1']) == ['28²', '42² (1.5×)', '56² (2×)'] and len(found['matrices']) > 0


@pytest.mark.thorough
@pytest.mark.training
def test_a_comparison_reports_what_fails_and_repeats_nothing_that_is_known(noise_images, tmp_path):
    sides = dict(train=64, val=64, val_96=96, val_128=128)
    for folder, side in sides.items():
        noise_images(tmp_path / 'few/textures' / folder, side, classes=15)
    options = [
        '--data-root',
        tmp_path / 'few',
        '--epochs',
        2,
        '--attentions',
        *FEW,
        '--seeds',
        0,
        '--image-size',
        64,
        96,
        '--work-dir',
    ]
    # A result that something else has written stands for any run that fails.
    bad = tmp_path / 'laplacianformer/textures' / f'{FEW[0]}_0'
    bad.mkdir(parents=True)
    (bad / 'result.json').write_text(json.dumps(made_up(FEW[0], 0, 50.0)))
    result = run_script(*TRAININGS, *options, tmp_path, '--no-cost')
    assert result.returncode == 1
    assert 'take another --work-dir' in result.stdout and '1 runs failed' in result.stderr
    (bad / 'result.json').unlink()
    output_of(*TRAININGS, *options, tmp_path)
    content = json.loads((tmp_path / 'results.json').read_text())
    assert [run['settings']['attention'] for run in content['results']] == list(FEW)
    assert [len(run['matrices']) > 0 for run in content['results']] == [False, True]
    assert all(len(made['cost']['forward']['rows']) == 2 for made in content['costs'])
    output_of(*TRAININGS, *options, tmp_path / 'other', '--known', tmp_path / 'results.json')
    assert not list((tmp_path / 'other').rglob('result.json'))
