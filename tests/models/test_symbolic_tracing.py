"""torch.fx, and the feature extractors of torchvision, on backbones."""

import pickle
import re

import pytest
import torch
import torch.nn as nn
from test_backbones import BACKBONES, build
from torch.fx import symbolic_trace

from mmlaplace.models.attentions.base import BaseAttention

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


@pytest.mark.parametrize('name', BACKBONES)
def test_a_trace_without_arguments_can_be_pickled_and_gives_the_maps(name):
    backbone = build(name).eval()
    graph = pickle.loads(pickle.dumps(symbolic_trace(backbone)))
    check_graph(graph, backbone)
    places = re.compile(r'stages\.\d+\.blocks\.\d+\.attn')
    attentions = {name for name, _ in backbone.named_modules() if places.fullmatch(name)}
    assert attentions and attentions <= steps(graph)


@pytest.mark.parametrize(('name', 'options'), [
    ('SOFT', dict(out_type='cls_token', out_indices=-1)),
    ('XCiTBackbone', dict(out_type='cls_token')),
    ('XCiTBackbone', dict(arch='micro', pyramid_blocks=(0, 1, 2, 3))),
    ('PVT', dict(out_indices=(1, 2), out_norms=True)),
])  # fmt: skip
def test_other_outputs_trace_too(name, options):
    backbone = build(name, **options).eval()
    check_graph(symbolic_trace(backbone), backbone)


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


def test_an_attention_of_the_user_is_a_step():
    class ByShape(BaseAttention):
        def forward(self, x, hw_shape, mask=None):
            return x.cumsum(1) / x.shape[1] if x.shape[1] > 30 else x.mean(1, keepdim=True) + x

    backbone = build('PVT', attn_cfg=dict(type=ByShape)).eval()
    check_graph(symbolic_trace(backbone), backbone)
