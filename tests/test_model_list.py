"""Models by name and in lists: of Python, of ``python -m mmlaplace list``, of mmpretrain's hub."""

import csv
import json
import os
import re
import sys
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, registered, run_python
from mmengine.config import Config
from mmengine.registry import DefaultScope

import mmlaplace
from mmlaplace import toolbox_hubs
from mmlaplace.__main__ import main
from mmlaplace.check import Finding, report
from mmlaplace.checkpoints import PUBLISHED
from mmlaplace.commands.model_list import path_from_here
from mmlaplace.lab.side_by_side.backbone_candidates import catalogue
from mmlaplace.model_zoo import files_root, get_config, read_models
from mmlaplace.models import FAMILIES, LaplacianFormer, PyramidBackbone

B0 = 'polaformer-pvtv2-b0_8xb128_in1k'
LAPLACIAN_RETINANET = 'retinanet_laplacianformer-tiny_fpn_1x_coco'
SEMANTIC_FPN = 'laplacianformer-tiny_fpn_8xb4-40k_ade20k-512x512'


def test_the_table_has_the_counts_the_published_score_and_the_path(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert main(['list', '*former-PVTv2-b[0]_*', 'retinanet_polaformer-pvt-tiny*']) == 0
    header, b0, retinanet = (line.split() for line in capsys.readouterr().out.splitlines())
    assert 'published score' in ' '.join(header)
    path = f'configs/classification/polaformer/{B0}.py'
    assert b0 == [B0, 'classification', '3.79', '0.58', 'top-1', '72.3', 'MIT', path]
    assert retinanet[1:7] == ['detection', '–', '–', 'box', 'AP', '39.5']
    assert (ROOT / path).is_file() and (ROOT / retinanet[8]).is_file()


def test_a_backbone_has_the_counts_of_its_classifier_in_the_list(capsys):
    assert main(['list', 'ravlt-[tm]i*', '--task', 'backbone']) == 0
    _, micro, tiny = (line.split() for line in capsys.readouterr().out.splitlines())
    (classifier,) = (model for model in read_models() if model.name == 'ravlt-tiny_8xb128_in1k')
    counts = (classifier.metadata[name] for name in ('Parameters', 'MACs'))
    assert tiny[:2] == ['ravlt-tiny', 'backbone']
    assert [float(count) for count in tiny[2:4]] == pytest.approx(
        [count / scale for count, scale in zip(counts, (1e6, 1e9))],
        abs=0.005,  # two decimals
    )
    assert micro[2:5] == ['–', '–', '–']  # no config has it


def test_the_json_has_every_model_of_the_task(capsys):
    assert main(['list', '--task', 'segmentation', '--json']) == 0
    models = {model.pop('name'): model for model in json.loads(capsys.readouterr().out)}
    assert [*models] == mmlaplace.list_models(task='segmentation')
    softpp = models['softpp-small_upernet_8xb2-160k_ade20k-512x512']
    assert (softpp['published'], softpp['macs']) == (dict(mIoU=46.5), None)


@pytest.mark.parametrize(
    ('words', 'near'),
    [
        (['polr*'], 'polaformer'),
        (['soft*', 'lapacian', '--task', 'backbone'], 'laplacianformer-tiny'),
        (['soft-*', '--task', 'detection'], 'retinanet_softpp-tiny_fpn_1x_coco'),
    ],
)
def test_a_pattern_without_a_match_is_quoted_with_near_names(words, near, capsys):
    assert main(['list', *words]) == 1
    sentence = capsys.readouterr().err
    assert near in sentence and 'similar names are' in sentence
    assert any(f'matches {word!r};' in sentence for word in words)


def test_check_is_a_command(monkeypatch, capsys):
    broken = Finding('ops', 'problem', 'broken', 'mend them')
    monkeypatch.setattr(report, 'CHECKS', {'ops': lambda: [broken]})
    assert main(['check', '--json']) == 1
    (found,) = json.loads(capsys.readouterr().out)['findings']
    assert found == dict(check='ops', **broken._asdict())
    assert main(['check']) == 1
    assert 'mend them' in capsys.readouterr().out


def test_numbers_in_names_are_sorted_by_value():
    names = mmlaplace.list_models('laplacianformer-small_8xb*_in1k')
    assert [name.split('_')[1][:5] for name in names] == ['8xb64', '8xb12']


def test_paths_are_short_inside_of_the_working_directory_and_whole_outside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert path_from_here(str(tmp_path / 'a/b.py')) == os.path.join('a', 'b.py')
    assert path_from_here(str(tmp_path.parent / 'b.py')) == str(tmp_path.parent / 'b.py')


@pytest.mark.slow
def test_a_backbone_is_created_by_its_name_or_that_of_a_config_or_of_weights():
    soft = mmlaplace.create_backbone('soft-tiny-norm', attn_cfg=dict(type='SoftmaxAttention'))
    assert [x.shape[-1] for x in soft(torch.zeros(1, 3, 64, 64))] == [16, 8, 4, 2]
    assert type(soft.stages[0]['blocks'][0].attn).__name__ == 'SoftmaxAttention'
    by_timm = mmlaplace.create_backbone('soft_tiny_norm')
    assert (type(by_timm), by_timm.embed_dims) == (type(soft), soft.embed_dims)
    with pytest.raises(ValueError, match="'soft_tyny'.*similar names are"):
        mmlaplace.create_backbone('soft_tyny')
    last = mmlaplace.create_backbone(B0, img_size=64)
    assert (last.out_indices, last.img_size) == ((3,), (64, 64))
    released = mmlaplace.create_backbone('cswin-base-384')
    assert released.img_size == (384, 384)
    assert released.stages[2]['blocks'][0].attn.stripe_width == 12


def test_every_function_knows_the_names_of_all_backbones():
    """Also those that no config has; timm's have another hyphen."""
    names = set(mmlaplace.list_models(task='backbone'))
    assert names <= set(mmlaplace.list_models()) and names == set(catalogue(''))
    model = mmlaplace.get_model('laplacianformer-micro', backbone_only=True, img_size=64)
    assert type(model) is LaplacianFormer and model.embed_dims == (32, 64, 96, 128)
    named = {cls.__name__ for family in FAMILIES.values() for cls in family.backbones}
    assert named == set(registered(PyramidBackbone))
    pytest.importorskip('timm')
    from mmlaplace.timm import MODELS

    assert {name.replace('_', '-') for name in MODELS if name not in PUBLISHED} <= names


def test_a_family_is_a_file_with_a_folder_of_configs():
    """Its classifiers are in that folder, and so are the published ones that have a config."""
    folders = {path.name for path in (ROOT / 'configs/classification').iterdir()} - {'_base_'}
    assert set(FAMILIES) == folders
    for model in read_models():
        name = model.metadata.get('Published as')
        assert name is None or name in FAMILIES[model.family].published, model.name


def test_a_config_is_printed_from_which_another_inherits(tmp_path, capsys):
    """Outside of a clone too: with all that it inherits."""
    assert main(['config', B0]) == 0
    (tmp_path / 'base.py').write_text(capsys.readouterr().out)
    changed = "_base_ = 'base.py'\nmodel = dict(head=dict(num_classes=2))\n"
    (tmp_path / 'mine.py').write_text(changed)
    mine = Config.fromfile(tmp_path / 'mine.py')
    expected = get_config(B0)
    expected.model.head.num_classes = 2
    assert mine.to_dict() == expected.to_dict()
    assert main(['config', 'laplacian']) == 1
    assert 'similar names are' in capsys.readouterr().err


def test_mmpretrain_lists_builds_and_runs_the_classifiers():
    mmpretrain = pytest.importorskip('mmpretrain')
    found = mmpretrain.list_models('*laplacian*', task='Image Classification')
    assert set(found) == set(mmlaplace.list_models('laplacian', task='classification'))
    assert not mmpretrain.list_models('retinanet_*')
    model = mmpretrain.get_model(B0, backbone=dict(drop_path_rate=0.0))
    with DefaultScope.overwrite_default_scope('mmpretrain'):  # another test may have left its own
        result = mmpretrain.inference_model(model, torch.zeros(64, 64, 3).byte().numpy())
    assert len(result['pred_scores']) == 1000


def test_a_name_that_mmpretrain_has_stays_its_own(tmp_path):
    api = pytest.importorskip('mmpretrain.apis.model')
    theirs, config = mmlaplace.list_models(task='classification')[3], tmp_path / 'theirs.py'
    index = tmp_path / 'model-index.yml'
    index.write_text(
        f'Models: [{{Name: {theirs}, In Collection: A, Config: {config}}}]\n'
        'Collections: [{Name: A, Metadata: {}}]\n'
    )

    class Hub(api.ModelHub):
        """The hub of a later mmpretrain."""

        _models_dict = {}

        @classmethod
        def _register_mmpretrain_models(cls):
            if not cls.has(theirs):
                cls.register_model_index(index)

    toolbox_hubs.register(Hub)
    Hub._register_mmpretrain_models()
    assert Hub._models_dict[theirs].config == str(config)
    assert Hub.get(B0).config.model.backbone.type == 'PolaFormerPVTv2'
    assert {*Hub._models_dict} == {*mmlaplace.list_models(task='classification')}


def test_inferencers_have_our_detectors_beside_those_of_the_toolbox(monkeypatch):
    monkeypatch.setitem(sys.modules, 'mmdet', SimpleNamespace())
    theirs = dict(Name=LAPLACIAN_RETINANET.upper(), Config='theirs.py')

    class Base:
        @staticmethod
        def _get_models_from_metafile(folder):
            return iter([theirs])

        @staticmethod
        def _get_repo_or_mim_dir(scope):
            return f'of {scope}'

    toolbox_hubs.add_to_inferencers(Base)
    found = [*Base._get_models_from_metafile('of mmdet')]
    assert [each for each in found if each['Name'].lower() == LAPLACIAN_RETINANET] == [theirs]
    names = {each['Name'].lower() for each in found}
    assert names == {*mmlaplace.list_models(task='detection')}
    assert [*Base._get_models_from_metafile('of mmpretrain')] == [theirs]


@pytest.mark.slow
def test_the_order_of_the_imports_does_not_matter():
    code = 'import mmpretrain, mmlaplace; assert mmpretrain.list_models("softpp-*")'
    assert run_python('-c', code).returncode == 0


@pytest.mark.parametrize(
    ('options', 'chosen'),
    [
        (dict(pattern='*-Tiny*'), '.*-tiny.*'),
        (dict(pattern='TINY', exclude_filters=''), '.*tiny.*'),  # the default of timm
        (
            dict(pattern=['SOFTpp-*_in1k', 'polaformer-p[!x]t-*_in1k']),
            '(softpp|polaformer-p[^x]t)-.*_in1k',
        ),
        (
            dict(pattern='Tiny', exclude_filters=('retinaNet*', '*_ade20k-*')),
            '(?!retinanet|.*_ade20k-).*tiny.*',
        ),
        (dict(pattern='retinanet_*r-tiny*', family='laplacianformer'), LAPLACIAN_RETINANET),
        (dict(task='detection'), '.*coco.*'),
        (dict(pattern=[]), ''),
        (dict(exclude_filters='*'), ''),
    ],
)
def test_lists_are_filtered_blind_to_case_and_by_several_patterns(options, chosen):
    expected = [name for name in mmlaplace.list_models() if re.fullmatch(chosen, name)]
    assert mmlaplace.list_models(**options) == expected
    assert bool(expected) == bool(chosen)


def test_backbone_alone_takes_options_and_weights(tmp_path):
    file, options = tmp_path / 'weights.pth', dict(out_indices=(0, 3), drop_path_rate=0.0)
    backbone = mmlaplace.get_model(B0, pretrained=False, backbone_only=True, **options)
    maps = backbone(torch.zeros(1, 3, 64, 64))
    assert [tuple(m.shape) for m in maps] == [(1, 32, 16, 16), (1, 256, 2, 2)]
    weights = {f'backbone.{k}': torch.randn_like(v) for k, v in backbone.state_dict().items()}
    torch.save(dict(state_dict=weights), file)
    created = mmlaplace.create_backbone('polaformer-pvtv2-b0', file, **options)
    created.init_weights()  # as a runner does
    for model in (created, mmlaplace.get_model(B0, file, backbone_only=True, **options)):
        state = {f'backbone.{name}': value for name, value in model.state_dict().items()}
        assert all(torch.equal(state[name], value) for name, value in weights.items())


@pytest.mark.parametrize(
    ('name', 'toolbox', 'kind'),
    [
        ('softpp-tiny_8xb128_in1k', 'mmpretrain', 'ImageClassifier'),
        (LAPLACIAN_RETINANET, 'mmdet', 'RetinaNet'),
        (SEMANTIC_FPN, 'mmseg', 'EncoderDecoder'),
    ],
)
def test_whole_models_come_from_their_toolbox(name, toolbox, kind):
    pytest.importorskip(toolbox)
    model = mmlaplace.get_model(name, drop_path_rate=0.0)
    assert type(model).__name__ == kind
    assert type(model).__module__.startswith(f'{toolbox}.')
    assert model.backbone.stages[-1]['blocks'][-1].drop_path.drop_prob == 0


@pytest.mark.parametrize(
    ('call', 'error', 'said'),
    [
        (
            lambda: mmlaplace.create_backbone('laplaceformer-tiny'),
            ValueError,
            "tiny'; similar .*lapla",
        ),
        (
            lambda: mmlaplace.create_backbone('softpp-tiny', pretrained=True),
            ValueError,
            "released no weights of 'softpp-tiny'",
        ),
        (
            lambda: mmlaplace.get_model('dinov2-small_8xb128-linear_in1k', pretrained=True),
            ValueError,
            "no released weights of 'dinov2-small_8xb128-linear_in1k'",
        ),  # only of its backbone
        (
            lambda: mmlaplace.create_backbone('softpp-tiny', heads=2),
            TypeError,
            "no option 'heads'; its options are arch,",
        ),
        (
            lambda: mmlaplace.create_backbone('softpp-tiny', pretrained='a.pth', init_cfg=None),
            ValueError,
            "pretrained='a.pth' takes the place of an init_cfg.* leave one of them out",
        ),
        (
            lambda: mmlaplace.get_model('ravlt_tiny'),
            ValueError,
            r"no head: create_backbone\('ravlt_tiny'\) .*get_model\('ravlt-tiny_8xb128_in1k'\)",
        ),
        (lambda: mmlaplace.get_model('ravlt-tyny'), ValueError, "'ravlt-tyny'; similar names are"),
        (
            lambda: get_config('softpp-tiny'),
            ValueError,
            "'softpp-tiny'; similar .*softpp-tiny_8xb128",
        ),
        (
            lambda: mmlaplace.get_model(B0, pretrained=True, backbone_only=True),
            ValueError,
            "no released weights of 'polaformer-pvtv2-b0' are known",
        ),
        (
            lambda: mmlaplace.get_model(
                B0, pretrained=str(ROOT / 'model-index.yml'), backbone_only=True
            ),
            ValueError,
            'cannot be read as a checkpoint',
        ),
        (
            lambda: mmlaplace.list_models(task='tracking'),
            ValueError,
            "task must be .*got 'tracking'",
        ),
        (
            lambda: mmlaplace.list_models(family='resnet'),
            ValueError,
            "family must be .*got 'resnet'",
        ),
    ],
)
def test_what_there_is_not_is_refused_with_what_there_is(call, error, said):
    with pytest.raises(error, match=said):
        call()


def test_files_are_found_or_named(monkeypatch, tmp_path):
    assert (files_root() / 'configs').is_dir()
    monkeypatch.setattr('mmlaplace.model_zoo.__file__', str(tmp_path / 'mmlaplace/model_zoo.py'))
    with pytest.raises(FileNotFoundError, match='no .mim folder'):
        files_root()
    with pytest.warns(UserWarning, match='lacks our classifiers: .* has no .mim folder'):
        toolbox_hubs.register(SimpleNamespace())


def test_the_list_of_all_models_says_what_the_metafiles_do():
    with (ROOT / 'docs/model_zoo.csv').open() as file:
        rows = {row['name']: row for row in csv.DictReader(file)}
    models = {model.name: model for model in read_models()}
    assert list(rows) == list(models)
    for name, row in rows.items():
        published = models[name].metadata['Published']
        assert (ROOT / row['config']).is_file()
        assert row['published'] in map(str, published.values()) or not row['published']
        # What was checked is the conversion of weights that one can get.
        assert bool(row['weights']) == bool(row['checked']), name
        fitted = row['family'] == 'laplacianformer' and row['published'] != ''
        assert fitted == ('fitted' in row['note'])
    assert rows['xcit-s12-p16_8xb64-384px_in1k']['pixels'] == '384'
    assert rows['mask-rcnn_ravlt-tiny_fpn_1x_coco']['mask AP'] == '42.7'


@pytest.mark.parametrize('name', ['laplacianformer-micro', 'swin-micro', 'softpp-micro'])
def test_a_backbone_is_made_without_memory_and_filled_later(name):
    wanted = mmlaplace.create_backbone(name).eval()
    with torch.device('meta'):
        backbone = mmlaplace.create_backbone(name)
    assert all(tensor.is_meta for tensor in backbone.parameters())
    backbone.load_state_dict(wanted.state_dict(), assign=True)
    image = torch.randn(1, 3, 64, 96)
    for found, expected in zip(backbone.eval()(image), wanted(image), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    # Elsewhere the weights are the initial ones. Biases are zero, and those of torch's linears not.
    linears = [part for part in wanted.modules() if isinstance(part, torch.nn.Linear)]
    assert not any(part.bias.any() for part in linears if part.bias is not None)
    with torch.device('meta'), pytest.raises(ValueError, match='no memory.*assign=True'):
        mmlaplace.create_backbone(name, pretrained='weights.pth')
