"""Compare an attention with the golden file that describes it."""

from pathlib import Path

import numpy as np
import torch
from conftest import quiet_init
from golden_files import about, sampled
from mmengine.registry import MODELS

from mmlaplace.checkpoints import NameTable

FORWARD, GRADIENT = 1e-5, 1e-4  # two orders of the same fp32 sums
AROUND = ('qkv.', 'kv.', 'proj.', 'lepe.')  # the linears and convolutions around a mixing rule


def assert_as_described(path: Path) -> None:
    """The attention that a file describes gives its output and gradients from its weights."""
    said, arrays = about(path), dict(np.load(path))
    tensors = {k: torch.from_numpy(v) for k, v in arrays.items() if k != 'about'}
    inputs = {k: tensors[f'in:{k}'].requires_grad_() for k in 'xqkv' if f'in:{k}' in tensors}
    hw_shape = tuple(said['hw_shape'])
    attention = MODELS.build(dict(said['config'], input_resolution=hw_shape)).eval()
    quiet_init(attention)
    theirs = {k[len('param:') :]: v for k, v in tensors.items() if k.startswith('param:')}
    same = {name: name for name in theirs if not name.startswith(tuple(said['names']))}
    weights = NameTable({**said['names'], **same}).convert(theirs, hw_shape, prefix='').weights
    own = attention.state_dict()
    weights = {k: v.reshape(own[k].shape) if k in own else v for k, v in weights.items()}
    missing, unexpected = attention.load_state_dict(weights, strict=False)
    if 'x' not in inputs:
        missing = [name for name in missing if not name.startswith(AROUND)]
    assert not missing and not unexpected
    if 'x' in inputs:
        out = attention(inputs['x'], hw_shape)
    else:
        out = attention.mix(inputs['q'], inputs['k'], inputs['v'], hw_shape)
    out.backward(tensors['in:grad_y'])
    _assert_close(out, tensors['out:y'], FORWARD)
    for name, value in inputs.items():
        _assert_close(value.grad, tensors[f'out:grad_{name}'], GRADIENT)


def _assert_close(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float) -> None:
    """Relative to the largest value, as single ones may vanish."""
    ours, theirs = sampled(ours), theirs.double().flatten()
    assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max()
