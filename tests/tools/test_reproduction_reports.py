"""What tools/reproduce.py reports of runs: means, differences, notes, places and failures."""

import json

import pytest
from reproduce_modules import paper_tables, plan, report, tool, trained

COUNTS = dict(macs=2.1e9, parameters=13e6)
AT_80 = {'accuracy/top1': 80.0}


def whole(table: str, row: str, scale='full', outcomes=(), measured=()) -> dict:
    """The report of the first run of a row."""
    table = paper_tables.read_table(table)
    row = table.row(row)
    outcomes = dict(enumerate(outcomes or [trained(**AT_80)]))
    entry = report.run_report(row.runs[0], scale, outcomes, list(measured))
    about = dict(scale=scale, seeds=[0], call='x', versions={'torch': '2'}, machine={})
    return dict(report.new_report(table, **about), rows=[report.row_report(row, [entry])])


def metrics_of(content) -> dict:
    return content['rows'][0]['runs'][0]['metrics']


def test_a_report_of_what_is_finished_says_that_the_rest_was_not_run(tmp_path):
    table = paper_tables.read_table('laplacianformer_bandwidth')
    made = plan(tmp_path, *(f'{table.name}/{row}' for row in ('lambda-4', 'lambda-8')))
    done = next(iter(made.jobs.values()))
    done.folder.mkdir(parents=True)
    (done.folder / 'result.json').write_text(json.dumps(trained(**AT_80)))
    about = dict(scale='mini', seeds=[0], call='x', versions={}, machine={})
    text = report.markdown(tool.make_report(table, made, tool.finished(made), about), tmp_path)
    assert '| λ=4 | own | top-1, % | 81.4 | 80, of the twin |' in text
    assert '| λ=8 | own | top-1, % | 78.5 | not run |' in text


def test_a_report_has_means_spreads_differences_and_failures(tmp_path):
    outcomes = [*(trained(**{'accuracy/top1': 80.0 + i}) for i in range(3)), 'the end of a log']
    content = whole('softpp_table_9', 'landmarks-49', 'full', outcomes, [COUNTS])
    (row,) = content['rows']
    top1 = metrics_of(content)['top-1']
    assert (top1['mean'], top1['s'], round(top1['difference'], 6)) == (81.0, 1.0, 0.1)
    assert metrics_of(content)['MACs with kernels']['difference'] == pytest.approx(0.2)
    assert metrics_of(content)['training memory']['values'] == []
    assert row['runs'][0]['failures'] == {'seed 3': 'the end of a log'}
    text = report.markdown(content, tmp_path)
    assert '| 80.9 | 81 ± 1 | +0.10 |' in text and 'the end of a log' in text


def test_figures_of_the_twin_have_no_difference_but_in_what_is_counted():
    small = metrics_of(whole('softpp_table_9', 'landmarks-49', 'mini', measured=[COUNTS]))
    assert small['top-1']['difference'] is None  # of other data
    assert small['MACs with kernels']['difference'] == pytest.approx(0.2)  # of the full size
