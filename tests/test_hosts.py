"""Other projects run our backbones by the lines that docs/timm.md shows."""

import json
import re
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from conftest import ROOT, load_tool, output_of, run_script
from hosts import HOSTS, SIDE, build
from PIL import Image

timm = pytest.importorskip('timm', reason='no timm: pip install "mmlaplace[timm]"')


CASES = [pytest.param(host, head, id=head) for host in HOSTS for head in host.heads]
SMALL = 'laplacianformer_micro'
SAME = dict(rtol=0, atol=0)  # the same weights in the same layers


@pytest.fixture(autouse=True, scope='module')
def beside():
    """What set-up installs beside the environment.

    mmpretrain 1.3.6 cannot be imported where it finds transformers 5, so it comes first.
    """
    if find_spec('mmpretrain'):
        import_module('mmpretrain.models')
    folder = str(Path(sys.prefix) / 'hosts')
    sys.path.append(folder)
    yield
    sys.path.remove(folder)


def need(package: str) -> None:
    name = package.replace('-', '_')
    if find_spec(name) is None:
        pytest.skip(f'no {package}: requirements/tests.txt or hosts.txt names its version')
    if name == 'transformers' and not sys.modules.get(name):
        transformers = pytest.importorskip('transformers')
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Without what runs of mmengine in this process left, which accelerate would join."""
    for name in ('LOCAL_RANK', 'RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT'):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def images():
    torch.manual_seed(0)
    return torch.randn(2, 3, SIDE, SIDE)


@pytest.mark.sampled(2, 2)
@pytest.mark.parametrize(('host', 'head'), CASES)
def test_a_host_trains_saves_and_runs_in_half_precision(host, head, images):
    need(host.package)
    torch.manual_seed(0)
    model, other = build(host, head).train(), build(host, head)
    host.loss(model, images).backward()
    # smp's DPT keeps the classifier of a timm model and the norm before it.
    unused = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert [n for n in unused if not re.search(r'encoder\.model\.(head|backbone\.norm)', n)] == []
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        expected = host.predict(model.eval(), images)
        torch.testing.assert_close(host.predict(other.eval(), images), expected, **SAME)
        half = host.predict(model.bfloat16(), images.bfloat16())
    assert half.dtype == torch.bfloat16 and half.isfinite().all()


@pytest.mark.slow
def test_the_script_trains_a_detector_by_the_trainer_loads_and_evaluates_it(tmp_path):
    need('transformers')
    pytest.importorskip('accelerate')
    from transformers import RTDetrForObjectDetection

    script, out = ROOT / 'tools/train_rt_detr.py', tmp_path / 'out'
    options = ('--small', '--image-size', SIDE, SIDE, '--epochs', 1, '--work-dir', out)
    content = dict(
        images=[dict(id=7, file_name='a.png', height=SIDE, width=SIDE)],
        categories=[dict(id=3, name='cat'), dict(id=9, name='dog')],  # with gaps, as COCO's
        annotations=[
            dict(id=1, image_id=7, category_id=9, bbox=[8, 8, 32, 40], area=1280, iscrowd=0)
        ],
    )
    missing = run_script(script, tmp_path, *options)
    assert 'there is no ' in missing.stderr and missing.stderr.endswith('in the layout of --help\n')
    (tmp_path / 'annotations').mkdir()
    for part in ('train', 'val'):
        (tmp_path / f'annotations/{part}.json').write_text(json.dumps(content))
        (tmp_path / part).mkdir()
        Image.new('RGB', (SIDE, SIDE)).save(tmp_path / part / 'a.png')
    wrong = run_script(script, tmp_path, '--backbone', 'laplacianformer_micr')
    assert "'laplacianformer_micr'; similar ones are ['laplacianformer_micro'" in wrong.stderr
    output_of(script, tmp_path, *options)
    log = json.loads((out / 'results.json').read_text())
    assert set(log['box']) == {'AP', 'AP50', 'AP75'}
    _, told = RTDetrForObjectDetection.from_pretrained(out, output_loading_info=True)
    assert not (told['missing_keys'] or told['unexpected_keys'])


def test_labels_of_images_to_evaluate_are_those_of_the_training(tmp_path):
    tool = load_tool('tools/train_rt_detr.py')
    (tmp_path / 'annotations').mkdir()

    def part(name, categories, train=None):
        content = dict(images=[], annotations=[], categories=categories)
        (tmp_path / f'annotations/{name}.json').write_text(json.dumps(content))
        return tool.CocoImages(tmp_path, name, None, train)

    cat, dog = dict(id=3, name='cat'), dict(id=9, name='dog')
    train = part('train', [cat, dog])
    assert part('val', [dog], train).categories == [3, 9]  # a file may leave out what it lacks
    with pytest.raises(SystemExit, match=r"val.json has the categories \{3: 'dog'\}, and train"):
        part('val', [dict(id=3, name='dog')], train)


@pytest.mark.parametrize(
    ('name', 'shapes'),
    [
        ('agent_deit_tiny', [(2, 1, 192)] * 12),
        ('softpp_micro', [None] * 3 + [(2, 1, 128)]),
    ],
)
def test_prefix_tokens_are_those_of_timm(name, shapes, images):
    """As smp's DPT asks for them: with each map the class token, where the stage has one."""
    model, options = timm.create_model(name, img_size=SIDE).eval(), dict(intermediates_only=True)
    plain = model.forward_intermediates(images, **options)
    pairs = model.forward_intermediates(images, **options, return_prefix_tokens=True)
    for one, (again, token), shape in zip(plain, pairs, shapes):
        torch.testing.assert_close(again, one, **SAME)
        assert token is shape or token.shape == shape
    assert len(pairs) == len(shapes)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(backbone='laplacianformer_nano'), r'Unknown model \(laplacianformer_nano\)'),
        (dict(out_indices=[1, 4]), r'feature index 4 is out of range \(0 to 3\)'),
        (dict(output_stride=16), "LaplacianFormer has no option 'output_stride'"),
        ({}, r'at least 4 x 4 pixels, got shape \(1, 3, 2, 64\)'),
    ],
)
def test_transformers_shows_what_is_wrong_with_a_backbone_or_an_image(options, message):
    need('transformers')
    import_module('mmlaplace.timm')
    from transformers import TimmBackbone, TimmBackboneConfig

    options, image = dict(dict(backbone=SMALL), **options), torch.randn(1, 3, 2, SIDE)
    with pytest.raises((RuntimeError, AssertionError, TypeError, ValueError), match=message):
        TimmBackbone(TimmBackboneConfig(**options))(image)
    with pytest.raises(ValueError, match=f'no released weights of {SMALL!r} are known'):
        TimmBackbone.from_pretrained(SMALL)


VIT = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    image_size=SIDE,
    patch_size=16,
)
VITS = ('ViT', 'DINOv3ViT', 'Dinov2WithRegisters', 'SiglipVision', 'CLIPVision')


def of_transformers(name, implementation, **options):
    """A small model of transformers with random weights, always the same."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f'{name}Config')(
        **VIT, **options, attn_implementation=implementation
    )
    return getattr(transformers, f'{name}Model')(config).eval()


@pytest.mark.parametrize('name', VITS)
def test_a_vit_of_transformers_takes_our_mixing_rules_by_name(name, images):
    need('transformers')
    from mmlaplace.transformers import NAMES

    model = of_transformers(name, 'eager')
    with torch.no_grad():  # a softmax of small logits is almost linear
        for parameter in model.parameters():
            parameter.mul_(8 if parameter.dim() == 2 else 1)
    wanted, seen = model(images).last_hidden_state, []
    for rule in NAMES:
        model.set_attn_implementation(rule)
        seen.append(model(images).last_hidden_state)
        assert seen[-1].shape == wanted.shape and seen[-1].isfinite().all()
        if rule == 'SoftmaxAttention':  # sums in another order, of large scores
            torch.testing.assert_close(seen[-1], wanted, rtol=0, atol=1e-3)
        elif rule != 'NystromformerAttention':  # which is softmax for few tokens
            assert (seen[-1] - wanted).abs().max() > 1e-2, rule
    # Some rules are alike without a map, such as MLLA's and LinearAttention's.
    assert len({round(out.abs().sum().item(), 2) for out in seen}) > 10
    model.train()(images).last_hidden_state.sum().backward()
    inside = [p for n, p in model.named_parameters() if '.0.' in n and 'att' in n]
    assert len(inside) >= 4 and all(p.grad is not None for p in inside)


def called(name, *tensors, **options):
    """What a rule of a name gives for queries, keys and values."""
    from transformers import AttentionInterface

    import mmlaplace.transformers  # noqa: F401  (registers them)

    options = dict(dict(attention_mask=None), **options)
    return AttentionInterface()[name](torch.nn.Identity(), *tensors, **options)


def test_a_rule_scales_its_queries_repeats_its_keys_and_gives_no_weights():
    need('transformers')
    q, k, v = (torch.randn(2, heads, 9, 16) for heads in (4, 2, 2))
    out, weights = called('SoftmaxAttention', q, k, v, scaling=0.5)
    full = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.5, enable_gqa=True)
    assert weights is None and out.is_contiguous()
    torch.testing.assert_close(out, full.transpose(1, 2))
    seen = torch.rand(2, 1, 9, 9) > 0.3
    out, _ = called('SoftmaxAttention', q, k, v, attention_mask=seen)
    full = torch.nn.functional.scaled_dot_product_attention(q, k, v, seen, enable_gqa=True)
    torch.testing.assert_close(out, full.transpose(1, 2))
    features = [torch.nn.functional.elu(x.repeat_interleave(n, 1)) + 1 for x, n in ((q, 1), (k, 2))]
    kernel = features[0] @ features[1].mT
    wanted = kernel / kernel.sum(-1, keepdim=True) @ v.repeat_interleave(2, 1)
    torch.testing.assert_close(called('LinearAttention', q, k, v)[0], wanted.transpose(1, 2))


def test_rules_with_options_get_a_name_and_those_with_weights_are_refused(images):
    need('transformers')
    import mmlaplace.transformers

    gaussian = dict(type='KernelAttention', kernel='gaussian', normalization='rows')
    mmlaplace.transformers.register('exact', gaussian)
    mmlaplace.transformers.register('FLattenAttention')
    mmlaplace.transformers.register('PerformerAttention')
    q, k, v = (torch.randn(2, 4, 9, 16) for _ in range(3))
    for name, power, width in (('exact', 2, 2 * 16**0.5), ('KernelAttention', 1, 4)):
        distances = torch.cdist(q, k, power) ** power  # the default bandwidths, for d = 16
        wanted = (-distances / width).softmax(-1) @ v
        torch.testing.assert_close(called(name, q, k, v)[0], wanted.transpose(1, 2))
    for name, tensor in (('FLatten', 'scale'), ('Performer', 'projection_matrix')):
        with pytest.raises(ValueError, match=rf'{name}Attention has tensors of its own .{tensor}'):
            called(f'{name}Attention', q, k, v)
    for options, message in (
        (dict(is_causal=True), 'LinearAttention has no causal form, which Identity asks for'),
        (dict(attention_mask=torch.ones(2, 1, 9, 9)), r'no attention_mask .got .2, 1, 9, 9'),
        (dict(dropout=0.1), 'LinearAttention has no matrix of weights to drop from, got dropout'),
    ):
        with pytest.raises(ValueError, match=message):
            called('LinearAttention', q, k, v, **options)
    with pytest.raises(
        ValueError, match='NystromformerAttention needs keys .* got 9 queries and 5'
    ):
        called('NystromformerAttention', q, k[:, :, :5], v[:, :, :5])


@pytest.mark.slow
def test_a_vit_of_transformers_with_our_rule_compiles_in_one_graph(images):
    need('transformers')
    import mmlaplace.transformers  # noqa: F401

    model = of_transformers('DeiT', 'LinearAttention')
    compiled = torch.compile(model, backend='aot_eager', fullgraph=True)
    torch.testing.assert_close(
        compiled(images).last_hidden_state, model(images).last_hidden_state, rtol=0, atol=1e-6
    )


def test_without_transformers_the_error_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, 'mmlaplace.transformers', raising=False)
    monkeypatch.setitem(sys.modules, 'transformers', None)
    with pytest.raises(ImportError, match='pip install transformers, in an environment without'):
        import_module('mmlaplace.transformers')
