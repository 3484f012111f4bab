"""Probes are the tasks that they say, tell attentions apart, and keep finished runs."""

import pytest
import torch
from conftest import ROOT, output_of, refusal_of, run_script

from mmlaplace.lab.probes import PROBES, ProbeModel, Schedule, train_probe
from mmlaplace.lab.probes.report import largest, table_of
from mmlaplace.lab.probes.results import append_result, key_of, read_results
from mmlaplace.lab.probes.study import Runner, read_studies, settings_of
from mmlaplace.lab.probes.tasks import UNASKED, build_probe

TOOL = 'mmlaplace', 'compare', 'probes'


def drawn(name, size=16, seed=0, scale=1, **options):
    probe = build_probe(dict(type=name, **options))
    return probe, probe.batch(size, torch.Generator().manual_seed(seed), scale)


def test_the_registry_of_probes_does_not_look_for_a_toolbox(monkeypatch):
    """mmengine would say that mmlaplace is not installed, and to install it by pip."""
    said = []
    monkeypatch.setattr('mmengine.logging.print_log', lambda text, *_, **__: said.append(text))
    monkeypatch.setattr(PROBES, '_imported', False)
    assert PROBES.get('recall') and not any('not installed' in text for text in said)


@pytest.mark.parametrize(
    ('name', 'options', 'stored', 'asked'),
    [
        ('recall', dict(pairs=16), 16, 16),
        ('recall', dict(pairs=64), 64, 64),
        ('noise', dict(pairs=8, noise=12), 104, 8),
        ('magnitude', dict(pairs=8), 16, 16),
    ],
)
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


@pytest.mark.parametrize(
    ('probe', 'message'),
    [
        (dict(type='recall', pairs=65), '130 tokens for 65 pairs and 65 .* has 128; lower pairs'),
        (dict(type='noise', noise=15), 'Noise needs 136 tokens.*lower noise'),
        (dict(type='offset', right=16), 'from 0 to 7 and 15 .* got 3 and 16'),
        (dict(type='count', values=0), 'values must be positive, got 0'),
        (dict(type='count', scales=[2, 4]), 'scales must be 1 and some of 2, 4, 16 and 64'),
        (dict(type='count', scales=[1, 3]), 'scales must be 1 and some of 2, 4, 16 and 64'),
        (dict(type='order'), "no probe 'order'; choose from .*'recall'"),
    ],
)
def test_a_task_that_cannot_be_is_refused_in_a_sentence(probe, message):
    with pytest.raises(ValueError, match=message):
        build_probe(probe)


@pytest.mark.training
@pytest.mark.thorough
def test_softmax_solves_a_small_recall_and_hydra_does_not():
    probe, accuracy = build_probe(dict(type='recall', pairs=16)), {}
    for name in ('SoftmaxAttention', 'HydraAttention'):
        schedule = Schedule(steps=300, seconds=float('inf'))  # on a slow machine too
        found = train_probe(probe, dict(type=name), 2e-3, schedule=schedule)
        accuracy[name] = found['accuracy']['1']
    assert accuracy['SoftmaxAttention'] > 0.95
    assert accuracy['HydraAttention'] < 0.5


def test_the_device_reaches_the_model_the_maps_and_the_settings(tmp_path, monkeypatch):
    probe, few = build_probe(dict(type='recall', pairs=4, hw_shape=[4, 4])), Schedule(1, 2)
    with pytest.raises(RuntimeError, match='meta'):  # there is no value of a tensor there
        train_probe(probe, dict(type='LinearAttention'), 1e-3, schedule=few, device='meta')
    study = a_study(device='meta')
    settings = settings_of(study, 'Softmax', study.probes[0], 0.1, 0)
    assert settings['device'] == 'meta'
    assert 'device' not in settings_of(a_study(), 'Softmax', study.probes[0], 0.1, 0)
    runner = Runner(study._replace(rates=[0.1]), tmp_path / 'a.jsonl', lambda line: None)
    runner.run([0])
    assert len(runner.failures) == 2 and all('meta' in text for text in runner.failures)

    def seen(model, batch):
        places = {tensor.device.type for tensor in (*batch[:-1], *model.parameters())}
        raise RuntimeError(f'{places}, {batch.hw_shape}')

    monkeypatch.setattr(ProbeModel, 'forward', seen)
    with pytest.raises(RuntimeError, match=r"^\{'meta'\}, \(4, 4\)$"):
        train_probe(probe, dict(type='LinearAttention'), 1e-3, schedule=few, device='meta')


def a_study(**changes):
    study = read_studies()['attentions']
    return study._replace(
        probes=[dict(type='recall', pairs=4, hw_shape=[4, 4])],
        attentions={name: study.attentions[name] for name in ('Softmax', 'Hydra')},
        schedule=dict(steps=2, batch_size=2),
        model=dict(embed_dims=8),
        **changes,
    )


def ran(study, path, seeds=(0,)):
    """Lines of the runs of a call, and what failed."""
    lines = []
    runner = Runner(study, path, lines.append)
    runner.run(seeds)
    return lines, runner.failures


def add(path, study, name, probe, lr, *accuracies):
    """Runs with these accuracies, one for each seed from 0 on."""
    for seed, accuracy in enumerate(accuracies):
        settings = settings_of(study, name, probe, lr, seed)
        made = dict(
            settings=settings, key=key_of(settings), accuracy={'1': accuracy, '4': accuracy}
        )
        append_result(path, dict(made, loss=1.0, steps=2, seconds=1.0))


def asked(study, path, seeds=(0,)):
    """What a call would run."""
    runner = Runner(study, path, print)
    return {
        (name, probe['pairs'], lr, seed)
        for name, probe, lr, seed in runner.planned(seeds)
        if key_of(settings_of(study, name, probe, lr, seed)) not in runner.results()
    }


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
    probe = study.probes[0]

    def accuracy(name):
        return table_of(read_results(path), study).accuracy(name, 0)

    add(path, study, 'Softmax', probe, 4e-3, 0.6)
    add(path, study, 'Softmax', probe, 8e-3, 0.9, 0.2, 0.3)
    add(path, study, 'Hydra', probe, 4e-3, 0.2)
    add(path, study, 'Hydra', probe, 8e-3, 0.3, 0.2, 0.1)
    # Seeds of Hydra agree.
    assert asked(study, path, [0, 1, 2]) == {('Softmax', 4, 4e-3, 1), ('Softmax', 4, 4e-3, 2)}
    assert accuracy('Softmax') == 0.3  # of equal seeds only
    add(path, study, 'Softmax', probe, 4e-3, 0.6, 0.7, 0.5)
    assert not asked(study, path, [0, 1, 2])
    assert accuracy('Softmax') == 0.6 and accuracy('Hydra') == 0.2


def test_a_larger_task_follows_one_that_is_reached_and_the_largest_is_reported(tmp_path):
    probes = [dict(type='recall', pairs=n, hw_shape=[4, 4]) for n in (2, 4, 8)]
    study = a_study(while_reached=True)._replace(probes=probes, rates=[4e-3, 8e-3])
    path = tmp_path / 'probes.jsonl'
    assert {pairs for _, pairs, *_ in asked(study, path)} == {2}  # nothing is reached yet
    add(path, study, 'Softmax', probes[0], 4e-3, 1.0)
    add(path, study, 'Hydra', probes[0], 4e-3, 0.5)
    assert asked(study, path) == {
        ('Softmax', 4, 4e-3, 0),
        ('Softmax', 4, 8e-3, 0),
        ('Hydra', 2, 8e-3, 0),
    }
    add(path, study, 'Softmax', probes[1], 4e-3, 0.5)
    add(path, study, 'Softmax', probes[1], 8e-3, 0.92)  # the better rate opens the next task
    assert {('Softmax', 8, 4e-3, 0), ('Softmax', 8, 8e-3, 0)} <= asked(study, path)
    add(path, study, 'Softmax', probes[2], 4e-3, 0.2)
    assert largest(table_of(read_results(path), study), 'recall') == dict(Softmax=4, Hydra=None)


def test_what_fails_is_told_once_and_the_others_go_on(tmp_path):
    fits = dict(type='recall', pairs=4, hw_shape=[4, 4])
    broken = dict(type='LaplacianAttention', num_landmarks=5)
    study = a_study(rates=[1e-3])
    study = study._replace(
        probes=[dict(fits, pairs=9), fits, dict(fits, count=1)],
        attentions={'broken': broken, **study.attentions},
    )
    lines, failures = ran(study, tmp_path / 'probes.jsonl')
    told = 'needs 18 tokens for 9 pairs', 'must be a square number', "'count'"
    assert len(failures) == 3 and len(lines) == 5  # two runs and three sentences
    assert all(any(words in failure for failure in failures) for words in told)


@pytest.mark.slow
def test_the_command_runs_lists_and_reports(tmp_path):
    out = tmp_path / 'probes.jsonl'
    assert all('num_landmarks' not in c for c in read_studies()['attentions'].attentions.values())
    listed = output_of(*TOOL, '--list')
    assert all(f'  {name}: ' in listed for name in (*PROBES.module_dict, *read_studies()))
    output_of(*TOOL, '--quick', '--out', out, '--tasks', 'offset', '--attentions', 'Softmax', 'XC*')
    results = {one['settings']['attn_cfg']['type']: one for one in read_results(out)}
    assert list(results) == ['SoftmaxAttention', 'XCAttention']
    assert all(list(one['accuracy']) == ['1', '4'] for one in results.values())
    with (ROOT / 'docs/logs/probes.jsonl').open() as log:  # all would be a picture for each study
        chosen = [line for line in log if '"Softmax' in line and '"steps": 400, "batch' in line]
    out.write_text(''.join(chosen))
    output_of(*TOOL, '--report', tmp_path / 'report', '--out', out)
    assert '| Softmax | 0.999 |' in (tmp_path / 'report/probes.md').read_text()
    assert (tmp_path / 'report/probes_attentions.png').stat().st_size > 10_000
    harder = (
        '--quick',
        '--out',
        tmp_path / 'harder.jsonl',
        '--tasks',
        'recall',
        '--attentions',
        'Softmax',
        '--options',
    )
    assert 'Softmax, recall (pairs 20)' in output_of(*TOOL, *harder, 'pairs=20')
    output_of(*TOOL, *harder, 'pairs=20', '--report', tmp_path / 'hard')
    assert '| Softmax |' in (tmp_path / 'hard/probes.md').read_text()
    result = run_script(*TOOL, *harder, 'pairs=65')
    assert result.returncode == 1 and result.stdout.count('lower pairs') == 1


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['--attentions', 'Nothing*'], "no attention of the study matches 'Nothing*'"),
        (['--tasks', 'order'], "has no probe 'order'; its probes are"),
        (['--tasks', 'recal'], "has no probe 'recal' (did you mean 'recall'?); its probes are"),
        (['--report', 'folder', '--out', 'missing.jsonl'], 'missing.jsonl has no results; run'),
        (
            ['--report', 'folder', '--out', ROOT / 'docs/logs/probes.jsonl', '--rates', '9'],
            'none of',
        ),
        (['--report', ROOT / 'README.md'], 'README.md is a file; name a folder'),
    ],
)
def test_a_wrong_call_is_one_sentence(words, message):
    assert message in refusal_of(*TOOL, *words)
