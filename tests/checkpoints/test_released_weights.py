"""Released weights come by the name of a model, by every door, or one sentence says why not."""

import errno
import importlib
import os
import re
from unittest import mock
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import Request

import pytest
import torch
from conftest import ROOT, output_of
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import load_checkpoint
from saved_weights import assert_refused, assert_unreadable
from small_backbone import build
from test_checkpoint_sources import kept, place_of, serving, website  # noqa: F401, a fixture
from test_docs import code_blocks
from test_published import shapes_of

import mmlaplace
from mmlaplace.__main__ import main
from mmlaplace.checkpoints import DENSE, PUBLISHED, load_weights, read_state_dict

TINY = PUBLISHED['ravlt_tiny'].weights
CLASSIFIER = 'ravlt-tiny_8xb128_in1k'
# The smallest of each family whose file has an address.
SMALLEST = (
    'agent_deit_tiny',
    'cswin_tiny',
    'deit_tiny',
    'efficientvit_b0',
    'flatten_pvt_v2_b0',
    'inline_deit_tiny',
    'mavit_small',
    'mlla_tiny',
    'mobilevitv2_050',
    'prepbn_deit_tiny',
    'pvt_tiny',
    'pvt_v2_b0',
    'slab_deit_tiny',
    'swiftformer_xs',
    'swin_tiny',
    'xcit_nano_12_p16',
)


def put(server, address, content):
    """Give a website the file of an address."""
    file = place_of(address, server.folder)[-1]
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, file)
    return file


@pytest.fixture
def authors(website, monkeypatch):  # noqa: F811
    """All addresses lead to the server. The cache is empty."""
    open_address = torch.hub.urlopen

    def redirected(request):
        local = urlsplit(request.full_url)._replace(scheme='http', netloc=website.address[7:])
        return open_address(Request(local.geturl(), headers=dict(request.headers)))

    monkeypatch.setattr(torch.hub, 'urlopen', redirected)
    monkeypatch.delenv('HF_ENDPOINT', raising=False)
    return website


def random_weights(name, depth=99):
    """Random weights with the names and shapes of a released file, of so many blocks a stage."""
    weights = {}
    for key, shape in shapes_of(name).items():
        block = re.match(r'(?:.*\bblocks|stage\d+|block\d+)\.(\d+)\.', key)
        if not block or int(block[1]) < depth:
            value = torch.rand(shape) * (0.2 if len(shape) > 1 else 1) + 0.1 * ('var' in key)
            weights[key] = value.long() if 'num_batches' in key else value
    return weights


@pytest.fixture(scope='module')
def ravlt():
    torch.manual_seed(0)
    return random_weights('ravlt_tiny')


@pytest.fixture(scope='module')
def downloaded(ravlt, tmp_path_factory):
    """RAVLT-tiny comes from a mirror of the Hugging Face hub, once for all doors."""
    with serving(tmp_path_factory.mktemp('site')) as mirror, pytest.MonkeyPatch.context() as patch:
        put(mirror, TINY, dict(model=ravlt, epoch=299))
        patch.setenv('TORCH_HOME', str(tmp_path_factory.mktemp('torch_home')))
        patch.setenv('HF_ENDPOINT', f'{mirror.address}/')
        read_state_dict('mmlaplace://RAVLT-tiny')
        yield mirror


def timm_with_models():
    timm = pytest.importorskip('timm')
    importlib.import_module('mmlaplace.timm')
    return timm


@pytest.mark.slow
def test_each_door_of_a_backbone_loads_the_authors_file(downloaded, ravlt):
    init_cfg = dict(type='Pretrained', checkpoint='mmlaplace://ravlt-tiny')
    by_init_cfg = MODELS.build(dict(type='RAVLT', arch='tiny', init_cfg=init_cfg))
    by_init_cfg.init_weights()
    whole = torch.nn.ModuleDict(dict(backbone=MODELS.build(dict(type='RAVLT', arch='tiny'))))
    load_checkpoint(whole, 'mmlaplace://ravlt-tiny', map_location='cpu')  # as load_from does
    with mock.patch('mmlaplace.checkpoints.loading.print_log') as log:
        created = mmlaplace.create_backbone('ravlt-tiny', pretrained=True)
    assert 'left out' not in log.call_args.args[0]  # a backbone has no head, so none is missed
    expected = ravlt['layers.2.blocks.3.ffn.fc1.weight'].flatten(1)
    for backbone in (created, by_init_cfg, whole['backbone']):
        assert torch.equal(backbone.stages[2]['blocks'][3].ffn.layers[0].weight, expected)


@pytest.mark.slow
def test_the_classifiers_of_mmpretrain_and_timm_give_the_same_scores(downloaded):
    mmpretrain = pytest.importorskip('mmpretrain')
    timm = timm_with_models()
    images = torch.randn(1, 3, 64, 96)
    asked = list(downloaded.asked)
    by_timm = timm.create_model('ravlt_tiny', pretrained=True).eval()
    models = [mmlaplace.get_model(CLASSIFIER, pretrained=True).eval()]
    with DefaultScope.overwrite_default_scope('mmpretrain'):  # another test may have left its own
        inferencer = mmpretrain.ImageClassificationInferencer(CLASSIFIER, device='cpu')
    models.append(inferencer.model)  # by mmpretrain.get_model
    with torch.no_grad():
        expected = by_timm(images)
        for model in models:
            assert torch.equal(model(images, mode='tensor'), expected)
    assert downloaded.asked == asked  # all took the copy


def test_another_number_of_classes_or_channels_is_made_from_the_rest(downloaded, ravlt):
    timm = timm_with_models()
    with mock.patch('mmlaplace.checkpoints.loading.print_log') as log:
        model = timm.create_model('ravlt_tiny', pretrained=True, num_classes=10, in_chans=1)
    first = model.get_submodule(model.pretrained_cfg['first_conv']).weight
    weights = ravlt['patch_embed.proj.0.weight'].sum(1, keepdim=True)
    torch.testing.assert_close(first, weights, rtol=1e-6, atol=0)  # sums in another order
    assert model.get_classifier().weight.shape == (10, 1024)
    assert model.get_classifier().weight.abs().max() < 0.1  # not those of the file
    assert torch.equal(model.neck.projection.weight, ravlt['proj.weight'])
    (said,) = (call.args[0] for call in log.call_args_list if 'matched' in call.args[0])
    line = r'TimmClassifier from mmlaplace://ravlt-tiny \(http.*RAVLT_T.pth\).*matched \d+ of'
    assert re.match(line, said)
    assert 'head of 1000 classes left out, as the model has 10' in said
    model.neck.projection.weight.data.zero_()
    report = load_weights(model, 'mmlaplace://ravlt-tiny', skip=['neck'], adapt_input_conv=True)
    assert not model.neck.projection.weight.any()
    assert not any(name.startswith(('neck', 'head')) for name in (*report.matched, *report.missing))


def test_a_name_converts_to_a_file(downloaded, tmp_path):
    out = tmp_path / 'own.pth'
    tool = ROOT / 'tools/model_converters/convert.py'
    output_of(tool, 'mmlaplace://ravlt-tiny', '--out', out)
    load_weights(MODELS.build(dict(type='RAVLT', arch='tiny', out_norms=False)), out)


@pytest.mark.parametrize('name', SMALLEST)
def test_every_family_loads_from_its_authors_address(authors, name, monkeypatch):
    address, backbone = PUBLISHED[name].weights, dict(PUBLISHED[name].backbone, out_indices=-1)
    shallow = not name.startswith(('efficient', 'mobile', 'swift', 'xcit'))  # else small enough
    if shallow:
        arch = backbone['arch']
        sizes = arch if isinstance(arch, dict) else MODELS.get(backbone['type']).arch_zoo[arch]
        backbone['arch'] = dict(sizes, depths=(1,) * len(sizes['depths']))
    if name == 'deit_tiny':  # whose address has digits of the file's hash
        address = re.sub('-[0-9a-f]{8}', '', address)
        monkeypatch.setitem(PUBLISHED, name, PUBLISHED[name]._replace(weights=address))
    put(authors, address, dict(model=random_weights(name, 1 if shallow else 99)))
    with torch.device('meta'):  # random weights would take seconds
        module = MODELS.build(backbone)
    report = load_weights(module.to_empty(device='cpu'), f'mmlaplace://{name.replace("_", "-")}')
    assert not report.missing and not report.unexpected and not report.resized
    assert authors.asked[0].startswith(urlsplit(address).path)


def test_a_web_page_in_the_place_of_weights_is_one_sentence_and_leaves_nothing(authors):
    page = b'\n<!DOCTYPE html><html><body>Please log in.</body></html>'
    put(authors, TINY, None).write_bytes(page)
    message = 'answers with a web page, .* open the address in a browser, save the file, and.*$'
    assert_unreadable('mmlaplace://ravlt-tiny', message)
    assert kept(authors) == []


@pytest.mark.parametrize(
    ('error', 'message'),
    [
        (URLError('Name or service not known'), 'not known.*check the address and the network, or'),
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
            'the disk of .* is full; free space, or',
        ),
    ],
)
def test_no_network_and_no_space_are_one_sentence(authors, monkeypatch, error, message):
    monkeypatch.setattr(torch.hub, 'urlopen', mock.Mock(side_effect=error))
    assert_unreadable('mmlaplace://ravlt-tiny', f'{TINY} cannot be downloaded: .*{message}')
    assert kept(authors) == []


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('soft-tiny', "of 'soft-tiny' are behind a link of the web page .*; download them there"),
        ('softpp-tiny', "released no weights of 'softpp-tiny'; .*list --weights"),
        ('laplacianformer-tiny', "no released weights of 'laplacianformer-tiny' are known; python"),
    ],
)
def test_a_name_without_weights_is_never_random(name, message):
    with pytest.raises(ValueError, match=message):
        mmlaplace.create_backbone(name, pretrained=True)
    timm = timm_with_models()
    message = message.replace('laplacianformer-', 'laplacianformer_')
    with pytest.raises(ValueError, match=rf'{message}.*overlay=dict\(file='):
        timm.create_model(name.replace('-', '_'), pretrained=True)


def test_mmpretrain_has_an_address_for_each_classifier():
    hub = pytest.importorskip('mmpretrain.apis.model').ModelHub
    names = mmlaplace.list_models(task='classification')
    assert hub.get('pvtv2-b0_8xb128_in1k').name == 'pvtv2-b0_8xb128_in1k'  # which fills the hub
    assert {hub._models_dict[name].weights.partition('://')[0] for name in names} == {'mmlaplace'}
    assert hub._models_dict['pvtv2-b0_8xb128_in1k'].weights == 'mmlaplace://pvt-v2-b0'


def test_a_wrong_name_or_model_is_told(downloaded):
    for name, near in (('ravlt-tinny', 'ravlt-tiny'), ('swinv2-tiny', 'swinv2-tiny-window8')):
        assert_unreadable(f'mmlaplace://{name}', f"'{name}'.* similar names are {near}")
    message = 'mmlaplace://ravlt-tiny does not fit: .* it fits .*ravlt_ti'
    micro = MODELS.build(dict(type='RAVLT', arch='micro'))
    assert_refused(micro, 'mmlaplace://ravlt-tiny', message)
    detector = mmlaplace.list_models('flatten', task='detection')[0]
    with pytest.raises(ValueError, match=f"no weights of the whole '{detector}' are released"):
        mmlaplace.get_model(detector, pretrained=True)


def test_a_file_of_other_names_does_not_start_a_run(authors):
    put(authors, TINY, {'conv1.weight': torch.ones(1)})
    with pytest.raises(ValueError, match=r'the names in .* are 1 \(conv1.weight\), those of no'):
        load_checkpoint(build(), 'mmlaplace://ravlt-tiny')


def test_the_list_has_names_and_places(capsys):
    assert main(['list', '--weights', 'ravlt-t', 'soft-tiny']) == 0
    ravlt, soft, detector, *_ = capsys.readouterr().out.splitlines()
    assert ravlt.startswith('ravlt-tiny ') and ravlt.endswith(f'{TINY}  licence none')
    assert soft.startswith('soft-tiny ') and 'on https://github.com/fudan-zvg/SOFT' in soft
    name = 'retinanet_ravlt-tiny_fpn_1x_coco'
    assert detector.split() == [name, 'config', name, DENSE[name].weights, 'licence', 'none']
    assert main(['list', '--weights', 'ravlt-tinny']) == 1
    assert "match 'ravlt-tinny'; similar names are ravlt-tiny" in capsys.readouterr().err
    assert main(['list', '--weights', '--json']) == 2


@pytest.mark.slow
def test_the_ways_of_the_page_load(downloaded, monkeypatch):
    timm = timm_with_models()
    pytest.importorskip('mmpretrain')

    def of_timm(address, read):
        return timm.create_model(address.partition('://')[2]).state_dict()

    monkeypatch.setattr('mmlaplace.checkpoints.loading.weights_of_timm', of_timm)
    blocks = code_blocks(ROOT / 'docs/released_weights.md', 'python')
    ways = [block for block in blocks if block.startswith('import') or 'timm://' in block]
    assert len(ways) == 4
    for block in ways:
        names = dict(mmlaplace=mmlaplace)
        with DefaultScope.overwrite_default_scope('mmpretrain'):  # another test may have another
            exec(block.replace('mlla', 'ravlt'), names)  # whose file the mirror has
        if 'timm://' in block:
            MODELS.build(names['backbone']).init_weights()
