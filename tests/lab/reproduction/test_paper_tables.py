"""The papers' tables in configs/tables and what is reported of them: rows build and agree."""

import json
from unittest import mock

import pytest
import torch
import yaml
from conftest import ROOT, fast_with, run_script, toolbox_model
from reproduce_modules import paper_tables, plan, report, tool, trained

from mmlaplace.lab.reproduction.gpu_hours import gpu_hours

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


def test_a_listed_row_is_one_line_with_its_config_and_its_options():
    printed = run_script(ROOT / 'tools/reproduce.py', '--list', 'laplacianformer_bandwidth').stdout
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
    # A backbone of as many MACs at 224 x 224, in a detector: 117,266 images, 12 epochs.
    detector = paper_tables.read_table('laplacianformer_coco').rows[0].runs[0]
    of_backbone = 6 * 2.1e9 * 800 * 1216 / 224**2 * 117_266 * 12 / 31.2e12 / 3600
    assert gpu_hours(detector) == pytest.approx(of_backbone, rel=0.1)
    assert gpu_hours(paper_tables.read_table('softpp_figures').rows[0].runs[0]) is None


def test_every_row_has_a_command_or_a_reason_that_tells_it_from_others():
    page, lacking = (ROOT / 'docs/reproduce.md').read_text(), []
    assert tool.coverage_page() in page, 'run python tools/reproduce.py --list --markdown'
    assert len(OWN) == 105 == sum(row.covered and not row.waits_for for row in OWN)
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


def test_metafiles_have_the_values_of_the_tables():
    files = sorted((ROOT / 'configs').rglob('metafile.yml'))
    models = [entry for file in files for entry in yaml.safe_load(file.read_text())['Models']]
    models = [entry for entry in models if entry['Metadata']['Published']]
    used = set()
    for entry in models:
        for table, _, run in RUNS:
            full = run.full
            if full is None or full.config != entry['Config'] or full.options not in ({}, GROWING):
                continue
            for name, value in entry['Metadata']['Published'].items():
                column = {'Top 1 Accuracy': 'top-1'}.get(name, name)
                if column != 'MACs' and run.published.get(column, value) != value:
                    used.add((entry['Name'], table.name))
    assert used == set(DIFFERENT)


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


@pytest.mark.parametrize(('scale', 'difference', 'cells'), [
    ('full', pytest.approx(0.1), '| 80.9 | 81 ± 1 | +0.10 |'),
    ('mini', None, '| 80.9 | 81 ± 1, of the small copy |'),
])  # fmt: skip
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
