"""What tools/reproduce.py reports of runs: means, differences, notes, places and failures."""

import json

import pytest
from reproduce_modules import paper_tables, plan, report, tool, trained


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


def test_a_report_tells_notes_and_where_each_run_was_made(whole_report, tmp_path):
    (row,) = whole_report['rows']
    row['note'] = 'It is another model.'
    places = [dict(machine={'CPU': name}, versions={'torch': '2'}) for name in ('A', 'B')]
    row['runs'][0]['made_on'] = {'seed 0': places[0], 'seed 1': places[1]}
    text = report.markdown(whole_report, tmp_path)
    assert '- 49: It is another model.' in text
    assert '49  (seed 0): CPU: A, torch: 2' in text and '49  (seed 1): CPU: B, torch: 2' in text


def test_a_score_without_a_published_value_is_reported(tmp_path):
    table = paper_tables.read_table('options')
    row = table.row('soft-svd')
    entry = report.run_report(row.runs[0], 'full', {0: trained(**{'accuracy/top1': 80.0})}, [])
    about = dict(scale='full', seeds=[0], call='x', versions={}, machine={})
    whole = dict(report.new_report(table, **about), rows=[report.row_report(row, [entry])])
    assert '| option | top-1, % | – | 80 | – |' in report.markdown(whole, tmp_path)
    assert report.plot(whole, tmp_path / 'a.png')


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
