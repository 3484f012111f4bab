"""What PyTorch's and mmengine's tools do to a layer acts: each is reached through its call.

For every backbone, and every attention under all of its tested options.
"""

import copy
import functools

import pytest
import torch
import torch.nn as nn
import torch.nn.utils.prune as prune
from mmengine.runner.activation_checkpointing import turn_on_activation_checkpointing
from test_attentions import CASES, name_of
from test_attentions import build as build_attention
from test_backbones import BACKBONES
from test_backbones import build as build_backbone
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrapping

from mmlaplace.models.layers.block import Block, StageLayers

LINEAR = (nn.Linear, nn.modules.conv._ConvNd)
NORMS = (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm)
PREPBN = dict(type='PVT', norm_cfg=dict(type='PRepBN', steps=5))
PYRAMID = dict(type='XCiTBackbone', pyramid_blocks=(0, 1, 2, 3), arch='micro')
MODELS = [*(dict(type=name) for name in BACKBONES), PREPBN, PYRAMID]
# Rounding turns a sign, a place in an order, or a choice of keys.
DISCONTINUOUS = ('EcoFormerAttention', 'MiTAAttention', 'ReformerAttention')
# Sums of the same numbers in another order, in fp64.
CLOSE = dict(rtol=1e-9, atol=1e-9)


def every(*cases):
    return pytest.mark.parametrize('cfg', cases, ids=name_of)


def made(cfg) -> nn.Module:
    """A small model without weights of zeros, in eval mode."""
    torch.manual_seed(0)
    if 'Attention' in cfg['type'] or cfg in CASES:
        model = build_attention(cfg, embed_dims=16)
    else:
        options = dict(cfg)
        model = build_backbone(options.pop('type'), **options)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1 or not parameter.any():
                parameter += 0.1 * torch.randn_like(parameter)
    return model.double().eval()


def outputs(model, dtype=torch.float64) -> tuple:
    """What a model makes of some images, or an attention of some tokens."""
    torch.manual_seed(1)
    if hasattr(model, 'stages'):
        return model(torch.randn(2, 3, 64, 64, dtype=dtype))
    return (model(torch.randn(2, 7 * 7, 16, dtype=dtype), (7, 7)),)


def train_step(model) -> None:
    loss = sum((out * torch.linspace(-1, 1, out.shape[-1])).sum() for out in outputs(model))
    loss.backward()


def layers(model, kinds=LINEAR) -> list:
    return [part for part in model.modules() if isinstance(part, kinds)]


@every(*MODELS, *CASES)
def test_hooks_that_change_outputs_act(cfg):
    model = made(cfg)
    scaled = copy.deepcopy(model)
    with torch.no_grad():
        for layer in layers(scaled, LINEAR + NORMS):
            for parameter in layer.parameters(recurse=False):
                parameter *= 1.25
        for layer in layers(model, LINEAR + NORMS):
            layer.register_forward_hook(lambda layer, inputs, out: 1.25 * out)
        torch.testing.assert_close(outputs(model), outputs(scaled), **CLOSE)


@every(*MODELS)
def test_stages_are_called_in_order_and_their_hooks_change_the_maps(cfg):
    model, order = made(cfg), []

    def one_token(stage, inputs, out):
        tokens, hw_shape, *others = out
        return (tokens[:, :1].expand_as(tokens), hw_shape, *(x[:, :1].expand_as(x) for x in others))

    for number, stage in enumerate(model.stages):
        stage.register_forward_pre_hook(lambda *_, number=number: order.append(number))
    with torch.no_grad():
        before = outputs(model)
        assert order == list(range(len(model.stages)))
        model.stages[-1].register_forward_hook(one_token)
        *others, last = outputs(model)
    if getattr(model, 'pyramid', None) is None:
        assert last.std((2, 3)).max() < 1e-9 < before[-1].std((2, 3)).min()
        assert all(map(torch.equal, others, before))


@pytest.mark.sampled(4, 2)
@every(*MODELS, *CASES)
@pytest.mark.parametrize('tool', ['prune', 'weight_norm'])
@pytest.mark.filterwarnings('ignore:.*weight_norm')
def test_weights_of_pruned_and_of_normed_layers_train_and_are_those_of_the_forward(cfg, tool):
    model = made(cfg).train()
    for layer in layers(model):
        if tool == 'prune':
            prune.l1_unstructured(layer, 'weight', 0.5)
        else:
            nn.utils.weight_norm(layer)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(2):
        optimizer.zero_grad()
        train_step(model)
        optimizer.step()
    model.eval()
    with torch.no_grad():
        out = outputs(model)
        for layer in layers(model):
            if tool == 'prune':
                prune.remove(layer, 'weight')
            else:
                nn.utils.remove_weight_norm(layer)
        torch.testing.assert_close(out, outputs(model), **CLOSE)


@every(*MODELS, *CASES)
@pytest.mark.filterwarnings('ignore:torch.ao.quantization')
def test_all_linears_run_quantised(cfg):
    model = made(cfg).float()
    small = torch.ao.quantization.quantize_dynamic(
        copy.deepcopy(model), {nn.Linear}, dtype=torch.qint8
    )
    assert not layers(small, nn.Linear)
    with torch.no_grad():
        for out, exact in zip(outputs(small, torch.float32), outputs(model, torch.float32)):
            error = (out - exact).norm() / exact.norm()
            assert out.isfinite().all()
            assert cfg['type'] in DISCONTINUOUS or error < 0.06  # a hundredth in each linear


@pytest.fixture(scope='module')
def one_process(tmp_path_factory):
    store = f'file://{tmp_path_factory.mktemp("gloo") / "store"}'
    torch.distributed.init_process_group('gloo', init_method=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.sampled(4, 2)
@every(*MODELS, *CASES)
def test_layers_can_be_sharded_one_by_one(cfg, one_process):
    sharding = pytest.importorskip('torch.distributed.fsdp')
    if not hasattr(sharding, 'fully_shard'):
        pytest.skip('before torch 2.6, fully_shard is elsewhere')
    model = made(cfg)
    sharded = copy.deepcopy(model)
    mesh = torch.distributed.device_mesh.init_device_mesh('cpu', (1,))
    for part in reversed(layers(sharded, (*LINEAR, *NORMS, StageLayers))):  # inner ones first
        sharding.fully_shard(part, mesh=mesh)
    sharding.fully_shard(sharded, mesh=mesh)
    with torch.no_grad():
        torch.testing.assert_close(outputs(sharded), outputs(model), **CLOSE)
    for each in (model, sharded):
        train_step(each)
    given = dict(sharded.named_parameters())
    for name, own in model.named_parameters():
        grad = given[name].grad
        grad = None if grad is None else grad.full_tensor()
        torch.testing.assert_close(grad, own.grad, **CLOSE)


def wrap(model) -> None:
    """Stages, blocks and attentions by PyTorch's wrapper, one inside the other."""
    wrapping.apply_activation_checkpointing(
        model,
        checkpoint_wrapper_fn=functools.partial(wrapping.checkpoint_wrapper),
        check_fn=lambda part: isinstance(part, (StageLayers, Block)),
    )


def name_parts(model) -> None:
    """A stage, and blocks of others, by mmengine."""
    last = len(model.stages) - 1
    names = {f'stages.{last}', 'stages.0.blocks.0'} if last else {'stages.0.blocks.0'}
    turn_on_activation_checkpointing(model, sorted(names))


@pytest.mark.sampled(3, 3)
@every(*MODELS)
@pytest.mark.parametrize('way', [wrap, name_parts])
@pytest.mark.filterwarnings('ignore:.*use_reentrant')
def test_what_is_checkpointed_is_computed_again_and_trains_alike(cfg, way):
    model = made(cfg).train()
    saving = copy.deepcopy(model)
    calls = []
    for inside in saving.stages[-1]['blocks'][0].children():
        inside.register_forward_pre_hook(lambda *_: calls.append(torch._C._current_graph_task_id()))
    way(saving)
    for _ in range(2):  # the first changes statistics, and the share of a LayerNorm in PRepBN
        for each in (model, saving):
            each.zero_grad()
            train_step(each)
    assert any(call >= 0 for call in calls)
    grads = [{n: p.grad for n, p in each.named_parameters()} for each in (model, saving)]
    prefix = wrapping._CHECKPOINT_PREFIX
    grads[1] = {name.replace(prefix, ''): grad for name, grad in grads[1].items()}
    torch.testing.assert_close(*grads, **CLOSE)
    states = [dict(each.state_dict()) for each in (model, saving)]
    torch.testing.assert_close(*states, **CLOSE)
