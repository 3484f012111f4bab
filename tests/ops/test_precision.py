"""Which autocast the ops leave: that of the device of their inputs, where it has one."""

from types import SimpleNamespace

import pytest
import torch

from mmlaplace.ops import gaussian_kernel, laplacian_kernel, precision


@pytest.mark.parametrize('op', [gaussian_kernel, laplacian_kernel])
def test_meta_halves_stay_halves(op):
    q = torch.empty(1, 1, 3, 2, device='meta', dtype=torch.bfloat16)
    with torch.autocast('cpu', dtype=torch.bfloat16):  # of another device
        assert op(q, q, 1.0).dtype == torch.bfloat16


def test_every_device_but_meta_has_an_autocast_to_leave(monkeypatch):
    left = []
    monkeypatch.setattr(torch, 'autocast', lambda device, enabled: left.append((device, enabled)))
    for device in ('cpu', 'cuda', 'meta', 'mps', 'xpu'):
        precision.no_autocast(torch.device(device))
    assert left == [(device, False) for device in ('cpu', 'cuda', 'mps', 'xpu')]


def test_torch_before_2_4_knows_the_autocast_of_cpu_and_cuda(monkeypatch):
    """It has a function for each of the two, and none that takes a device."""
    monkeypatch.setattr(torch, 'amp', SimpleNamespace())
    on = {'cpu': False, 'cuda': False}
    monkeypatch.setattr(torch, 'is_autocast_cpu_enabled', lambda: on['cpu'])
    monkeypatch.setattr(torch, 'is_autocast_enabled', lambda: on['cuda'])
    for device in on:
        on.update({name: name == device for name in on})
        found = {name: precision.autocasting(torch.device(name)) for name in (*on, 'meta', 'mps')}
        assert found == {**on, 'meta': False, 'mps': False}
