"""Backbones as graphs of torch.compile and torch.fx, NaN in its image, and values that are read."""

import pickle
import re

import pytest
import torch
import torch.nn as nn
from called_ops import Called
from conftest import needs_torch
from mmengine.registry import MODELS
from test_backbones import BACKBONES, build, smallest
from torch.fx import symbolic_trace

from mmlaplace.models.attentions.base import BaseAttention


def cut_off(name, stages=None):
    """The smallest arch with one block a stage, cut off after ``stages`` stages; None keeps all."""
    arch = dict(MODELS.get(name).arch_zoo[smallest(name)])
    arch['depths'] = [1] * len(arch['depths'])
    stages = stages or len(arch['depths'])
    backbone = build(name, arch, out_indices=tuple(range(stages)), drop_path_rate=0.0)
    del backbone.stages[stages:]
    return backbone


# The ops that a family computes by outside of graphs, on a CPU with the compiled library.
OF_FAMILY = dict(
    LaplacianFormer={'pooled_landmarks', 'nystrom_attention', 'cholesky_inverse'},
    SOFT={'nystrom_attention', 'newton_schulz_inverse'},
    PolaFormerPVT={'_signed_powers', '_pola_streams'},
)


@needs_torch(2, 4)  # since then torch.compile traces context managers of libraries
@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'backend', 'stages'),
    [
        # This one traces the backward too, without a minute of compiling.
        ('LaplacianFormer', 'aot_eager', None),
        # All stages of H-ViT³ are alike, and four take 15 seconds.
        *(
            pytest.param(
                name, 'aot_eager', 1 if name == 'HViT3' else None, marks=pytest.mark.thorough
            )
            for name in BACKBONES
            if name != 'LaplacianFormer'
        ),
        # Each is compiled by itself, for most of a minute.
        *(pytest.param(name, 'inductor', 2, marks=pytest.mark.thorough) for name in OF_FAMILY),
    ],
)
def test_trains_in_one_graph(name, backend, stages):
    torch._dynamo.reset()  # it compiles a function, such as a block's, a few times at most
    backbone, images = cut_off(name, stages).train(), torch.randn(2, 3, 64, 96)
    compiled = torch.compile(backbone, backend=backend, fullgraph=True)
    weights = [weight for weight in backbone.parameters() if weight.requires_grad]
    outs = compiled(images), backbone(images)
    chances = [torch.randn_like(out) for out in outs[1]]
    ours, theirs = (torch.autograd.grad(out, weights, chances) for out in outs)
    # Another order of sums in every layer of fp32.
    torch.testing.assert_close(*outs, atol=1e-4, rtol=1e-3)
    largest = max(grad.abs().max().item() for grad in theirs)
    for a, b in zip(ours, theirs):
        # Sums over all tokens that cancel, to nothing where a shift changes no difference (the bias
        # of SOFT's queries, which are its keys).
        torch.testing.assert_close(a, b, atol=2e-3 * b.abs().max().item() + 1e-4 * largest, rtol=0)


@needs_torch(2, 7)
@pytest.mark.sampled(2)
@pytest.mark.parametrize('name', OF_FAMILY)
@pytest.mark.slow
def test_one_graph_for_all_sizes_has_the_ops_of_the_eager_model(name):
    torch._dynamo.reset()
    graphs = []

    def keep(graph, inputs):
        graphs.append({node.target for node in graph.graph.nodes if node.op == 'call_function'})
        return graph.forward

    backbone = cut_off(name, 1).eval()
    compiled = torch.compile(backbone, backend=keep, fullgraph=True, dynamic=True)
    with torch.no_grad():
        # torch makes another graph for a first map of fewer than 20,480 values.
        for size in ((96, 128), (128, 160), (160, 192)):
            images = torch.randn(1, 3, *size)
            # The same ops, around which a graph may compute in another order.
            torch.testing.assert_close(compiled(images), backbone(images), atol=1e-4, rtol=1e-3)
    (graph,) = graphs
    found = {op.__name__.split('.')[0] for op in graph if 'mmlaplace' in str(op)}
    assert found >= OF_FAMILY[name] | {'_gelu_ffn'}


# Without a ridge, rounding decides which eigenvalues of SOFT's near landmarks count as zero.
SOLVERS = [
    ('LaplacianFormer', dict(solver='newton_schulz')),
    ('LaplacianFormer', dict(solver='conjugate_gradient')),
    ('SOFTPlusPlus', dict(solver='svd', ridge=1e-2)),
    ('SOFTPlusPlus', dict(solver='cholesky', ridge=1e-2)),
]


@pytest.mark.parametrize(('name', 'attn_cfg'), [*((name, None) for name in BACKBONES), *SOLVERS])
def test_a_nan_pixel_spoils_its_image_alone(name, attn_cfg):
    backbone, images = build(name, attn_cfg=attn_cfg).eval(), torch.randn(3, 3, 64, 64)
    spoilt = images.clone()
    spoilt[1, 0, 5, 7] = float('nan')
    with torch.no_grad():
        clean, outs = backbone(images), backbone(spoilt)
    for before, after in zip(clean, outs):
        # In first stages, windows and convolutions reach a part of the map.
        local = name.startswith(('CSWin', 'Swin', 'EfficientViT', 'MobileViT'))
        assert after[1].isnan().any() if local else after[1].isnan().all()
        # The same kernels on the same values; products of a batch may be cut into other blocks.
        torch.testing.assert_close(after[[0, 2]], before[[0, 2]], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('name', BACKBONES)
def test_a_forward_reads_no_value(name):
    backbone, images = build(name).eval(), torch.randn(2, 3, 64, 64)
    with torch.no_grad(), Called() as called:
        backbone(images)
    assert called.reads == []


EXACT = dict(rtol=0, atol=0)  # a graph runs the same layers on the same values
fast_names = pytest.mark.parametrize('name', ['LaplacianFormer', 'Swin', 'SwiftFormer'])


def check_graph(graph, model):
    """The graph gives the values of the model at sizes that no trace has seen."""
    for size in ((2, 3, 64, 96), (1, 3, 45, 130)):
        images = torch.randn(size)
        with torch.no_grad():
            torch.testing.assert_close(graph(images), model(images), **EXACT)


def steps(graph):
    return {node.target for node in graph.graph.nodes if node.op == 'call_module'}


class ByShape(BaseAttention):
    """An attention of the user."""

    def forward(self, x, hw_shape, mask=None):
        return x.cumsum(1) / x.shape[1] if x.shape[1] > 30 else x.mean(1, keepdim=True) + x


@pytest.mark.parametrize(
    ('name', 'options'),
    [
        *((name, {}) for name in BACKBONES),
        ('SOFT', dict(out_type='cls_token', out_indices=-1)),
        ('XCiTBackbone', dict(out_type='cls_token')),
        ('XCiTBackbone', dict(arch='micro', pyramid_blocks=(0, 1, 2, 3))),
        ('PVT', dict(out_indices=(1, 2), out_norms=True)),
        ('PVT', dict(attn_cfg=dict(type=ByShape))),
    ],
)
def test_a_trace_without_arguments_can_be_pickled_and_gives_the_maps(name, options):
    backbone = build(name, **options).eval()
    graph = pickle.loads(pickle.dumps(symbolic_trace(backbone)))
    check_graph(graph, backbone)
    places = re.compile(r'stages\.\d+\.blocks\.\d+\.attn')
    attentions = {name for name, _ in backbone.named_modules() if places.fullmatch(name)}
    assert attentions and attentions <= steps(graph)


class TwoImages(nn.ModuleList):
    """Compares two images by one backbone."""

    def forward(self, x):
        a, b = (self[0](image)[-1].mean((2, 3)) for image in (x, x.flip(-1)))
        return self[1](a - b)


def test_a_model_around_a_backbone_traces():
    model = TwoImages([build('LaplacianFormer'), nn.Linear(64, 1)]).eval()
    check_graph(symbolic_trace(model), model)
    # Any other trace has its own leaf modules.
    assert steps(symbolic_trace(nn.Sequential(nn.Sequential(nn.ReLU())))) == {'0.0'}


@fast_names
@pytest.mark.parametrize('with_cp', [False, True])
def test_a_graph_trains_like_the_backbone(name, with_cp):
    backbone = build(name, with_cp=with_cp, drop_path_rate=0.5).train()
    graph, images = symbolic_trace(backbone), torch.randn(2, 3, 64, 96)
    assert ('stages.0.blocks.0' in steps(graph)) == with_cp  # with checkpointing a block is whole
    gradients = []
    for model in (backbone, graph):
        torch.manual_seed(1)  # of the blocks that are dropped
        loss = sum(out.square().sum() for out in model(images))
        gradients.append(torch.autograd.grad(loss, list(backbone.parameters())))
    torch.testing.assert_close(*gradients, **EXACT)
    check_graph(graph.eval(), backbone.eval())


@fast_names
def test_torchvision_extracts_the_features_of_blocks_and_attentions(name):
    extraction = pytest.importorskip('torchvision.models.feature_extraction')
    backbone, images = build(name).eval(), torch.randn(2, 3, 64, 96)
    nodes, kept = ['stages.3.blocks.0.attn', 'stages.3.blocks.0'], []
    for node in nodes:
        backbone.get_submodule(node).register_forward_hook(lambda *called: kept.append(called[-1]))
    backbone(images)
    expected = dict(zip(nodes, kept))
    features = extraction.create_feature_extractor(backbone, nodes)(images)
    torch.testing.assert_close(features, expected, **EXACT)
