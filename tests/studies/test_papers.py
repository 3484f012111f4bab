"""The papers' tables in studies/tables and what is reported of them: rows build and agree.

studies/paper_figures.py: numbers that agree with the theory, and their pictures.
"""

import json
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from conftest import ROOT, fast_with, output_of, refusal_of, toolbox_model
from mmengine.config import Config
from mmengine.registry import MODELS
from PIL import Image
from reproduce_modules import paper_tables, plan, report, tool, trained
from reproduction import figure_numbers as numbers
from reproduction.gpu_hours import gpu_hours

from mmlaplace.model_zoo import files_root, read_models

TABLES = paper_tables.read_tables()
RUNS = [(table, row, run) for table in TABLES for row in table.rows for run in row.runs]
OWN = [row for table in TABLES for row in table.rows if row.kind == 'own']
# Where a table has another value than the metafile: why.
DIFFERENT = {
    ('soft-tiny_8xb128_in1k', 'softpp_table_2'): "79.3 is SOFT's own paper, 80.9 SOFT++'s",
    ('soft-tiny_8xb128_in1k', 'softpp_table_3'): "79.3 is SOFT's own paper, 80.9 SOFT++'s",
    ('softpp-small_8xb128_in1k', 'softpp_table_11'): 'the paper prints 82.6 and 82.4',
}
# An option of rows that changes none of the published counts of a metafile.
GROWING = {'model.backbone.attn_cfg.num_landmarks': None}


NAMES = [table.name for table in TABLES]
BUILT = set()


def logged(cfg) -> tuple:
    """How the keys begin that the evaluators of a config write."""
    forms = dict(Accuracy='accuracy/top1', IoUMetric='{}', CocoMetric='coco/{}_mAP')
    test, starts = cfg.test_evaluator, []
    for one in test if isinstance(test, list) else [test]:
        metrics = one.get('metric') or one.get('iou_metrics') or ['']
        metrics = [metrics] if isinstance(metrics, str) else metrics
        starts += [forms[one.type].format(metric) for metric in metrics]
    return tuple(starts)


def test_a_row_of_long_range_arena_has_the_attention_that_it_names():
    table = paper_tables.read_table('softpp_table_12')
    kinds = {
        row.name: {run.full.load().model.backbone.attn_cfg.type for run in row.runs}
        for row in table.rows
        if row.name in ('reformer', 'linformer')
    }
    assert kinds == dict(reformer={'ReformerAttention'}, linformer={'LinformerAttention'})
    (run, *_) = table.row('linformer').runs
    assert run.full.variables == dict(ATTENTION='linformer')
    assert run.full.path().name == 'listops_as-softpp.py'


def test_a_listed_row_is_one_line_with_its_config_and_its_options():
    printed = output_of(ROOT / 'studies/reproduce.py', '--list', 'laplacianformer_bandwidth')
    rows = [line for line in printed.splitlines() if ' own ' in line]
    assert 'estimated, not measured' in printed
    assert len(rows) == 5 and all('laplacianformer-tiny_8xb128_in1k.py' in row for row in rows)
    assert ' backbone.attn_cfg.bandwidth=0.5 ' in rows[0]
    assert len({row.split('.py')[1] for row in rows}) == 5


def test_gpu_hours_follow_from_macs_images_and_epochs():
    table = paper_tables.read_table('laplacianformer_imagenet')
    (run,) = table.row('tiny').runs
    # 2.1 G MACs, 1,281,167 images, 300 epochs, at a tenth of 312 TFLOPS.
    assert gpu_hours(run) == pytest.approx(6 * 2.1e9 * 1_281_167 * 300 / 31.2e12 / 3600)
    assert gpu_hours(paper_tables.read_table('softpp_figures').rows[0].runs[0]) is None


def test_every_row_has_a_command_or_a_reason_that_tells_it_from_others():
    page, lacking = (ROOT / 'docs/reproduce.md').read_text(), []
    assert tool.coverage_page() in page, 'run python studies/reproduce.py --list --markdown'
    assert len(OWN) == 107 == sum(row.covered and not row.waits_for for row in OWN)
    for table in TABLES:
        assert table.title and table.paper and table.place
        assert [row.line for row in table.rows] == list(range(1, len(table.rows) + 1))
        for row in table.rows:
            commands = [run.full or run.tool for run in row.runs]
            assert bool(row.reason) != (bool(commands) and all(commands)), row.name
            small = any(run.mini or run.tool for run in row.runs)
            assert small or not row.covered or row.kind != 'own', row.name
            for source in (run.weights.row for run in row.runs if run.weights):
                assert paper_tables.find_row(source)[1].runs[0].full is not None, row.name
            lacking += [row] if row.kind == 'baseline' and row.reason else []
    for row in lacking:
        assert row.reason in page and row.label in page


@pytest.mark.sampled(9)
@pytest.mark.parametrize('table', fast_with(NAMES, 'softpp_table_9'))
def test_rows_build_and_name_scores_that_their_runs_write(table):
    # Random weights would take most of the time.
    left_alone = dict.fromkeys(('uniform_', 'normal_'), lambda tensor, *_, **__: tensor)
    for _, row, run in (each for each in RUNS if each[0].name == table):
        scores = {paper_tables.METRICS[name].log for name in run.published} - {None}
        for spec in filter(None, map(run.spec, paper_tables.SCALES)):
            cfg = spec.load()
            assert all(score.startswith(logged(cfg)) for score in scores), row.name
            cfg.model.backbone.pop('init_cfg', None)
            cfg.model.pop('pretrained', None)
            if (key := (spec.config, repr(spec.options))) not in BUILT:
                with mock.patch.multiple(torch.Tensor, **left_alone):
                    toolbox_model(cfg)
                BUILT.add(key)


@pytest.mark.slow
def test_metafiles_have_the_values_of_the_tables():
    runs, root, different = {}, files_root(), set()
    for table, _, run in RUNS:
        if run.full and run.full.options in ({}, GROWING):
            runs.setdefault(root / run.full.config, []).append((table.name, run))
    for model in read_models():
        values = dict(model.metadata['Published'] or {}, MACs=None)
        values['top-1'] = values.pop('Top 1 Accuracy', None)
        for table, run in runs.get(model.config, ()):
            both = [
                values[name] not in (None, value)
                for name, value in run.published.items()
                if name in values
            ]
            if any(both):
                different.add((model.name, table))
    assert different == set(DIFFERENT)


def test_a_report_of_what_is_finished_says_that_the_rest_was_not_run(tmp_path):
    table = paper_tables.read_table('laplacianformer_bandwidth')
    made = plan(tmp_path, *(f'{table.name}/{row}' for row in ('lambda-4', 'lambda-8')))
    done = next(iter(made.jobs.values()))
    done.folder.mkdir(parents=True)
    (done.folder / 'result.json').write_text(json.dumps(trained(**{'accuracy/top1': 80.0})))
    about = dict(scale='mini', seeds=[0], call='x', versions={}, machine={})
    text = report.markdown(tool.make_report(table, made, tool.finished(made), about), tmp_path)
    assert '| λ=4 | own | top-1, % | 81.4 | 80, of the small copy |' in text
    assert '| λ=8 | own | top-1, % | 78.5 | not run |' in text


@pytest.mark.parametrize(
    ('scale', 'difference', 'cells'),
    [
        ('full', pytest.approx(0.1), '| 80.9 | 81 ± 1 | +0.10 |'),
        ('mini', None, '| 80.9 | 81 ± 1, of the small copy |'),
    ],
)
def test_a_report_has_means_spreads_differences_and_failures(scale, difference, cells, tmp_path):
    table = paper_tables.read_table('softpp_table_9')
    row = table.row('landmarks-49')
    outcomes = [*(trained(**{'accuracy/top1': 80.0 + i}) for i in range(3)), 'the end of a log']
    counts = [dict(macs=2.1e9, parameters=13e6)]
    run = report.run_report(row.runs[0], scale, dict(enumerate(outcomes)), counts)
    about = dict(scale=scale, seeds=[0], call='x', versions={'torch': '2'}, machine={})
    content = dict(report.new_report(table, **about), rows=[report.row_report(row, [run])])
    top1 = run['metrics']['top-1']
    assert (top1['mean'], top1['s'], top1['difference']) == (81.0, 1.0, difference)
    # What is counted is of the full size.
    assert run['metrics']['MACs with kernels']['difference'] == pytest.approx(0.2)
    assert run['metrics']['training memory']['values'] == []
    assert run['failures'] == {'seed 3': 'the end of a log'}
    text = report.markdown(content, tmp_path)
    assert cells in text and 'the end of a log' in text


# ---- figures


TOOL = ROOT / 'studies/paper_figures.py'
SOFTPP = ROOT / 'configs/classification/soft/softpp-micro_1xb32_mini.py'
POLA = ROOT / 'configs/classification/polaformer/polaformer-pvt-micro_1xb32_mini.py'


def draw(name, folder, *arguments) -> dict:
    """The numbers of a figure, which is drawn twice: as it is made, and from its numbers."""
    picture = folder / f'{name}.png'
    output_of(TOOL, name, '--out', picture, '--device', 'cpu', *arguments)
    again = folder / 'again.png'
    output_of(TOOL, name, '--out', again, '--force', '--numbers', picture.with_suffix('.json'))
    assert picture.stat().st_size > 5000 and again.read_bytes() == picture.read_bytes()
    return json.loads(picture.with_suffix('.json').read_text())


def model_of(config, folder, label) -> tuple:
    """The options for a model of random weights."""
    weights = folder / f'{config.stem}.pth'
    torch.save(MODELS.build(Config.fromfile(config).model.backbone).state_dict(), weights)
    return '--model', config, weights, label


@pytest.mark.slow
def test_memory_over_tokens_is_quadratic_with_matrices_and_linear_without():
    args = SimpleNamespace(depth=1, multiples=[1, 2], memory=16, device='cpu')
    lines = numbers.memory(args)['lines']
    assert list(lines) == list(numbers.ATTENTIONS)
    growth = {name: line[1]['MB'] / line[0]['MB'] for name, line in lines.items()}
    assert growth.pop('Transformer, matrices kept') > 3
    assert all(ratio < 2.2 for ratio in growth.values())


def test_numbers_that_are_there_are_kept(tmp_path):
    numbers = tmp_path / 'figure.json'
    numbers.write_text('mine')
    told = refusal_of(TOOL, 'softpp-1a', '--out', numbers.with_suffix('.png'))
    assert f'{numbers} is there already; --force' in told
    assert numbers.read_text() == 'mine'


@pytest.mark.slow
def test_figures_of_published_points_are_drawn(tmp_path):
    (tmp_path / 'result.json').write_text('{"scores": {"accuracy/top1": 50.0}}')
    run = ('--run', SOFTPP, tmp_path / 'result.json', 'SOFT++ micro')
    found = draw('softpp-1a', tmp_path, *run)
    assert found['twins'][0]['top-1'] == 50.0 and 0.1 < found['twins'][0]['parameters'] < 5
    rows = ('--rows', 'pvtv2-b0', 'pvtv2-b0-mobiatt')
    found = draw('polaformer-4', tmp_path, '--rounds', '1', *rows)
    assert found['left_out'] == ['PVTv2-b0-MobiAtt']
    assert [point['name'] for point in found['points'] if 'seconds' in point] == ['pvtv2-b0']


@pytest.mark.slow
def test_figures_of_a_soft_model_are_drawn(tmp_path):
    model = (*model_of(SOFTPP, tmp_path, 'SOFT++'), '--image-size', '64', '64')
    (stages,) = (found['stages'] for found in draw('softpp-5', tmp_path, *model)['sets'].values())
    assert [stage['stage'] for stage in stages] == [1, 2, 3]
    assert all(s['low'][k] <= s['mean'][k] <= s['high'][k] for s in stages for k in (0, 20))
    assert all(s['mean'][20] < s['mean'][5] < s['mean'][0] for s in stages)  # they are residuals
    found = draw('softpp-6a', tmp_path, *model, '--landmarks', '64')
    values = found['stages'][0]['values']
    # The trace of a Gaussian kernel is the number of landmarks.
    assert sum(values) == pytest.approx(64, rel=1e-4) and values == sorted(values, reverse=True)
    forms = draw('softpp-6b', tmp_path, *model)['norms']['trained']
    by_form = {(form['normalized'], form['exact']): form['rows'] for form in forms}
    assert len(by_form) == 4
    for rows in by_form.values():
        assert [row['landmarks'] for row in rows] == [49, 100, 196]
        assert all(0 < row['mean'] <= row['largest'] for row in rows)
    # The normalisation bounds the inverse, also as the attention computes it.
    for exact in (False, True):
        assert by_form[True, exact][-1]['mean'] < by_form[False, exact][-1]['mean']


@pytest.mark.slow
def test_figures_of_a_pola_model_are_drawn(tmp_path):
    model = model_of(POLA, tmp_path, 'PolaFormer')
    found = draw('polaformer-3', tmp_path, *model)
    assert not found['matrix'] and all(-1 <= b['correlation'] <= 1 for b in found['blocks'])
    Image.new('RGB', (48, 48), 'teal').save(tmp_path / 'one.png')
    other = (*model_of(SOFTPP, tmp_path, 'SOFT++'), '--images', 'one', tmp_path)
    blocks = draw('polaformer-5', tmp_path, *model, *other)['models']['PolaFormer']
    assert all(0 <= block['entropy'] <= 1.001 for block in blocks.values())
