"""The contract passes for the attentions of the library, and finds planted faults at their line."""

import inspect

import broken_attentions
import pytest
from conftest import registered
from mmengine.registry import MODELS

from mmlaplace.lab.compare.contract import FAILED, NOT_CHECKED, NOT_PROMISED, check_contract
from mmlaplace.lab.compare.points import POINTS
from mmlaplace.models import BaseAttention

OURS = [name for name in registered(BaseAttention) if name != 'WindowAttention']
BROKEN = {
    name: cls
    for name, cls in vars(broken_attentions).items()
    if inspect.getmodule(cls) is broken_attentions and (cls.__doc__ or '').startswith('point:')
}


@pytest.mark.parametrize('name', [
    pytest.param(n, marks=() if n == 'LinearAttention' else pytest.mark.thorough) for n in OURS
])  # fmt: skip
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
