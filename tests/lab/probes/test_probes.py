"""Probes are the tasks that they say, tell attentions apart, and keep finished runs."""

import json

import pytest
import torch
from conftest import ROOT, load_tool, output_of, refusal_of, run_script

from mmlaplace.lab.probes import PROBES, Schedule, train_probe
from mmlaplace.lab.probes.prediction import TrainedHere, correlate, published, trained_here
from mmlaplace.lab.probes.report import largest, table_of, tables
from mmlaplace.lab.probes.results import append_result, key_of, read_results
from mmlaplace.lab.probes.study import Runner, all_attentions, read_studies, settings_of
from mmlaplace.lab.probes.tasks import UNASKED, build_probe

TOOL = ROOT / 'tools/analysis_tools/probe_attentions.py'


def drawn(name, size=16, seed=0, scale=1, **options):
    probe = build_probe(dict(type=name, **options))
    return probe, probe.batch(size, torch.Generator().manual_seed(seed), scale)


@pytest.mark.parametrize(('name', 'options', 'stored', 'asked'), [
    ('recall', dict(pairs=16), 16, 16),
    ('recall', dict(pairs=64), 64, 64),
    ('noise', dict(pairs=8, noise=12), 104, 8),
    ('magnitude', dict(pairs=8), 16, 16),
])  # fmt: skip
def test_a_query_has_one_answer_among_the_stored_pairs(name, options, stored, asked):
    _, batch = drawn(name, **options)
    for keys, values, lengths, answers in zip(*batch[:4]):
        table = {(int(k), float(n)): int(v) for k, v, n in zip(keys, values, lengths) if v}
        queries = answers != UNASKED
        assert (len(table), int(queries.sum())) == (stored, asked)
        assert not values[queries].any() and not keys[~queries & (values == 0)].any()
        found = [table[int(k), float(n)] - 1 for k, n in zip(keys[queries], lengths[queries])]
        assert found == answers[queries].tolist()


def test_one_of_many_asks_for_the_value_of_the_longest_marker():
    probe, batch = drawn('one_of_many', candidates=20)
    longest = (batch.lengths * (batch.keys > 0)).argmax(1)
    wanted = batch.values.gather(1, longest[:, None]) - 1
    asked = batch.answers != UNASKED
    assert torch.equal(asked, batch.keys == 0) and (asked.sum(1) == 128 - 20).all()
    assert torch.equal(batch.answers[asked], wanted.expand_as(asked)[asked])


@pytest.mark.parametrize('scale', [1, 2, 4])
def test_offset_and_count_are_right_on_larger_maps(scale):
    probe, batch = drawn('offset', down=1, right=2, scale=scale)
    height, width = batch.hw_shape
    assert height * width == 128 * scale
    values, answers = (x.view(16, height, width) for x in (batch.values, batch.answers))
    assert torch.equal(answers[:, :-1, :-2], values[:, 1:, 2:] - 1)
    assert (answers != UNASKED).sum() == 16 * (height - 1) * (width - 2)
    probe, batch = drawn('count', values=16, scale=scale)
    share = (batch.keys > 0).float().mean(1, keepdim=True)
    assert torch.equal(batch.answers, (share * 16).long().expand_as(batch.answers))


@pytest.mark.parametrize('name', list(PROBES.module_dict))
def test_a_seed_gives_the_same_maps_and_a_guess_is_at_chance(name):
    probe, batch = drawn(name, size=500)
    again = drawn(name, size=500)[1]
    assert torch.equal(batch.answers, again.answers) and torch.equal(batch.keys, again.keys)
    asked = batch.answers != UNASKED
    maps = torch.Generator().manual_seed(1)
    guess = torch.randint(probe.values, (500, 1), generator=maps).expand_as(asked)
    if name == 'magnitude':  # a guess that knows the key: one of its two values
        guess = batch.answers.clone()
        for row, keys, answers in zip(guess, batch.keys, batch.answers):
            for key in keys[answers != UNASKED].unique():
                row[keys == key] = answers[(keys == key) & (answers != UNASKED)][0]
    right = (guess == batch.answers)[asked].float().mean()
    assert right == pytest.approx(probe.chance, abs=0.04)


@pytest.mark.parametrize(('probe', 'message'), [
    (dict(type='recall', pairs=65), '130 tokens for 65 pairs and 65 .* has 128; lower pairs'),
    (dict(type='noise', noise=15), 'Noise needs 136 tokens.*lower noise'),
    (dict(type='offset', right=16), 'from 0 to 7 and 15 .* got 3 and 16'),
    (dict(type='count', values=0), 'values must be positive, got 0'),
    (dict(type='order'), "no probe 'order'; choose from .*'recall'"),
])  # fmt: skip
def test_a_task_that_cannot_be_is_refused_in_a_sentence(probe, message):
    with pytest.raises(ValueError, match=message):
        build_probe(probe)


@pytest.mark.training
def test_softmax_solves_a_small_recall_and_hydra_does_not():
    probe, accuracy = build_probe(dict(type='recall', pairs=16)), {}
    for name in ('SoftmaxAttention', 'HydraAttention'):
        schedule = Schedule(steps=300, seconds=float('inf'))  # on a slow machine too
        found = train_probe(probe, dict(type=name), 2e-3, schedule=schedule)
        accuracy[name] = found['accuracy']['1']
    assert accuracy['SoftmaxAttention'] > 0.95
    assert accuracy['HydraAttention'] < 0.5


def a_study(**changes):
    study = read_studies()['attentions']
    return study._replace(
        probes=[dict(type='recall', pairs=4, hw_shape=[4, 4])],
        attentions={name: study.attentions[name] for name in ('Softmax', 'Hydra')},
        schedule=dict(steps=2, batch_size=2), model=dict(embed_dims=8), **changes,
    )  # fmt: skip


def ran(study, path, seeds=(0,)):
    """Lines of the runs of a call, and what failed."""
    lines = []
    runner = Runner(study, path, lines.append)
    runner.run(seeds)
    return lines, runner.failures


def add(path, study, name, probe, lr, *accuracies):
    """Runs with these accuracies, one for each seed from 0 on."""
    for seed, accuracy in enumerate(accuracies):
        append_result(path, made_up(study, name, probe, accuracy, seed, study.rates.index(lr)))


def test_a_finished_run_is_not_repeated_and_a_cut_off_one_is(tmp_path):
    path = tmp_path / 'made/probes.jsonl'
    assert len(ran(a_study(), path)[0]) == 8  # two attentions, four rates
    assert len(ran(a_study(), path, (0, 1))[0]) == 2  # at the best rate
    whole = path.read_text()
    path.write_text(whole[:-40])  # as a full disk leaves it
    with pytest.warns(UserWarning, match='line 10 of .* is not complete'):
        assert len(ran(a_study(), path, (0, 1))[0]) == 1
    with pytest.warns(UserWarning, match='line 10'):
        assert sorted(whole.splitlines())[0] in path.read_text()
        table = table_of(read_results(path), a_study())
    assert {cells[0].seeds for cells in table.rows.values()} == {2}
    assert {cells[0].rates for cells in table.rows.values()} == {4}


def test_the_best_rate_counts_and_a_solved_probe_needs_no_other(tmp_path):
    path, study = tmp_path / 'probes.jsonl', a_study()
    for lr, accuracy in zip(study.rates, (0.5, 1.0)):
        add(path, study, 'Softmax', study.probes[0], lr, accuracy)
    assert len(ran(study, path)[0]) == 4  # of Hydra alone
    table = table_of(read_results(path), study)
    assert next(iter(table.rows)) == 'Softmax' and table.accuracy('Softmax', 0) == 1


def test_where_seeds_disagree_all_rates_get_all_seeds_and_the_best_median_counts(tmp_path):
    study, path = a_study(rates=[4e-3, 8e-3]), tmp_path / 'probes.jsonl'
    runner, probe = Runner(study, path, print), study.probes[0]

    def asked():
        done = runner.results()
        return {(name, lr, seed) for name, probe, lr, seed in runner.planned([0, 1, 2])
                if key_of(settings_of(study, name, probe, lr, seed)) not in done}  # fmt: skip

    def accuracy(name):
        return table_of(read_results(path), study).accuracy(name, 0)

    add(path, study, 'Softmax', probe, 4e-3, 0.6)
    add(path, study, 'Softmax', probe, 8e-3, 0.9, 0.2, 0.3)
    add(path, study, 'Hydra', probe, 4e-3, 0.2)
    add(path, study, 'Hydra', probe, 8e-3, 0.3, 0.2, 0.1)
    assert asked() == {('Softmax', 4e-3, 1), ('Softmax', 4e-3, 2)}  # seeds of Hydra agree
    assert accuracy('Softmax') == 0.3  # of equal seeds only
    add(path, study, 'Softmax', probe, 4e-3, 0.6, 0.7, 0.5)
    assert not asked() and accuracy('Softmax') == 0.6 and accuracy('Hydra') == 0.2


def test_all_cells_come_before_further_rates_and_a_probe_is_finished_before_the_next(tmp_path):
    probes = [dict(type='recall', pairs=n, hw_shape=[4, 4]) for n in (3, 4)]
    runner = Runner(a_study()._replace(probes=probes), tmp_path / 'none.jsonl', print)
    plan = [(probe['pairs'], lr) for _, probe, lr, _ in runner.planned([0])]
    first, *others = runner.study.rates
    further = [(n, lr) for n in (3, 4) for lr in others for _ in range(2)]
    assert plan == [(n, first) for n in (3, 3, 4, 4)] + further


def test_a_larger_task_follows_one_that_is_reached_and_the_largest_is_reported(tmp_path):
    probes = [dict(type='recall', pairs=n, hw_shape=[4, 4]) for n in (2, 4, 8)]
    study = a_study(while_reached=True)._replace(probes=probes, rates=[4e-3, 8e-3])
    path = tmp_path / 'probes.jsonl'
    runner = Runner(study, path, print)

    def asked():
        return [(name, probe['pairs'], lr) for name, probe, lr, _ in runner.planned([0])]

    assert {pairs for _, pairs, _ in asked()} == {2}  # nothing is reached yet
    add(path, study, 'Softmax', probes[0], 4e-3, 1.0)
    add(path, study, 'Hydra', probes[0], 4e-3, 0.5)
    cells = {(name, pairs) for name, pairs, _ in asked()}
    assert cells == {('Softmax', 2), ('Softmax', 4), ('Hydra', 2)}
    add(path, study, 'Softmax', probes[1], 4e-3, 0.5)
    add(path, study, 'Softmax', probes[1], 8e-3, 0.92)  # the better rate opens the next task
    assert ('Softmax', 8, 4e-3) in asked() and ('Softmax', 8, 8e-3) in asked()
    table = table_of(read_results(path), study)
    assert largest(table, 'recall') == dict(Hydra=None)  # of softmax, 8 pairs were not run
    add(path, study, 'Softmax', probes[2], 4e-3, 0.2)
    assert largest(table_of(read_results(path), study), 'recall') == dict(Softmax=4, Hydra=None)
    add(path, study, 'Softmax', probes[2], 8e-3, 0.9)
    assert largest(table_of(read_results(path), study), 'recall')['Softmax'] == 8


def test_rank_correlation_is_spearmans_and_its_interval_is_certain_only_where_ranks_agree():
    names = 'abcdefgh'
    score = dict(zip(names, [0.1, 0.2, 0.2, 0.5, 0.6, 0.7, 0.8, 0.9]))  # with a tie
    other = dict(zip(names, [3, 1, 2, 5, 4, 8, 6, 7]))
    found = correlate(score, {**other, 'unknown': 1.0})
    assert found.rho == pytest.approx(0.826362, abs=1e-6)  # scipy.stats.spearmanr
    assert found.attentions == 8 and found.low < found.rho < found.high
    assert correlate(score, score).certain
    mixed = dict(zip(names, [4, 8, 1, 6, 2, 7, 3, 5]))
    assert not correlate(score, mixed).certain
    assert correlate(dict(a=1.0, b=2.0), other) is None  # too few
    assert correlate(dict.fromkeys(names, 1.0), other) is None  # no order


def test_scores_on_images_are_of_attentions_of_the_table():
    here = trained_here(ROOT / 'docs/logs/compare_attentions.json')
    assert all(0 < made.seeds_differ < 10 for made in here.values())
    for scores in (*(made.top1 for made in here.values()), *published().values()):
        assert set(scores) <= set(all_attentions()) and len(scores) >= 6
        assert all(20 < top1 < 95 for top1 in scores.values())


def test_an_attention_that_fails_is_told_and_the_others_go_on(tmp_path):
    study = a_study(rates=[1e-3])
    broken = dict(type='LaplacianAttention', num_landmarks=5)
    study = study._replace(attentions={'broken': broken, **study.attentions})
    lines, failures = ran(study, tmp_path / 'probes.jsonl')
    assert len(lines) == 3 and len(failures) == 1
    assert 'broken' in failures[0] and 'must be a square number' in failures[0]


def test_a_probe_that_does_not_fit_is_told_once_and_the_others_run(tmp_path):
    fits = dict(type='recall', pairs=4, hw_shape=[4, 4])
    probes = [dict(fits, pairs=9), fits, dict(fits, count=1)]
    study = a_study(rates=[1e-3])._replace(probes=probes)
    lines, failures = ran(study, tmp_path / 'probes.jsonl')
    assert len(lines) == 4 and len(failures) == 2  # two runs and two sentences
    assert 'needs 18 tokens for 9 pairs' in failures[0] and "'count'" in failures[1]


@pytest.mark.slow
def test_the_command_runs_lists_and_reports(tmp_path):
    out = tmp_path / 'probes.jsonl'
    assert all('num_landmarks' not in c for c in read_studies()['attentions'].attentions.values())
    listed = output_of(TOOL, '--list')
    assert all(f'  {name}: ' in listed for name in (*PROBES.module_dict, *read_studies()))
    output_of(TOOL, '--quick', '--out', out, '--tasks', 'offset', '--attentions', 'Softmax', 'XC*')
    results = [json.loads(line) for line in out.read_text().splitlines()]
    names = [one['settings']['attn_cfg']['type'] for one in results]
    assert names == ['SoftmaxAttention', 'XCAttention']
    assert [list(one['accuracy']) for one in results] == [['1', '4']] * 2
    with (ROOT / 'docs/logs/probes.jsonl').open() as log:  # all would be a picture for each study
        chosen = [line for line in log if '"Softmax' in line and '"steps": 400, "batch' in line]
    out.write_text(''.join(chosen))
    output_of(TOOL, '--report', tmp_path / 'report', '--out', out)
    assert '| Softmax | 0.999 |' in (tmp_path / 'report/probes.md').read_text()
    assert (tmp_path / 'report/probes_attentions.png').stat().st_size > 10_000
    harder = ('--quick', '--out', tmp_path / 'harder.jsonl', '--tasks', 'recall', '--options')
    printed = output_of(TOOL, *harder, 'pairs=20', '--attentions', 'Softmax')
    assert 'Softmax, recall (pairs 20)' in printed
    output_of(TOOL, *harder, 'pairs=20', '--report', tmp_path / 'hard')
    assert '| Softmax |' in (tmp_path / 'hard/probes.md').read_text()
    result = run_script(TOOL, *harder, 'pairs=65', '--attentions', 'Softmax')
    assert result.returncode == 1 and result.stdout.count('lower pairs') == 1


@pytest.mark.parametrize(('words', 'message'), [
    (['--attentions', 'Nothing*'], "no attention of the study matches 'Nothing*'"),
    (['--tasks', 'order'], "has no probe 'order'; its probes are"),
    (['--tasks', 'recal'], "has no probe 'recal' (did you mean 'recall'?); its probes are"),
    (['--report', 'folder', '--out', 'missing.jsonl'], 'missing.jsonl has no results; run'),
    (['--report', 'folder', '--out', ROOT / 'docs/logs/probes.jsonl', '--rates', '9'], 'none of'),
    (['--report', ROOT / 'README.md'], 'README.md is a file; name a folder'),
])  # fmt: skip
def test_a_wrong_call_is_one_sentence(words, message):
    assert message in refusal_of(TOOL, *words)


def made_up(study, name, probe, accuracy, seed=0, rate=0):
    settings = settings_of(study, name, probe, study.rates[rate], seed)
    return dict(
        settings=settings, key=key_of(settings), accuracy={'1': accuracy, '4': accuracy}, loss=1.0,
        steps=2, seconds=1.0,
    )  # fmt: skip


def made_table(accuracies):
    """Results of the main study, and their table, with accuracies by seed, alike in all columns."""
    study = read_studies()['attentions']
    results = [made_up(study, name, probe, accuracy, seed)
               for name, of_seeds in accuracies.items()
               for seed, accuracy in enumerate(of_seeds) for probe in study.probes]  # fmt: skip
    return results, table_of(results, study)


def test_the_cheapest_that_solve_tasks_are_named_those_with_each_seed_first():
    tool = load_tool('.dev_scripts/make_which_attention.py')
    _, table = made_table({
        'Linear': (0.99, 0.99, 0.1), 'Pola': (1.0, 1.0), 'Softmax': (1.0,), 'Hydra': (0.3,),
        'Flow': (0.3,),  # without a training on images
    })  # fmt: skip
    assert table.seeds_disagree('Linear', 0) and not table.seeds_disagree('Pola', 0)
    times = dict(Hydra=1, Linear=2, Softmax=9, Pola=3, Flow=1)
    costs = {name: {'ms 224²': ms, 'ms 1024²': ms, 'MB 1024²': 1.0} for name, ms in times.items()}
    images = dict(textures=TrainedHere(dict(Hydra=80.0, Linear=79.5, Pola=70.0, Softmax=79), 1.0))
    facts = {name: dict(export=float(name != 'Hydra')) for name in costs}
    rows = dict(
        line.strip('| ').split(' | ')[:2]
        for line in tool.cheapest(table, costs, images, facts).splitlines()[2:]
    )
    assert rows['recall; one of many'] == 'Pola (3, 1), Softmax (9, 1), Linear† (2, 1)'
    assert rows['textures'] == 'Hydra (1), Linear (2), Softmax (9)'
    assert rows['textures; export'] == 'Linear (2), Softmax (9)'


def test_a_cell_of_several_seeds_has_their_ends():
    page = load_tool('.dev_scripts/probe_tables.py')
    _, table = made_table({'Pola': (0.6, 0.5, 0.9), 'Hydra': (0.8,)})
    cells = [page.with_ends(table, name, 0) for name in ('Pola', 'Hydra', 'Linformer')]
    assert cells == ['60 (50 to 90)', '80', '–']


def test_a_table_is_made_anew_between_its_comments_and_the_sentences_stay():
    marked = load_tool('.dev_scripts/marked_tables.py')
    for text in ('<!-- table: a -->\nold\n', 'old <!-- end of table -->'):
        with pytest.raises(ValueError, match='put both around a table'):
            marked.with_tables(text, 'table', str)
    page = 'One.\n<!-- table: {0} -->\n\n{1}\n\n<!-- end of table -->\nTwo.\n'
    old, new = (page.format('a', of) for of in ('old', 'A'))
    assert marked.with_tables(old * 2, 'table', str.upper) == new * 2


def test_attentions_without_all_columns_stand_last_and_the_first_seed_alone_decides_the_largest():
    results, table = made_table({'Softmax': (0.5,), 'Pola': (1.0,), 'Hydra': (1.0,)})
    assert list(table.rows)[-1] == 'Softmax'
    kept = [made for made in results
            if made['settings']['attn_cfg']['type'] != 'HydraAttention'
            or made['settings']['probe']['type'] == 'recall']  # fmt: skip
    assert list(table_of(kept, table.study).rows) == ['Pola', 'Softmax', 'Hydra']
    probes = [dict(type='recall', pairs=n) for n in (4, 8)]
    study = a_study(while_reached=True)._replace(probes=probes, rates=[4e-3])
    results = [made_up(study, 'Softmax', probe, 0.1 if seed else 0.95, seed)
               for seed in range(3) for probe in probes]  # fmt: skip
    assert largest(tables(results, dict(largest=study))['largest'], 'recall') == dict(Softmax=8)


def test_count_is_tested_at_any_scale_on_as_many_maps():
    probe = build_probe(dict(type='count', values=4, scales=[1, 2, 16], hw_shape=[4, 4]))
    sizes = []

    def spy(size, generator, scale=1):
        sizes.append((scale, size))
        return type(probe).batch(probe, size, generator, scale)

    probe.batch = spy
    found = train_probe(probe, dict(type='LinearAttention'), 1e-3,
                        schedule=Schedule(steps=1, batch_size=2), embed_dims=8)  # fmt: skip
    assert list(found['accuracy']) == ['1', '2', '16']
    maps = {scale: sum(n for s, n in sizes[1:] if s == scale) for scale in (1, 2, 16)}
    assert set(maps.values()) == {256}
    for scales in ([2, 4], [1, 3]):
        with pytest.raises(ValueError, match=r'scales must be 1 and some of 2, 4, 16 and 64'):
            build_probe(dict(type='count', scales=scales))
