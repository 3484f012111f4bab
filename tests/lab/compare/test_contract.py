"""The contract finds what is unsound by the right point, and accuses nothing that is sound."""

from types import SimpleNamespace
from unittest import mock

import pytest
import sound_attentions
import torch
import torch.nn as nn
import unsound_attentions
from conftest import imports_forgotten

from mmlaplace.__main__ import main
from mmlaplace.lab.compare import command
from mmlaplace.lab.compare.contract import FAILED, NOT_CHECKED, check_contract
from mmlaplace.lab.compare.frames import candidate
from mmlaplace.lab.compare.plan import Estimate, Plan
from mmlaplace.lab.compare.points import PLAIN, POINTS, grows, settings

SLOW_POINTS = ('compile', 'onnx')
# Loops of Python over the tokens, which take a third of the time of all.
SLOW = ('RollsTheKeys', 'DecaysAlongRows')


UNSOUND = {
    name: cls
    for name, cls in vars(unsound_attentions).items()
    if 'point: ' in (getattr(cls, '__doc__', None) or '')
}
SOUND = {
    name: cls
    for name, cls in vars(sound_attentions).items()
    if isinstance(cls, type) and cls.__module__ == sound_attentions.__name__
}


def each(attentions):
    """Each attention, the slow ones with ``--all`` alone."""
    return pytest.mark.parametrize(
        'name',
        [
            pytest.param(name, marks=pytest.mark.thorough) if name in SLOW else name
            for name in attentions
        ],
    )


@each(UNSOUND)
def test_an_unsound_attention_fails_at_the_right_point(name):
    points = UNSOUND[name].__doc__.split('point: ')[1].strip().split(', ')
    found = check_contract(UNSOUND[name], points=points)
    assert any(
        one.state == FAILED and one.text and one.line for one in found if one.point in points
    )


@each(SOUND)
def test_a_sound_attention_is_not_accused(name):
    points = [point for point in POINTS if point not in SLOW_POINTS]
    found = list(check_contract(SOUND[name], points=points))
    assert [one for one in found if one.state in (FAILED, NOT_CHECKED)] == []


def test_a_cast_of_fp64_is_named_and_is_no_failure():
    cls = sound_attentions.FloatEverywhere
    *_, found = check_contract(cls, points=['any size', 'gradients'])
    assert found.state != FAILED and 'casts fp64' in found.text and 'upcast' in found.text
    assert 'float()' in found.line


def test_each_seed_has_all_numbers_of_images_and_heads():
    for seed in range(3):
        drawn = settings(seed)
        assert drawn[0] == PLAIN
        assert {one.images for one in drawn} == {1, 2, 3, 4, 5}
        assert {one.heads for one in drawn} == {1, 2, 3, 5}
        assert max(one.hw_shape[0] * one.hw_shape[1] for one in drawn) > 4000
    assert settings(1) != settings(2) and settings(1) == settings(1)


HEAD = 'from mmlaplace.models import QKVAttention\n'
MIX = '    def mix(self, q, k, v, hw_shape):\n        return {}\n'


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A function that writes a file with one attention, in a folder whose name has a comma."""
    folder = tmp_path / 'my, files'
    folder.mkdir()
    monkeypatch.chdir(tmp_path)

    def write(body, before=''):
        (folder / 'a_file.py').write_text(f'{HEAD}{before}class Mine(QKVAttention):\n{body}')
        return ['compare', 'my, files/a_file.py:Mine', '--contract']

    with imports_forgotten(tmp_path):
        yield write


def test_a_file_that_ends_python_is_a_sentence(own, capsys):
    assert main(own(MIX.format('v'), before='import sys; sys.exit(0)\n')) == 2
    assert 'a_file.py:2 ends Python where the file is imported' in capsys.readouterr().err


@pytest.mark.parametrize(
    ('given', 'sentence'),
    [
        ("dict(liner='')", "no point 'liner' (did you mean 'linear'?)"),
        ("['linear']", 'must be a dict of points and reasons'),
    ],
)
def test_what_is_wrongly_not_promised_is_a_sentence(given, sentence, own, capsys):
    assert main(own(f'    not_promised = {given}\n' + MIX.format('v'))) == 2
    error = capsys.readouterr().err
    assert sentence in error and len(error.strip().splitlines()) == 1


def test_one_cause_is_told_once(own, capsys):
    assert main(own(MIX.format('v.no_such_method()'))) == 1
    out = capsys.readouterr().out
    assert out.count('no_such_method') == 2  # the error, and its line
    assert out.count('it needs a size that works') == 1


class AddsForAnyMask(sound_attentions.MasksLinearly):
    """A mask that hides nothing changes the output too."""

    def mix(self, q, k, v, hw_shape, mask=None):
        out = super().mix(q, k, v, hw_shape, mask)
        return out if mask is None else 1.1 * out


class ProductOfSquares(sound_attentions.MasksLinearly):
    """Values as a square matrix, whose product has N^1.5 FLOPs and N elements."""

    accepts_mask = False

    def mix(self, q, k, v, hw_shape):
        flat = v.flatten(2)
        side = int(flat.shape[2] ** 0.5)
        square = flat[..., : side**2].unflatten(2, (side, side))
        return super().mix(q, k, v, hw_shape) + 0.1 * (square @ square).mean((2, 3), keepdim=True)


class SkipsEmptyBatches(sound_attentions.MasksLinearly):
    """A gain that an empty batch does not use."""

    accepts_mask = False

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.gain = nn.Parameter(torch.ones(1))

    def mix(self, q, k, v, hw_shape):
        return super().mix(q, k, v, hw_shape) * (self.gain if len(v) else 1)


class CountsCalls(sound_attentions.MasksLinearly):
    """A buffer counts calls in eval mode, and no output depends on it."""

    accepts_mask = False

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.register_buffer('calls', torch.zeros(()))

    def mix(self, q, k, v, hw_shape):
        self.calls += 1
        return super().mix(q, k, v, hw_shape)


class EndsPython(sound_attentions.MasksLinearly):
    """On a map that no other point has, Python ends."""

    accepts_mask = False

    def mix(self, q, k, v, hw_shape):
        if hw_shape == (32, 32):
            raise SystemExit(0)
        return super().mix(q, k, v, hw_shape)


@pytest.mark.parametrize(
    ('cls', 'point', 'text'),
    [
        (EndsPython, 'bf16', 'SystemExit'),
        (SkipsEmptyBatches, 'parameters', 'in a batch of 0 images: the parameter gain gets no'),
        (CountsCalls, 'repeat', 'a call changes the state dict'),
        (AddsForAnyMask, 'mask', 'a mask that hides nothing changes the output'),
        (ProductOfSquares, 'linear', 'FLOPs as N^1.'),
    ],
)
def test_what_only_one_requirement_of_a_point_sees(cls, point, text):
    (found,) = check_contract(cls, points=[point])
    assert found.state == FAILED and text in found.text


@pytest.mark.parametrize(
    ('costs', 'too_much'),
    [
        ((1, 2, 4), False),
        ((1, 4, 16), True),
        ((1, 4, 7), False),  # a jump, and then less than linear: large maps are cut into parts
        ((1, 1.6, 8), False),
    ],
)
def test_one_jump_of_costs_is_no_growth_beyond_linear(costs, too_much):
    """Between sides of which each has twice the tokens of the one before."""
    assert grows(costs) == too_much


def test_the_contract_draws_by_the_seed_that_is_asked_for(own, capsys):
    for words, seed in (([], 0), (['--seed', '7'], 7)):
        with mock.patch.object(command, 'check_contract', return_value=iter(())) as check:
            main([*own(MIX.format('v')), *words])
        assert check.call_args.args[2] == seed


def test_an_attention_is_another_one_after_its_file_changed(own):
    name = own(MIX.format('v'))[1]
    args = SimpleNamespace(attention=name, own_frames=False, device='cpu')
    one = candidate(name)
    before = command.settings_of(one, args)
    assert command.settings_of(one, args) == before
    own(MIX.format('2 * v'))
    assert command.settings_of(one, args) != before


def test_trainings_at_once_take_less_time_in_the_estimate():
    estimate = object.__new__(Estimate)
    estimate.task_step, estimate.forward = dict(Mine=0.1), dict(Mine=0.1)
    estimate.image_step = dict.fromkeys((('Mine', host) for host in Plan().backbones), 0.1)
    seconds = []
    for estimate.at_once in (1, 2):
        seconds.append(estimate(Plan()))
    alone, both = (found.pop('training on images') for found in seconds)
    assert both == pytest.approx(alone / 2) and seconds[0] == seconds[1]
