"""``python -m mmlaplace compare``: bad input, plans, frames, configs, the page, and a short run.

The contract passes for the attentions of the library, and finds planted faults at their line.
"""

import inspect
import json
import re
import shutil
import sys

import broken_attentions
import pytest
from conftest import ROOT, imports_forgotten, registered
from mmengine.config import Config
from mmengine.registry import MODELS

from mmlaplace.__main__ import main
from mmlaplace.lab.compare import command
from mmlaplace.lab.compare.configs import BETWEEN, RECIPES, write_configs
from mmlaplace.lab.compare.contract import FAILED, NOT_CHECKED, NOT_PROMISED, check_contract
from mmlaplace.lab.compare.frames import SHARED, candidate
from mmlaplace.lab.compare.plan import CUTS, Plan, at_once, fitting
from mmlaplace.lab.compare.points import POINTS
from mmlaplace.model_zoo import build_model
from mmlaplace.models import BaseAttention

FILE = (ROOT / 'docs/tutorials/add_attention.md').read_text()
ELU = re.search(r'```python\n(.*?)```', FILE, re.DOTALL)[1]
OURS = [name for name in registered(BaseAttention) if name != 'WindowAttention']


@pytest.fixture(autouse=True)
def _place(tmp_path, monkeypatch):
    """A folder with the tutorial's file, whose class is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'elu_attention.py').write_text(ELU)
    with imports_forgotten(tmp_path):
        yield


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob('*') if path.is_file())


HEAD = 'from mmlaplace.models import QKVAttention\n'
MIX = '    def mix(self, q, k, v, hw_shape):\n        return v\n'


@pytest.mark.parametrize(
    ('content', 'words', 'sentence'),
    [
        ('', 'a.py:Mine', r"a\.py has no class 'Mine'; its classes are \[\]"),
        ('class Min: pass', 'a.py:Mine', r"no class 'Mine' \(did you mean 'Min'\?\)"),
        (
            'class Mine: pass',
            'a.py:Mine',
            r'no attention: derive it from mmlaplace\.models\.QKVAtt',
        ),
        (
            HEAD + 'class Mine(QKVAttention): pass',
            'a.py:Mine',
            'Mine of a.py has no method mix; write',
        ),
        (
            'x = (\n',
            'a.py:Mine',
            r"a\.py:1 cannot be imported \(SyntaxError: '\(' was never closed\)",
        ),
        (
            HEAD + f'class SOFTAttention(QKVAttention):\n{MIX}',
            'a.py:SOFTAttention',
            'another one of this name is registered; rename your class',
        ),
        ('', 'a.py', r'a file without a class; write a\.py:MyAttention'),
        ('', 'b.py:Mine', r'there is no file .*b\.py.*check the path'),
        ('', 'no.module:Mine', 'there is no module no.module; put its folder into PYTHONPATH'),
        ('', 'Softmaxx', r"there is no attention 'Softmaxx' \(did you mean 'Softmax'\?\)"),
        ('', 'elu_attention.py:EluAttention --with Sotf', r"'Sotf' \(did you mean 'SOFT'\?"),
        ('', 'SOFT --with SOFT', '--with names no attention but yours'),
    ],
)
def test_bad_input_is_a_sentence_and_writes_nothing(content, words, sentence, tmp_path, capsys):
    (tmp_path / 'a.py').write_text(content)
    before, classes = files(tmp_path), dict(MODELS.module_dict)
    assert main(['compare', *words.split()]) == 2
    error = capsys.readouterr().err
    assert re.search(sentence, error) and len(error.strip().splitlines()) == 1
    assert [f for f in files(tmp_path) if '__pycache__' not in f] == before
    if 'with' not in words:
        assert MODELS.module_dict == classes


def test_a_constructor_that_needs_more_fails_and_says_where(tmp_path, capsys):
    init = '    def __init__(self, *args, order, **kwargs):\n        super().__init__()\n'
    (tmp_path / 'a.py').write_text(f'{HEAD}class Mine(QKVAttention):\n{init}{MIX}')
    assert main(['compare', 'a.py:Mine', '--contract']) == 1
    assert re.search("FAILED +build .*missing 1 required .*'order'", capsys.readouterr().out)
    assert main(['compare', 'a.py:Mine']) == 1
    assert 'mend the points above' in capsys.readouterr().err
    assert not (tmp_path / 'work_dirs').exists()


def test_a_folder_with_other_results_is_refused(tmp_path, capsys):
    out = tmp_path / 'out'
    out.mkdir()
    (out / 'notes.txt').write_text('mine')
    words = ['compare', 'elu_attention.py:EluAttention', '--out', 'out']
    assert main(words) == 2 and 'files of something else' in capsys.readouterr().err
    (out / 'settings.json').write_text('{"attention": "Other"}')
    assert main(words) == 2 and '--force starts again' in capsys.readouterr().err
    assert files(out) == ['notes.txt', 'settings.json']


def test_a_budget_leaves_out_the_least_important_first():
    def estimate(plan):
        return {'trainings': 60 * plan.seeds * len(plan.rates) * (1 + len(plan.backbones))}

    assert fitting(float('inf'), estimate) == (Plan(), [])
    plan, left_out = fitting(60 * 2 * 4 * 3, estimate)
    assert (plan.seeds, len(plan.rates), plan.epochs) == (2, 4, 4)  # each keeps its own rate
    assert left_out == [CUTS[0][1], CUTS[1][1], CUTS[2][1]]
    _, left_out = fitting(60, estimate)
    # A later cut of the same part says it all.
    assert 'training on images' in left_out and 'training in Swin' not in left_out
    with pytest.raises(ValueError, match='about 1 minutes; give --budget 2'):
        fitting(59, estimate)


def test_a_plan_says_what_a_budget_buys_and_runs_nothing(tmp_path, monkeypatch, capsys):
    def minutes_of(plan):
        return {'small tasks': 600 * plan.seeds * len(plan.tasks)}

    monkeypatch.setattr(command, 'Estimate', lambda *about: minutes_of)
    before = files(tmp_path)
    words = ['compare', 'elu_attention.py:EluAttention', '--with', 'Softmax', '--plan']
    assert main(words) == 0
    whole = capsys.readouterr().out
    assert '3 seeds' in whole and 'in Swin, DeiT and PVT; 4 epochs' in whole
    assert 'left out' not in whole and 'contract' not in whole
    assert main([*words, '--budget', '61']) == 0
    less = capsys.readouterr().out
    assert 'at 224² and 512²' in less and 'with 1 seed\n' in less and 'left out: seeds: 1' in less
    assert main([*words, '--budget', '1']) == 2 and 'the smallest plan' in capsys.readouterr().err
    assert [f for f in files(tmp_path) if '__pycache__' not in f] == before


def test_what_one_folder_of_configs_cannot_hold_is_refused(tmp_path, capsys):
    other = tmp_path / 'other/elu_attention.py'
    other.parent.mkdir()
    shutil.copy(tmp_path / 'elu_attention.py', other)
    start = ['compare', 'elu_attention.py:EluAttention']
    assert main([*start, '--with', f'{other}:EluAttention']) == 2
    assert 'rename the file' in capsys.readouterr().err
    assert main([*start, '--contract', '--plan']) == 2
    assert '--plan is of the comparison' in capsys.readouterr().err


def test_attentions_of_one_class_get_configs_of_their_own(tmp_path):
    cls = MODELS.get('PolaAttention')
    one = write_configs(
        cls, dict(type='PolaAttention', power=3), '', tmp_path, BETWEEN, 'Pola, power=3'
    )
    two = write_configs(cls, dict(type='PolaAttention'), '', tmp_path, BETWEEN, 'Pola')
    assert not {*one} & {*two} and 'power=3' in one[0].read_text()


def test_without_a_gpu_cuda_is_refused_in_a_sentence(monkeypatch, capsys):
    monkeypatch.setattr(command, 'finds_a_gpu', lambda: False)
    assert main(['compare', 'elu_attention.py:EluAttention', '--device', 'cuda']) == 2
    assert capsys.readouterr().err.endswith('torch finds no GPU; take --device cpu\n')


def test_the_device_reaches_each_run_the_settings_and_the_page(tmp_path, monkeypatch):
    """No GPU is used: what would run is collected instead."""
    asked, jobs, studies = [], [], []

    class NothingRuns:
        failures = ()

        def __init__(self, study, *about):
            studies.append(study)

        def run(self, *about):
            pass

    def estimate(candidates, tell, trainings_at_once, device):
        asked.append((trainings_at_once, device))
        return lambda plan: {'small tasks': 1.0, 'training on images': 1.0}

    monkeypatch.setattr(command, 'finds_a_gpu', lambda: True)
    monkeypatch.setattr(command, 'Estimate', estimate)
    monkeypatch.setattr(command, 'Runner', NothingRuns)
    monkeypatch.setattr(command, 'run_all', lambda each, *about, **more: jobs.extend(each))
    monkeypatch.setattr(command, 'show_contract', lambda *about: [])
    monkeypatch.setattr(command, 'make_folder', lambda *about: False)
    machine = dict(CPU='a CPU', GPU='some GPU', torch='2')
    monkeypatch.setattr(command, 'describe_machine', lambda device: machine)
    monkeypatch.setattr(command, 'import_first', lambda *modules: asked.append(modules))
    words = ['compare', 'elu_attention.py:EluAttention', '--with', 'Softmax', '--out', 'out']
    assert main([*words, '--device', 'cuda']) == 0
    assert asked == [(1, 'cuda'), ()]  # one at once, and no process that has seen a GPU is forked
    assert {job.function.__name__ for job in jobs} == {'write_cost', 'train_attention'}
    assert {(job.arguments[-1], job.settings['device']) for job in jobs} == {('cuda', 'cuda')}
    assert studies[0].device == 'cuda'
    page = (tmp_path / 'out/README.md').read_text()
    assert 'some GPU' in page and '--device cuda`' in page
    # Results of another device are not mixed in.
    assert main(words) == 2
    assert at_once('cpu') >= 1


@pytest.mark.parametrize('name', OURS)
def test_every_attention_is_built_with_the_shared_frame_and_says_what_it_keeps(name):
    one = candidate(name)
    sizes = dict(embed_dims=32, num_heads=2, input_resolution=(7, 7))
    module, known = MODELS.build(dict(one.cfg, **sizes)), MODELS.get(name).known_options()
    assert {field for field in SHARED if field not in known} <= set(one.kept)
    assert 'qkv' in one.kept or name not in ('SOFTAttention', 'EcoFormerAttention')
    if hasattr(module, 'frame'):
        for field in set(SHARED) - set(one.kept):
            assert getattr(module.frame, field) == SHARED[field]
    assert candidate(name, own_frames=True).changed == {}


def test_options_in_a_name_win_over_the_shared_frame():
    one = candidate('Pola, gate=true, power=3')
    assert one.label == 'Pola, gate=true, power=3'
    assert (one.cfg['gate'], one.cfg['power'], one.cfg['lepe_kernel']) == (True, 3, 3)


TINY = Plan(1, (0.004,), ('recall',), (32,), (), 2, 2)


def attentions_of(path) -> list:
    """Those of the model of a config, which knows neither the user's file nor its class before."""
    sys.modules.pop('elu_attention', None)
    MODELS.module_dict.pop('EluAttention', None)
    backbone = build_model(Config.fromfile(path)).backbone
    found = [block.attn for stage in backbone.stages for block in stage['blocks']]
    return [f'{type(a).__name__}/{type(getattr(a, "attn", None)).__name__}' for a in found]


@pytest.mark.slow
def test_a_run_ends_in_a_page_with_configs_and_continues(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, 'fitting', lambda limit, estimate: (TINY, ['all else']))
    words = ['compare', 'elu_attention.py:EluAttention', '--with', 'Softmax', '--out', 'out']
    assert main(words) == 0
    out = tmp_path / 'out'
    text, page = (out / 'README.md').read_text(), (out / 'page.html').read_text()
    for part in (
        '# Elu beside Softmax',
        '| recall |',
        '| **Elu** |',
        'By `--budget`: all else',
        'a last linear',
        '| linear | memory, FLOPs and elements',
    ):
        assert part in text
    assert 'no result' not in text
    assert set(re.findall(r'src="(data:image/png|[^"]*)', page)) == {'data:image/png'}
    log = (out / 'runs/tasks.jsonl').read_text()
    assert main(words) == 0 and (out / 'runs/tasks.jsonl').read_text() == log
    settings = json.loads((out / 'settings.json').read_text())
    (out / 'settings.json').write_text(json.dumps(dict(settings, source='of another file')))
    capsys.readouterr()
    assert main(words) == 2 and 'before its file changed' in capsys.readouterr().err

    configs = [out / 'configs' / recipe.file.replace('NAME', 'elu') for recipe in RECIPES]
    monkeypatch.setattr(sys, 'path', [*sys.path])  # which the configs lengthen
    swin, deit, pvt, detector = map(attentions_of, configs)
    windows = [f'WindowAttention/{name}Attention' for name in ['Elu'] * 4 + ['Softmax'] * 8]
    assert swin == detector == windows
    assert set(deit) == set(pvt) == {'EluAttention/NoneType'}


def test_attentions_are_compared_on_folders_by_configs_for_each(tmp_path):
    own, other = candidate('elu_attention.py:EluAttention'), candidate('Pola, power=4')
    folder = tmp_path / 'configs'
    cls = MODELS.get('EluAttention')
    write_configs(cls, own.cfg, 'elu_attention.py', folder, BETWEEN)
    write_configs(MODELS.get('PolaAttention'), other.cfg, '', folder, BETWEEN, other.label)
    names = ['deit-tiny_cifar100', 'pvt-tiny_imagenet100']
    assert files(folder) == [
        'elu-deit-tiny_cifar100.py',
        'elu-pvt-tiny_imagenet100.py',
        'elu_attention.py',
        'pola-power-4-deit-tiny_cifar100.py',
        'pola-power-4-pvt-tiny_imagenet100.py',
    ]
    for name in names:
        cfg = Config.fromfile(folder / f'pola-power-4-{name}.py')
        assert cfg.model.backbone.attn_cfg == other.cfg and cfg.model.head.num_classes == 100
        datasets = cfg.train_dataloader.dataset, cfg.test_dataloader.dataset
        place = f'data/{name.split("_")[1]}'
        assert [(one.type, one.data_root, one.data_prefix) for one in datasets] == [
            ('CustomDataset', place, 'train'),
            ('CustomDataset', place, 'val'),
        ]
    assert set(attentions_of(folder / 'elu-deit-tiny_cifar100.py')) == {'EluAttention/NoneType'}


BROKEN = {
    name: cls
    for name, cls in vars(broken_attentions).items()
    if (cls.__doc__ or '').startswith('point:')
}


@pytest.mark.parametrize(
    'name',
    [pytest.param(n, marks=() if n == 'LinearAttention' else pytest.mark.thorough) for n in OURS],
)
def test_an_attention_of_ours_keeps_what_it_promises(name):
    findings = {finding.point: finding for finding in check_contract(MODELS.get(name))}
    assert list(findings) == list(POINTS)
    for point, finding in findings.items():
        assert finding.state not in (FAILED, NOT_CHECKED), finding
        promised = point not in MODELS.get(name).not_promised
        assert (finding.state != NOT_PROMISED) == promised


@pytest.mark.parametrize('name', BROKEN)
def test_a_planted_fault_is_found_at_its_line(name):
    cls = BROKEN[name]
    point = cls.__doc__.removeprefix('point: ')
    found = next(finding for finding in check_contract(cls) if finding.point == point)
    assert found.state == FAILED and found.text
    assert found.line.startswith(f'{inspect.getsourcefile(cls)}:') and 'FAULT' in found.line
    first, number = inspect.getsourcelines(cls)
    assert number <= int(found.line.split(':')[1]) < number + len(first)


def test_what_is_not_promised_is_not_checked_and_a_misspelt_point_is_refused():
    class Quadratic(broken_attentions.SquareOfTokens):
        not_promised = dict(linear='each query reads each key')

    findings = {finding.point: finding for finding in check_contract(Quadratic)}
    assert findings['linear'][1:3] == (NOT_PROMISED, 'each query reads each key')
    Quadratic.not_promised = dict(liner='')
    with pytest.raises(ValueError, match="no point 'liner' .did you mean 'linear'"):
        next(check_contract(Quadratic))
