"""An optimized backbone gives the maps of the backbone, however a user changed its modules."""

import copy
import types
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from conftest import registered
from mmengine.registry import MODELS
from torch import nn
from torch.nn.utils import parametrize, prune

from mmlaplace.cpu import Packed, optimize
from mmlaplace.models import PyramidBackbone
from mmlaplace.models.layers import FFN
from mmlaplace.ops.gelu_ffn import has_onednn

pytestmark = pytest.mark.skipif(not has_onednn(torch.float32), reason='torch has no oneDNN')


def some(model, kinds):
    """Every other layer of these classes, the first one too."""
    return [part for part in model.modules() if type(part) in kinds][::2]


def each(kinds, change):
    def changed(model):
        for part in some(model, kinds):
            change(part)

    return changed


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class DoubledFFN(FFN):
    def forward(self, x, hw_shape):
        return 2 * super().forward(x, hw_shape)


class Halved(nn.Module):
    def forward(self, weight):
        return 0.5 * weight


class Adapted(nn.Module):
    """A linear and what an adapter adds to it."""

    def __init__(self, linear):
        super().__init__()
        self.linear, self.adapter = linear, nn.Linear(linear.in_features, linear.out_features)

    def forward(self, x):
        return self.linear(x) + self.adapter(x)


def own_forward(part):
    whole = type(part).forward
    part.forward = types.MethodType(lambda self, *inputs: 2 * whole(self, *inputs), part)


def own_class(part):
    part.__class__ = DoubledFFN if type(part) is FFN else Doubled


def adapted(model):
    for parent in [*model.modules()]:
        for name, child in [*parent.named_children()]:
            if type(child) is nn.Linear and name not in ('proj', '3'):
                setattr(parent, name, Adapted(child))


def computed_weight(linear):
    """A tensor that is no parameter, as that of a hypernetwork."""
    weight = nn.Parameter(linear.weight.detach())
    del linear.weight
    linear.weight = 1.5 * weight


def narrower(ffn):
    """Structured pruning: a part of the hidden channels is gone, as the weights alone know."""
    for layer in ffn.layers.modules():
        if isinstance(layer, nn.Linear) and ffn.dwconv is None:
            rows = layer.out_features // 2 if layer is ffn.layers[0] else layer.out_features
            channels = layer.in_features if layer is ffn.layers[0] else layer.in_features // 2
            layer.weight = nn.Parameter(layer.weight.detach()[:rows, :channels])
            layer.bias = nn.Parameter(layer.bias.detach()[:rows])


def shared(model):
    """All FFNs of a stage have the layers of its first."""
    for stage in model.children():
        for ffn in [part for part in stage.modules() if type(part) is FFN]:
            first = next(part for part in stage.modules() if type(part) is FFN)
            if first.layers[0].weight.shape == ffn.layers[0].weight.shape:
                ffn.layers = first.layers


BOTH, LINEAR, FFNS = (nn.Linear, FFN), (nn.Linear,), (FFN,)
OF_CALLS = {
    'forward hook': lambda part: part.register_forward_hook(lambda module, x, out: 2 * out),
    'forward hook of keywords': lambda part: part.register_forward_hook(
        lambda module, x, options, out: 2 * out, with_kwargs=True, always_call=True
    ),
    'forward pre-hook': lambda part: part.register_forward_pre_hook(
        lambda module, inputs: (2 * inputs[0], *inputs[1:])
    ),
    'own forward': own_forward,
    'own class': own_class,
}
# These have no effect on maps, so what a test sees is that they are there still.
KEPT = {
    'backward hook': lambda part: part.register_full_backward_hook(lambda *_: None),
    'backward pre-hook': lambda part: part.register_full_backward_pre_hook(lambda *_: None),
    'state-dict hook': lambda part: part._register_state_dict_hook(lambda *_: None),
    'load hook': lambda part: part.register_load_state_dict_post_hook(lambda *_: None),
}
CHANGES = {
    **{f'{name}, linear': each(LINEAR, change) for name, change in OF_CALLS.items()},
    **{f'{name}, FFN': each(FFNS, change) for name, change in OF_CALLS.items()},
    **{name: each(BOTH, change) for name, change in KEPT.items()},
    'parametrized': each(
        LINEAR, lambda part: parametrize.register_parametrization(part, 'weight', Halved())
    ),
    'pruned': each(LINEAR, lambda part: prune.l1_unstructured(part, 'weight', 0.5)),
    'computed weight': each(LINEAR, computed_weight),
    'no bias': each(LINEAR, lambda part: setattr(part, 'bias', None)),
    'frozen': each(LINEAR, lambda part: part.requires_grad_(False)),
    'narrower': each(FFNS, narrower),
    'adapted': adapted,
    'shared': shared,
}
CASES = [(name, change) for name in registered(PyramidBackbone) for change in CHANGES]
assert len(CHANGES) % 23, 'a sample of every 23rd case has all changes'


def built(name):
    zoo = MODELS.get(name).arch_zoo
    return MODELS.build(dict(type=name, arch='micro' if 'micro' in zoo else next(iter(zoo))))


def hooks(model):
    """How many hooks of each kind there are, and layers that are no more torch's."""
    found = {'own': sum('forward' in vars(part) for part in model.modules())}
    for part in model.modules():
        for name, value in vars(part).items():
            if name.endswith('_hooks') and value and name != '_load_state_dict_pre_hooks':
                found[name] = found.get(name, 0) + len(value)
    return found


@pytest.mark.sampled(23, 23)
@pytest.mark.parametrize(('name', 'change'), CASES)
@torch.no_grad()
def test_an_optimized_backbone_is_as_its_user_changed_it(name, change):
    model, images = built(name).eval(), torch.randn(1, 3, 64, 96)
    with torch.enable_grad():
        CHANGES[change](model)
    before, packed = hooks(model), optimize(model)
    expected = model(images)
    assert any(isinstance(part, Packed) for part in packed.modules())
    assert hooks(packed) == before
    for found, right in zip(packed(images), expected, strict=True):
        # The same sums of fp32 in another order, through all layers.
        assert (found - right).abs().max() <= 1e-3 * right.abs().max()


@pytest.mark.parametrize('kind', [nn.Linear, nn.GELU, FFN], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize('optimized', [False, True])
@torch.no_grad()
def test_another_forward_of_a_whole_class_is_taken(kind, optimized):
    model, images, whole = built('LaplacianFormer').eval(), torch.randn(1, 3, 64, 64), kind.forward
    plain = copy.deepcopy(model)
    for part in plain.modules():
        if type(part) is FFN:
            part.is_one_op = lambda x: False
    with mock.patch.object(kind, 'forward', lambda self, *inputs: 1.5 * whole(self, *inputs)):
        expected = plain(images)
        found = (optimize(model) if optimized else model)(images)
    for one, right in zip(found, expected, strict=True):
        assert (one - right).abs().max() <= 1e-3 * right.abs().max()


@pytest.mark.parametrize(
    'change',
    [
        lambda layer: setattr(layer, 'bias', nn.Parameter(torch.randn(7))),
        lambda layer: setattr(layer, 'bias', nn.Parameter(torch.randn(8).bfloat16())),
        lambda layer: setattr(layer, 'weight', nn.Parameter(torch.randn(8, 79))),
        lambda layer: setattr(layer, 'weight', nn.Parameter(torch.randn(80))),
    ],
    ids=['too short a bias', 'bf16 bias', 'too narrow a weight', 'weight of one axis'],
)
@pytest.mark.parametrize('which', [0, 3])
@torch.no_grad()
def test_weights_that_do_not_fit_are_refused_as_by_torch(change, which):
    ffn = FFN(80, 0.1).eval() if which == 0 else FFN(8, 10).eval()
    change(ffn.layers[which])
    x = torch.randn(2, 9, ffn.layers[0].in_features)
    first, _, _, second, _ = ffn.layers

    def plain():
        hidden = F.gelu(F.linear(x, first.weight, first.bias))
        return F.linear(hidden, second.weight, second.bias)

    with pytest.raises(RuntimeError):
        plain()
    with pytest.raises((RuntimeError, ValueError)) as refused:
        optimize(nn.Sequential(ffn))[0](x, (9, 1))
    assert 'primitive' not in str(refused.value)  # as oneDNN says, which names no shape
