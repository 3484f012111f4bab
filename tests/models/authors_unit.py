"""A file of an authors' module: its settings, weights, inputs, outputs and gradients.

``tests/data/golden/README.md`` says where each file is from.
"""

from functools import cached_property
from pathlib import Path
from typing import Dict, Tuple

import numpy as np
import pytest
import torch
from test_golden import GOLDEN, assert_close
from torch import Tensor

from mmlaplace.checkpoints import NameTable

FILES: Dict[str, Path] = {
    path.stem: path
    for path in [*(GOLDEN / 'attentions').glob('*.npz'), *GOLDEN.glob('*_attention_*.npz')]
}
TESTED = set()
# Two orders of the same fp32 sums.
FORWARD, GRADIENT = 1e-5, 1e-4
# The parameters of an attention that are outside of its mixing rule.
AROUND = ('qkv.', 'kv.', 'proj.', 'lepe.')


def of_files(*names: str):
    """Run a test with each of these files as ``unit``."""
    TESTED.update(names)
    return pytest.mark.parametrize('unit', [Unit(name) for name in names], ids=names)


class Unit:
    """An authors' module that got ``x``, or the mixing rule alone, which got q, k and v."""

    def __init__(self, name: str) -> None:
        self.name = name

    @cached_property
    def content(self) -> Dict[str, np.ndarray]:
        return dict(np.load(FILES[self.name]))

    @cached_property
    def weights(self) -> Dict[str, Tensor]:
        """The authors' parameters by the authors' names."""
        return self.tensors('param:')

    @cached_property
    def inputs(self) -> Dict[str, Tensor]:
        """The tensors that the module got; in Reformer, ``qk`` is both queries and keys."""
        inputs = self.tensors('in:')
        return {name: inputs[name] for name in ('x', 'qk', 'q', 'k', 'v') if name in inputs}

    @cached_property
    def settings(self) -> Dict[str, object]:
        """What the authors set: numbers and words, and tuples of them."""
        settings = {}
        for name, value in self.content.items():
            if name.startswith('in:') and value.ndim < 2:
                value = value.tolist()
                settings[name[len('in:') :]] = tuple(value) if isinstance(value, list) else value
        return settings

    @property
    def hw_shape(self) -> Tuple[int, int]:
        return self.settings['H'], self.settings['W']

    @property
    def sizes(self) -> dict:
        """The width, heads and map, by the names of our options."""
        heads = self.settings.get('num_heads', self.settings.get('heads', 1))
        if 'x' not in self.inputs:
            width = heads * self.inputs['v'].shape[-1]
        elif self.inputs['x'].dim() == 4:
            width = self.inputs['x'].shape[1]
        else:
            width = self.inputs['x'].shape[2]
        return dict(embed_dims=width, num_heads=heads, input_resolution=self.hw_shape)

    def tensors(self, kind: str) -> Dict[str, Tensor]:
        """The tensors whose names begin so, which settings (``in:``, one axis or none) are not."""
        found = {k[len(kind) :]: v for k, v in self.content.items() if k.startswith(kind)}
        if kind == 'in:':
            found = {k: v for k, v in found.items() if v.ndim > 1}
        return {k: torch.from_numpy(v) for k, v in found.items()}

    def load(self, attention: torch.nn.Module, rows: dict) -> None:
        """Give an attention the authors' weights.

        ``rows`` are those of a :class:`NameTable`. Axes are those of the parameter here: the weight
        of a convolution 1 x 1 is one of a linear.
        """
        found = NameTable(rows).convert(self.weights, self.hw_shape, prefix='').weights
        own = attention.state_dict()
        weights = {k: v.reshape(own[k].shape) if k in own else v for k, v in found.items()}
        missing, unexpected = attention.load_state_dict(weights, strict=False)
        if 'x' not in self.inputs:
            missing = [name for name in missing if not name.startswith(AROUND)]
        assert not missing and not unexpected

    def assert_same(self, attention: torch.nn.Module, gradient: float = GRADIENT) -> None:
        """An attention gives the authors' output and gradient."""
        attention.eval()
        x = self.inputs['x'].requires_grad_()
        if x.dim() == 4:  # a map (B, C, H, W), and the output is another
            tokens = x.flatten(2).mT
            out = attention(tokens, self.hw_shape).mT.unflatten(2, self.hw_shape)
        else:
            out = attention(x, self.hw_shape)
        self.compare(out, gradient)

    def assert_same_rule(self, attention: torch.nn.Module) -> None:
        """The mixing rule of an attention gives the authors' output and gradients."""
        attention.eval()
        inputs = {name: value.requires_grad_() for name, value in self.inputs.items()}
        # Reformer's authors have the heads in the batch.
        heads = {k: v if v.dim() == 4 else v[:, None] for k, v in inputs.items()}
        q, k = (heads['qk'], heads['qk']) if 'qk' in heads else (heads['q'], heads['k'])
        out = attention.mix(q, k, heads['v'], self.hw_shape)
        self.compare(out.reshape(inputs['v'].shape), GRADIENT)

    def compare(self, out: Tensor, gradient: float) -> None:
        results = self.tensors('out:')
        out.backward(self.tensors('in:')['grad_y'])
        assert_close(out, results['y'], FORWARD)
        for name, value in self.inputs.items():
            assert_close(value.grad, results[f'grad_{name}'], gradient)
