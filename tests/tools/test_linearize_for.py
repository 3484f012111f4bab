"""tools/linearize.py --for: from the name or config of a plain ViT to a hybrid detector."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT, micro_config, output_of, run_script, toolbox_model
from mmengine.config import Config
from mmengine.registry import MODELS
from own_data import write_class_folders, write_coco
from processes import run

from mmlaplace.checkpoints import load_weights
from mmlaplace.commands.random_images import train_and_predict
from mmlaplace.linearizing import (
    ImagesAlone,
    Scorer,
    data_loader,
    hybrids,
    image_batches,
    named_host,
    softmax_places,
)

TOOL = ROOT / 'tools/linearize.py'
RETINANET = micro_config('retinanet')
VIT = dict(
    type='ViT',
    arch=dict(embed_dims=(16,), depths=(3,), num_heads=(2,), ffn_ratios=(1,)),
    img_size=64,
)
AGENT = ('--attention', 'AgentAttention', '--options', 'num_landmarks=4')
QUICK = ('--device', 'cpu', '--layer-steps', '1', '--whole-steps', '1')
OWN = (TOOL, 'vit.py', 'vit.pth', '--for', 'detector.py', *AGENT, *QUICK)


def softmax_of(backbone):
    """The numbers of the blocks with softmax."""
    blocks = enumerate(backbone.stages[0].blocks)
    return [number for number, block in blocks if type(block.attn).__name__ == 'SoftmaxAttention']


def vit_with(**options):
    """The config of a classifier with a plain ViT, in the place of its pyramid."""
    cfg = Config.fromfile(micro_config('laplacianformer'))
    cfg.model.backbone = dict(VIT, out_type='cls_token', frozen_stages=1, **options)
    cfg.model.head.in_channels = 16
    cfg.data_preprocessor.update(mean=[1.0, 2.0, 3.0], to_rgb=True)
    return cfg


@pytest.fixture
def detector(tmp_path, monkeypatch):
    """A folder with a ViT, its weights, boxes on images, and a detector for these."""
    pytest.importorskip('mmdet')
    monkeypatch.chdir(tmp_path)
    vit_with().dump('vit.py')
    cfg = Config.fromfile('vit.py')
    torch.save(toolbox_model(cfg).state_dict(), 'vit.pth')
    write_coco(tmp_path / 'boxes', masks=False)
    loaders = {}
    for split in ('train', 'val'):
        loader = f'{split}_dataloader'
        loaders.update(
            {
                f'{loader}.batch_size': 2,
                f'{loader}.num_workers': 0,
                f'{loader}.persistent_workers': False,
                f'{loader}.dataset.data_root': 'boxes',
                f'{loader}.dataset.data_prefix': dict(img=split),
                f'{loader}.dataset.ann_file': f'annotations/{split}.json',
                f'{loader}.dataset.metainfo.classes': ('disc', 'box'),
            }
        )
    cfg = Config.fromfile(RETINANET)
    cfg.merge_from_dict(loaders)
    for pipeline in (cfg.train_dataloader.dataset.pipeline, cfg.val_dataloader.dataset.pipeline):
        for step in pipeline:
            step.pop('with_mask', None)
            if step.type == 'Resize':
                step.scale = (96, 64)
    cfg.val_evaluator.update(ann_file='boxes/annotations/val.json', metric='bbox')
    cfg.test_dataloader, cfg.test_evaluator = cfg.val_dataloader, cfg.val_evaluator
    cfg.model.bbox_head.num_classes = 2
    cfg.model.backbone.init_cfg = None
    cfg.dump('detector.py')
    return tmp_path


@pytest.fixture
def costs(monkeypatch):
    """Softmax takes 2 seconds in each of three blocks and a linear attention 1, of 8 and 5."""

    def block_costs(new, old, places, images, timer=None):
        block_costs.images = images
        return dict(
            whole=dict(softmax=8.0, linear=5.0),
            softmax=dict.fromkeys(places, 2.0),
            linear=dict.fromkeys(places, 1.0),
        )

    def seconds(jobs, rounds, device):
        for job in jobs.values():
            job()
        return dict(softmax=[8.0], hybrid=[6.0])

    monkeypatch.setattr(hybrids, 'block_costs', block_costs)
    monkeypatch.setattr('mmlaplace.analysis.measuring.interleave', seconds)
    return block_costs


def test_one_command_makes_a_hybrid_detector_that_trains(detector, costs):
    out = output_of(
        *OWN, '--budget', '0.8', '--size', '80', '--whole-steps', '0', '--work-dir', 'out'
    )
    assert 'RetinaNet on the hybrid of ViT, whose head is random' in out
    assert out.splitlines()[-1].endswith('train.py out/linearized.py')
    assert costs.images.shape == (1, 3, 80, 80)
    plan = json.loads(Path('out/hybrid.json').read_text())
    assert (
        len(plan['keep']) == 1 and plan['measured_time'] == 0.75 and Path('out/hybrid.png').stat()
    )
    cfg = Config.fromfile('out/linearized.py')
    assert cfg.model.neck == dict(
        type='SimpleFeaturePyramid',
        patch_size=16,
        in_channels=16,
        out_channels=64,
        strides=(8, 16, 32),
        num_outs=3,
    )
    assert cfg.model.data_preprocessor.mean == [1.0, 2.0, 3.0]
    backbone = cfg.model.backbone
    assert not {'out_type', 'frozen_stages'} & backbone.keys() and cfg.load_from is None
    hybrid = MODELS.build(backbone)
    hybrid.init_weights()  # from the checkpoint, as tools/train.py does
    assert softmax_of(hybrid) == plan['keep_blocks']
    old = MODELS.build(VIT)
    load_weights(old, 'vit.pth')
    torch.testing.assert_close(
        hybrid.stages[0].patch_embed.projection.bias, old.stages[0].patch_embed.projection.bias
    )
    weights = torch.load('out/linearized.pth')['state_dict']
    assert weights and all(name.startswith('backbone.') for name in weights)
    assert train_and_predict(cfg, (64, 96), 2)['loss'] > 0


def test_what_linear_blocks_inherit_is_an_option(detector, costs):
    """Without FFNs fewer parameters are kept, also those of the hybrid that a search chose."""
    shares = {}
    for inherit in ('all', 'attention'):
        words = ('--keep', '1', '--search-steps', '1', '--inherit', inherit)
        out = output_of(*OWN, *words, '--work-dir', inherit)
        shares[inherit] = json.loads(Path(inherit, 'linearized.json').read_text())['kept']
        assert f"{100 * shares[inherit]:.1f} % of the backbone's parameters are kept" in out
    assert shares['attention'] < shares['all']


def test_a_budget_that_cannot_be_met_is_refused_before_harms_are_measured(
    detector, costs, monkeypatch
):
    monkeypatch.setattr(hybrids, 'harm_of', None)
    told = run_script(*OWN, '--budget', '0.5', '--work-dir', 'out')
    assert told.returncode and told.stderr.strip().splitlines()[-1] == (
        'linearize.py: error: the budget 0.5 cannot be met at this size: the smallest that can be '
        'reached is 0.625, with 3 of 3 blocks linear'
    )


def test_blocks_are_chosen_by_the_score_of_the_head(detector, costs, monkeypatch):
    """A score that falls by 8 with the second block linear, and is written down at once."""
    seen = []

    def score(self, model):
        kinds = [type(block.attn).__name__ for block in model.backbone.stages[0].blocks]
        seen.append(kinds)
        return 90.0 - 8 * (kinds[1] == 'AgentAttention')

    cfg = Config.fromfile('detector.py')
    cfg.model.backbone = dict(VIT, img_size=96)
    cfg.model.neck = dict(
        type='SimpleFeaturePyramid', in_channels=16, out_channels=64, strides=(8, 16, 32)
    )
    cfg.dump('whole.py')
    torch.save(toolbox_model(cfg).state_dict(), 'whole.pth')
    words = (TOOL, 'whole.py', 'whole.pth', *AGENT, *QUICK, '--keep', '1', '--work-dir', 'out')
    words += ('--metric', 'coco/bbox_mAP', '--metric-images', '3', '--search-steps', '1')
    monkeypatch.setattr(Scorer, '__call__', score)
    out = output_of(*words)
    assert 'coco/bbox_mAP is 90 with softmax and 90 with this plan, on 3 images' in out
    plan = json.loads(Path('out/hybrid.json').read_text())
    assert plan['keep_blocks'] == [1] and plan['harm'] == 0 and plan['metric'] == 'coco/bbox_mAP'
    assert len(seen) == 6 == len(plan['scores'])  # none, each of three, and each of two beside one
    assert softmax_of(MODELS.build(Config.fromfile('out/linearized.py').model.backbone)) == [1]
    Path('out/linearized.pth').unlink()
    with monkeypatch.context() as patch:
        patch.setattr(hybrids, 'harm_of', None)  # what has learned is kept
        output_of(*words)
    assert len(seen) == 6
    Path('out/linearized.pth').unlink()
    told = run_script(*words, '--metric-images', '4')
    assert told.returncode and 'remove that file' in told.stderr.splitlines()[-1]


def test_a_score_of_a_random_head_is_real(detector, costs):
    """The whole way without a fake score: an accuracy of some images."""
    write_class_folders(detector / 'photos')
    cfg = vit_with()
    cfg.model.backbone.out_type = 'featmap'  # for the average of the classifier
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        loader.update(batch_size=4, num_workers=0, persistent_workers=False)
    cfg.train_dataloader.dataset.update(data_root='photos', data_prefix='train')
    cfg.val_dataloader.dataset.update(data_root='photos', data_prefix='val')
    cfg.dump('vit.py')
    metric = ('--metric', 'accuracy/top1', '--beam', '2', '--search-steps', '1')
    words = (TOOL, 'vit.py', 'vit.pth', *AGENT, *QUICK, '--budget', '0.8', *metric)
    out = output_of(*words, '--work-dir', 'out')
    plan = json.loads(Path('out/hybrid.json').read_text())
    assert 'accuracy/top1 is' in out and plan['metric_images'] == 4
    assert len(plan['scores']) == 7  # none, three blocks, and all three pairs, beside the best two
    assert all(score in (0, 25, 50, 75, 100) for score in plan['scores'].values())
    told = run_script(*words[:-6], '--metric', 'accuracy/top9', '--work-dir', 'other')
    assert "the evaluator gives no 'accuracy/top9', but accuracy/top1" in told.stderr
    assert not Path('other/blocks.json').exists()


def test_windows_that_reach_no_block_are_left_out_and_told(detector):
    vit_with(window_size=2, global_blocks=[2]).dump('windows.py')
    words = ('windows.py', 'vit.pth', '--for', 'detector.py', *AGENT, *QUICK, '--work-dir')
    out = output_of(TOOL, *words, 'out')
    assert 'global_blocks and window_size of the config are left out, as no block' in out
    backbone = Config.fromfile('out/linearized.py').model.backbone
    assert not {'window_size', 'global_blocks'} & backbone.keys()
    out = output_of(TOOL, *words, 'kept', '--keep-blocks', '0')
    backbone = Config.fromfile('kept/linearized.py').model.backbone
    assert 'left out' not in out and backbone.window_size == 2
    assert MODELS.build(dict(backbone, init_cfg=None)).stages[0].blocks[0].attn.window_size == 2


def test_a_checkpoint_with_a_head_gives_a_whole_model(detector):
    words = ('--for', 'detector.py', *AGENT, *QUICK, '--work-dir')
    output_of(TOOL, 'vit.py', 'vit.pth', *words, 'first', '--keep-blocks', '0', '1')
    cfg = Config.fromfile('first/linearized.py')
    cfg.model.backbone.update(attn_cfg=None, init_cfg=None)
    model = toolbox_model(cfg)
    torch.save(dict(state_dict=model.state_dict()), 'whole.pth')
    out = output_of(TOOL, 'vit.py', 'whole.pth', *words, 'out')
    assert 'whose head is that of the checkpoint' in out and 'test.py out/linearized.py' in out
    cfg = Config.fromfile('out/linearized.py')
    assert Path(cfg.load_from).samefile('out/linearized.pth')
    made = toolbox_model(cfg)
    load_weights(made, 'out/linearized.pth')
    torch.testing.assert_close(made.bbox_head.state_dict(), model.bbox_head.state_dict())


def test_images_of_another_toolbox_are_normalised_as_those_of_the_detector(detector, monkeypatch):
    seen = []

    def forward(self, data, training=False):
        seen.append((self.mean.flatten().tolist(), len(data['inputs'])))
        return real(self, data, training)

    real = ImagesAlone.forward
    cfg = Config.fromfile(micro_config('laplacianformer'))
    write_class_folders(detector / 'photos')
    cfg.train_dataloader.update(batch_size=4, num_workers=0, persistent_workers=False)
    cfg.train_dataloader.dataset.update(data_root='photos', data_prefix='train')
    cfg.dump('photos.py')
    with monkeypatch.context() as patch:
        patch.setattr(ImagesAlone, 'forward', forward)
        out = output_of(*OWN, '--data', 'photos.py', '--work-dir', 'out')
    assert 'whose head is random' in out and seen == [([1.0, 2.0, 3.0], 4)] * 2
    assert Config.fromfile('out/linearized.py').train_dataloader.dataset.data_root == 'boxes'
    image = torch.arange(3, dtype=torch.uint8).view(3, 1, 1).expand(3, 4, 4)
    model = dict(mean=[1.0, 2.0, 3.0], std=[2.0] * 3, to_rgb=True)
    batches = image_batches(None, Loader([image]), preprocessor=ImagesAlone(model))
    assert next(batches(0))[0, :, 0, 0].tolist() == [0.5, -0.5, -1.5]  # of 2, 1, 0


class Loader(list):
    """A data loader with one batch."""

    sampler = None

    def __iter__(self):
        yield dict(inputs=list(super().__iter__()), data_samples=[None])


@pytest.mark.parametrize('batch', [dict(points=1), dict(inputs=[torch.ones(1, 4, 4)]), [1]])
def test_batches_without_colour_images_are_refused(batch):
    with pytest.raises(ValueError, match='no images .3, H, W. as inputs, but .*; name a config'):
        ImagesAlone({})(batch)


def test_a_data_set_without_a_loader_gets_one():
    made = data_loader(Config(dict(train_dataset=dict(type='CocoDataset'))), 'a.py')
    assert made.batch_size == 8 and made.dataset.type == 'CocoDataset' and made.sampler.shuffle


@pytest.mark.parametrize(
    ('name', 'backbone', 'mean'),
    [
        ('timm://vit_small_patch16_dinov3', 'DINOv3', 123.675),
        ('timm://vit_base_patch16_siglip_512.v2_webli', 'ViT', 127.5),
        ('mmlaplace://siglip2-base', 'ViT', 127.5),
        ('mmlaplace://deit-tiny', 'ViT', 123.675),
    ],
)
def test_a_name_has_a_backbone_weights_and_the_normalisation_of_these(name, backbone, mean):
    pytest.importorskip('timm', reason='no timm: pip install "mmlaplace[timm]"')
    host = named_host(name)
    assert host.backbone['type'] == backbone and host.checkpoint == name
    assert host.normalization['mean'][0] == mean and host.normalization['bgr_to_rgb']
    assert softmax_places(MODELS.build(dict(host.backbone, arch=VIT['arch'])))


@pytest.mark.thorough
def test_a_name_of_timm_becomes_a_hybrid_with_the_weights_of_a_file_of_timm(detector):
    timm = pytest.importorskip('timm', reason='no timm: pip install "mmlaplace[timm]"')
    name = 'deit_tiny_patch16_224'
    released = timm.create_model(name)
    torch.save(released.state_dict(), 'released.pth')
    words = ('--for', 'detector.py', *AGENT, *QUICK, '--whole-steps', '0', '--keep', '4')
    out = output_of(TOOL, f'timm://{name}', 'released.pth', *words, '--search-steps', '1')
    folder = Path('work_dirs', f'{name}_detector_AgentAttention')
    assert f'train.py {folder}/linearized.py' in out
    hybrid = MODELS.build(Config.fromfile(folder / 'linearized.py').model.backbone)
    hybrid.init_weights()
    (kept, *others) = softmax_of(hybrid)
    assert len(others) == 3
    for mine, of_timm in (
        (hybrid.stages[0].blocks[kept].attn.proj, released.blocks[kept].attn.proj),
        (hybrid.norm0, released.norm),
    ):
        torch.testing.assert_close(mine.state_dict(), of_timm.state_dict())


HEAD = ('--for', 'mmlaplace::heads/plain/mask-rcnn_simple-pyramid_1x_coco.py')
PSPNET = 'mmseg::pspnet/pspnet_r50-d8_4xb2-40k_cityscapes-512x1024.py'


@pytest.mark.parametrize(
    ('words', 'said'),
    [
        (('timm://vit_small_patch16_dino3', *HEAD), 'no model .*similar names are vit_small'),
        (
            ('mmlaplace://dinov3-smal', *HEAD),
            "weights of 'dinov3-smal' .*; similar .* dinov3-small",
        ),
        (('mmlaplace://dinov3-small',), '--for names the detector or segmentor that gets it'),
        (('vit.py', *HEAD), 'vit.py needs a checkpoint with its weights'),
        (('vit.py', 'vit.pth', '--for', PSPNET), f'{PSPNET}: .* strides 4, 8, 8, 8, which no'),
        (('vit.py', 'vit.pth', '--for', 'mmdet::a/b.py'), 'no config mmdet::a/b.py; similar ones'),
        (('vit.py', 'vit.pth', *HEAD, '--loss', 'task'), '--loss task needs a trained head'),
        (
            ('vit.py', 'vit.pth', *HEAD, '--keep', '1', '--metric', 'coco/bbox_mAP'),
            '--metric coco/bbox_mAP needs a trained head, and vit.pth has none of mmlapl',
        ),
        (('vit.py', 'vit.pth', '--metric', 'mIoU'), '--metric mIoU is for --keep or --budget'),
        (('vit.py', 'vit.pth', '--keep', '1', '--beam', '3'), '--beam 3 is for --metric'),
        (
            ('vit.py', 'vit.pth', '--keep', '1', '--backbone-only', '--metric', 'mIoU'),
            '--metric mIoU needs a trained head; leave out --backbone-only',
        ),
        (
            ('vit.py', 'vit.pth', '--for', 'detector.py', '--data', 'empty.py'),
            'empty.py has no images: it has no train_dataloader',
        ),
        (
            ('vit.py', 'vit.pth', '--for', 'detector.py', '--attention', 'LargeKernelAttention'),
            'ViT has 1 tokens before the map, .* LargeKernelAttention does not take: .* FLatten',
        ),
    ],
)
def test_bad_words_are_one_sentence_with_the_fix(detector, words, said):
    pytest.importorskip('mmseg')
    pytest.importorskip('timm', reason='no timm: pip install "mmlaplace[timm]"')
    Path('empty.py').write_text("default_scope = 'mmdet'\n")
    agent = () if '--attention' in words else AGENT
    told = run_script(TOOL, *words, *agent, *QUICK, '--work-dir', 'out')
    last = told.stderr.strip().splitlines()[-1]
    assert told.returncode and re.match(f'linearize.py: error: .*{said}', last), last
    assert not Path('out').exists()


@pytest.mark.training
def test_the_written_config_trains_by_the_tool_and_its_weights_start_it(detector):
    output_of(*OWN, '--keep', '1', '--work-dir', 'out')
    words = [
        'out/linearized.py',
        '--work-dir',
        'trained',
        '--cfg-options',
        'train_cfg.max_epochs=1',
    ]
    result = run([sys.executable, ROOT / 'tools/train.py', *words])
    assert result.returncode == 0, result.stderr
    assert 'missing 0' in result.stdout + result.stderr
