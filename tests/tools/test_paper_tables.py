"""The papers' tables in configs/tables: rows build, name what a run writes, and agree."""

import copy
import functools
import re
import statistics
import warnings
from pathlib import Path
from unittest import mock

import pytest
import torch
import yaml
from conftest import ROOT, toolbox_model
from mmengine.registry import MODELS
from reproduce_modules import paper_tables, tool

from mmlaplace.commands.toolbox_scripts import PACKAGES

TABLES = paper_tables.read_tables()
RUNS = [(table, row, run) for table in TABLES for row in table.rows for run in row.runs]
OWN = [row for table in TABLES for row in table.rows if row.kind == 'own']
# Metafiles have these names and units.
METAFILE = {
    'Top 1 Accuracy': (('top-1',), 1),
    'box AP': (('box AP',), 1),
    'mask AP': (('mask AP',), 1),
    'mIoU': (('mIoU',), 1),
    'Parameters': (('parameters',), 1e6),
    'MACs': (('MACs', 'MACs with kernels'), 1e9),
}
# Where a table has another value than the metafile: why.
DIFFERENT = {
    ('soft-tiny_8xb128_in1k', 'softpp_table_2'): "79.3 is SOFT's own paper, 80.9 SOFT++'s",
    ('soft-tiny_8xb128_in1k', 'softpp_table_3'): "79.3 is SOFT's own paper, 80.9 SOFT++'s",
    ('softpp-small_8xb128_in1k', 'softpp_table_11'): 'the paper prints 82.6 and 82.4',
    ('softpp-tiny_8xb128_in1k', 'softpp_table_10'): 'it prints 13.07 M and 2.0 G',
}
# Published models that are in none of the three papers' tables: SOFT's own paper has them.
OF_SOFT = {f'soft-{size}_8xb128_in1k' for size in ('small', 'medium', 'large', 'huge')}
# And the authors' code has a normalised one without a figure of its accuracy.
OF_SOFT |= {'soft-huge-norm_8xb128_in1k'}
# An option of rows that changes none of the published counts of a metafile.
GROWING = {'model.backbone.attn_cfg.num_landmarks': None}


def each_table(*fast):
    return pytest.mark.parametrize(
        'table',
        [
            pytest.param(t, id=t.name, marks=[] if t.name in fast else pytest.mark.slow)
            for t in TABLES
        ],
    )


@functools.cache
def built(config: str, options: str) -> torch.nn.Module:
    """The model of a config of a table, without memory."""
    cfg = LOADED[config, options]
    cfg = copy.deepcopy(cfg)
    cfg.model.backbone.pop('init_cfg', None)
    cfg.model.pop('pretrained', None)
    # Backbones of the toolboxes ask tensors for values while they are built.
    if '::' in config or MODELS.get(cfg.model.backbone.type) is None:
        # Random weights would take most of the time.
        left_alone = dict.fromkeys(('uniform_', 'normal_'), lambda tensor, *_, **__: tensor)
        with warnings.catch_warnings(), mock.patch.multiple(torch.Tensor, **left_alone):
            warnings.simplefilter('ignore')
            return toolbox_model(cfg).to('meta')
    with torch.device('meta'):
        return toolbox_model(cfg)


LOADED = {}


def model_of(spec) -> torch.nn.Module:
    key = (spec.config, repr(spec.options))
    LOADED.setdefault(key, spec.load())
    return built(*key)


def logged(cfg) -> set:
    """The keys that the evaluators of a config write."""
    evaluators = cfg.test_evaluator
    keys = set()
    for evaluator in evaluators if isinstance(evaluators, list) else [evaluators]:
        if evaluator['type'] == 'Accuracy':
            keys.add('accuracy/top1')
        elif evaluator['type'] == 'CocoMetric':
            metrics = evaluator['metric']
            for metric in [metrics] if isinstance(metrics, str) else metrics:
                suffixes = ('', '_50', '_75', '_s', '_m', '_l')
                keys |= {f'coco/{metric}_mAP{suffix}' for suffix in suffixes}
        elif evaluator['type'] == 'IoUMetric':
            keys |= set(evaluator['iou_metrics'])
    return keys


def test_all_rows_of_the_papers_own_methods_are_there_and_produced():
    assert len(OWN) == 105
    assert not [row.name for row in OWN if row.why_not]
    covered = sum(row.covered for row in OWN)
    waiting = sum(bool(row.waits_for) for row in OWN)
    assert covered + waiting == len(OWN)
    assert covered == 105


def test_the_page_has_the_counts():
    page = (ROOT / 'docs/reproduce.md').read_text()
    assert tool.coverage_page() in page, 'run python tools/reproduce.py --list --markdown'


def test_every_row_has_a_command_or_a_reason_that_tells_it_from_others():
    rows = {(table.name, row.name): row for table in TABLES for row in table.rows}
    lacking = {name: row for name, row in rows.items() if row.kind == 'baseline' and row.reason}
    for name, row in rows.items():
        commands = [run.full or run.tool for run in row.runs]
        assert bool(row.reason) != (bool(commands) and all(commands)), name
    assert len(lacking) == 33
    for name, row in lacking.items():
        assert len(row.reason.split()) > 5, name
        # It names what is missing, and not that something is.
        assert re.search('[A-Z]', row.reason), name
    page = (ROOT / 'docs/reproduce.md').read_text()
    assert all(row.reason in page and row.label in page for row in lacking.values())


def test_rows_of_options_have_a_twin_and_are_not_counted_as_a_papers():
    rows = {row.name: row for table in TABLES for row in table.rows if row.kind == 'option'}
    assert {'soft-svd', 'pola-no-power', 'laplacian-without-whitening'} <= set(rows)
    for row in rows.values():
        assert all(run.mini and run.trained for run in row.runs), row.name
    assert 'options' not in tool.coverage_page() and 'soft_released' not in tool.coverage_page()


def test_sequences_are_tested_at_their_best_in_validation():
    """As the codes of the authors do, where the figures of a table are of Long Range Arena."""
    for table in TABLES:
        sequences = any('/lra/' in run.full.config for row in table.rows for run in row.runs
                        if run.full)  # fmt: skip
        kept = {run.checkpoint for row in table.rows for run in row.runs}
        assert kept == ({'best'} if sequences else {'last'}), table.name


def test_columns_that_are_all_measured_need_no_training():
    architecture = paper_tables.read_table('softpp_table_1').row('small').runs[0]
    assert not architecture.trained
    assert paper_tables.read_table('softpp_table_2').row('soft').runs[0].trained


def test_rows_are_named_once_and_say_what_they_are():
    for table in TABLES:
        assert table.title and table.paper and table.place
        assert [row.line for row in table.rows] == list(range(1, len(table.rows) + 1))
        for row in table.rows:
            assert row.name == row.name.strip().lower() and ' ' not in row.name
            assert row.waits_for or row.why_not or all(run.full or run.tool for run in row.runs)


@pytest.mark.parametrize('table', TABLES, ids=lambda table: table.name)
def test_configs_are_files_and_own_rows_have_a_twin(table):
    for row in table.rows:
        # Of the tasks of Long Range Arena, ListOps and Pathfinder have small data here.
        sequences = any('/lra/' in run.full.config for run in row.runs if run.full)
        if row.covered and (row.kind == 'own' or sequences):
            assert any(r.mini or r.tool for r in row.runs), row.name
        for run in row.runs:
            for scale in paper_tables.SCALES:
                assert run.spec(scale) is None or run.spec(scale).path().is_file()
            if row.kind == 'own' and row.covered:
                assert run.mini or run.tool or run.full.config.startswith('configs/lra/'), row.name
                assert not run.mini or re.search('_mini[_.]', run.mini.config)
            if run.weights is not None:
                _, source = paper_tables.find_row(run.weights.row)
                assert source.covered and source.runs[0].full is not None, row.name


@each_table('softpp_table_9')
def test_rows_build_and_name_scores_that_their_runs_write(table):
    for row in table.rows:
        for run in row.runs:
            scores = {paper_tables.METRICS[name].log for name in run.published} - {None}
            for scale in paper_tables.SCALES:
                spec = run.spec(scale)
                if spec is not None:
                    model_of(spec)
                    cfg = LOADED[spec.config, repr(spec.options)]
                    assert cfg.default_scope in PACKAGES
                    assert scores <= logged(cfg), f'{row.name}, {scale}'


@each_table('softpp_table_6')
def test_weights_of_another_row_fit(table):
    for row in table.rows:
        for run in row.runs if row.covered else ():
            _, source = paper_tables.find_row(run.weights.row) if run.weights else (None, None)
            for scale in paper_tables.SCALES if source else ():
                specs = source.runs[0].spec(scale), run.spec(scale)
                if None in specs:
                    continue
                given, taken = (dict(model_of(s).backbone.named_parameters()) for s in specs)
                missing = [name for name in given if name not in taken]
                # A detector without the map of a stage has no norm for it.
                assert not missing, f'{row.name}, {scale}: {missing}'
                other = [n for n, p in given.items() if p.shape != taken[n].shape]
                # These are resized for other images and windows.
                resized = ('map', 'relative_bias', 'key_positions')
                other = [n for n in other if not n.endswith(resized)]
                assert not other, f'{row.name}, {scale}: {other}'


def test_published_means_are_means():
    means = 0
    for table in TABLES:
        for row in table.rows:
            for name, mean in row.averages.items():
                values = [run.published[name] for run in row.runs]
                # The papers print two digits, of memory one. PolaFormer's Table 6 prints a mean
                # of throughputs as 915.60 that is 915.59.
                assert statistics.mean(values) == pytest.approx(mean, abs=0.06), row.label
                means += 1
    assert means == 6 + 18 + 3 * 7


def test_the_page_of_sequences_prints_what_the_tables_have():
    found, columns = set(), []
    for line in (ROOT / 'docs/lra.md').read_text().splitlines():
        cells = [cell.strip() for cell in line.strip('|').split('|')]
        if cells[:2] == ['row', 'config']:
            columns = [cell.lower() for cell in cells[2:]]
        elif len(cells) == len(columns) + 2 and '_as-' in cells[1]:
            config = re.match(r'`\*_(.+?)`', cells[1]).group(1)
            found |= {(f'{task}_{config}', float(value)) for task, value in zip(columns, cells[2:])}
    tables = {
        (Path(run.full.config).stem, run.published['top-1'])
        for table, _, run in RUNS
        if table.name in ('softpp_table_12', 'polaformer_table_4') and run.full
    }
    assert found == tables


def test_metafiles_have_the_values_of_the_tables():
    models = [
        entry
        for file in sorted((ROOT / 'configs').rglob('metafile.yml'))
        for entry in yaml.safe_load(file.read_text())['Models']
        if entry['Metadata']['Published']
    ]
    found, used = set(), set()
    for entry in models:
        published = entry['Metadata']['Published']
        for table, _, run in RUNS:
            if run.full is None or run.full.config != entry['Config']:
                continue
            if run.full.options not in ({}, GROWING):
                continue
            found.add(entry['Name'])
            values = [
                (name, value / METAFILE[name][1], run.published[column])
                for name, value in published.items()
                for column in METAFILE[name][0]
                if column in run.published
            ]
            different = [v for v in values if v[1] != pytest.approx(v[2])]
            if different:
                assert (entry['Name'], table.name) in DIFFERENT, f'{table.name}: {different}'
                used.add((entry['Name'], table.name))
    assert used == set(DIFFERENT)
    assert {entry['Name'] for entry in models} - found == OF_SOFT


@pytest.mark.slow
def test_landmarks_of_softpp_table_6_grow_with_the_image():
    counts = {}
    for name, side in (('softpp-224', 48), ('softpp-384', 80), ('softpp-512', 112)):
        spec = paper_tables.read_table('softpp_table_6').row(name).runs[0].mini
        backbone = MODELS.build(spec.load().model.backbone).eval()
        seen = []
        backbone.stages[0]['blocks'][0].attn.landmarks.register_forward_hook(
            lambda module, inputs, output, seen=seen: seen.append(output.shape[2])
        )
        with torch.no_grad():
            backbone(torch.zeros(1, 3, side, side))
        counts[name] = seen[0]
    assert list(counts.values()) == [16, 36, 81]


def test_a_table_says_which_checkpoint_is_tested():
    assert paper_tables.parse_table('good', BAD).rows[0].runs[0].checkpoint == 'last'
    with pytest.raises(paper_tables.TableError, match="one of .*'best'.* got 'first'"):
        paper_tables.parse_table('bad', dict(BAD, checkpoint='first'))


BAD = {
    'title': 'A table', 'paper': 'A paper', 'place': 'Table 1',
    'rows': [{'name': 'a', 'kind': 'own', 'config': 'configs/a.py', 'published': {'top-1': 1.0}}],
}  # fmt: skip


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (dict(kind='ours'), "row 'a': kind must be one of .*'own'.* got 'ours'"),
        (dict(configs='b'), r"row 'a': unknown \['configs'\]"),
        (dict(published={'top-2': 1.0}), r"row 'a', published: unknown \['top-2'\].*'top-1'"),
        (dict(config=None), "row 'a': give config, tool, waits_for or why_not"),
        (dict(waits_for='x', why_not='y'), "row 'a': give waits_for or why_not, not both"),
        (dict(weights={'row': 'b', 'use': 'all'}), "use must be one of .*'backbone'.* got 'all'"),
        (dict(weights={'row': 'b'}), r"weights: unknown \[\], missing \['use'\]"),
        (dict(mini='b'), "row 'a', mini: expected a mapping, got 'b'"),
        (dict(runs=[]), "row 'a': give runs, or config, published of its one run, not both"),
    ],
)
def test_what_a_table_must_not_say_is_quoted(change, message):
    content = copy.deepcopy(BAD)
    content['rows'][0].update(change)
    with pytest.raises(paper_tables.TableError, match=message):
        paper_tables.parse_table('bad', content)


def test_unknown_and_doubled_names_are_quoted():
    content = copy.deepcopy(BAD)
    content['rows'] *= 2
    with pytest.raises(paper_tables.TableError, match='more than one row is named a'):
        paper_tables.parse_table('bad', content)
    with pytest.raises(paper_tables.TableError, match="no table 'x'; there are: .*softpp_table_2"):
        paper_tables.read_table('x')
    with pytest.raises(paper_tables.TableError, match="no row 'x'; its rows are: .*linformer"):
        paper_tables.read_table('softpp_table_2').row('x')
    spec = paper_tables.Spec('configs/none.py', {})
    with pytest.raises(paper_tables.TableError, match="no config 'configs/none.py'"):
        spec.path()
    with pytest.raises(paper_tables.TableError, match='no config .mmpretrain::none.py'):
        paper_tables.Spec('mmpretrain::none.py', {}).path()


def test_later_options_see_earlier_ones():
    spec = paper_tables.read_table('softpp_table_8').row('vit-small-16').runs[0].full
    cfg = spec.load()
    assert cfg.model.backbone.type == 'ViT' and cfg.model.neck is None
    assert cfg.model.head.in_channels == 768
    assert spec.load().model == cfg.model  # and the cached config stays as it is
