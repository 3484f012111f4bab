"""Projects that take our backbones, each with the lines for it.

tests/test_hosts.py runs them, and .dev_scripts/make_pages.py writes them into docs/timm.md.
"""

from importlib import import_module
from typing import Any, Callable, Dict, NamedTuple, Tuple

import torch
from torch import Tensor, nn

SIDE = 64
BOX = torch.tensor([[8.0, 8.0, 40.0, 48.0]])
MASK = torch.zeros(1, SIDE, SIDE)
MASK[:, 8:48, 8:40] = 1
LABELS = MASK.long().expand(2, -1, -1)
SCORES = ('logits', 'pred_logits', 'masks_queries_logits', 'predicted_depth', 'alphas')


class Host(NamedTuple):
    """A project, and its heads that the same lines build.

    Attributes:
        package: The distribution.
        imports: Modules, and names of them, which the lines need.
        code: Makes ``model``. HEAD is the head's name, and ``options`` make it small for a test.
        heads: Options by the head's name.
        loss: Of the model and images.
        predict: A tensor, of the model and images.
    """

    package: str
    imports: Tuple[str, ...]
    code: str
    heads: Dict[str, Dict[str, Any]]
    loss: Callable[[Any, Tensor], Tensor] = lambda model, images: model(images).mean()
    predict: Callable[[Any, Tensor], Tensor] = lambda model, images: model(images)


def names(host: Host, head: str) -> Dict[str, Any]:
    """What the lines of a head know: the imports, and the options."""
    known: Dict[str, Any] = dict(options=host.heads[head], nn=nn)
    for place in host.imports:
        module, _, listed = place.partition(':')
        found = import_module(module)
        for name in listed.replace('HEAD', head).split():
            known[name] = found if name == module.rpartition('.')[2] else getattr(found, name)
    return known


def build(host: Host, head: str) -> nn.Module:
    """The model that the lines make."""
    known = names(host, head)
    exec(host.code.replace('HEAD', head), known)
    return known['model']


def transformers_loss(model: nn.Module, images: Tensor) -> Tensor:
    kind = type(model).__name__
    boxes = dict(class_labels=torch.tensor([1]), boxes=torch.tensor([[0.5, 0.5, 0.4, 0.3]]))
    if 'Detection' in kind:
        return model(images, labels=[boxes] * len(images)).loss
    if 'Universal' in kind:
        return model(images, mask_labels=[MASK] * 2, class_labels=[torch.tensor([1])] * 2).loss
    return model(images, labels=LABELS).loss


def transformers_scores(model: nn.Module, images: Tensor) -> Tensor:
    found = model(images)
    return next(found[name] for name in SCORES if name in found)


def torchvision_loss(model: nn.Module, images: Tensor) -> Tensor:
    found = [dict(boxes=BOX, labels=torch.tensor([1]), masks=MASK.byte())] * 2
    return sum(model(list(images), found).values())


def two_steps(model: nn.Module, images: Tensor) -> nn.Module:
    """Train a classifier for two steps by Lightning's Trainer."""
    lightning = import_module('lightning')

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Tensor, index: int) -> Tensor:
            return self.model(batch).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.model.parameters(), 1e-3)

    trainer = lightning.Trainer(
        accelerator='cpu',
        max_steps=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), torch.utils.data.DataLoader(images, batch_size=1))
    assert trainer.global_step == 2
    return model


def ultralytics_loss(model: nn.Module, images: Tensor) -> Tensor:
    model.args = import_module('ultralytics.cfg').get_cfg()
    batch = dict(
        img=images,
        batch_idx=torch.zeros(1),
        cls=torch.ones(1, 1),
        bboxes=torch.tensor([[0.5, 0.5, 0.4, 0.3]]),
    )
    return model(batch)[0].sum()


def first(found: Any) -> Tensor:
    """The first tensor of an output."""
    while not isinstance(found, Tensor):
        found = next(iter(found.values() if isinstance(found, dict) else found))
    return found


# Not in requirements/: one is large, the other has no wheel, and ran without its compiled ops.
BY_HAND = {'ultralytics': '8.4.190', 'detectron2': '0.6 (02b5c4e2)'}
HF = 'mmlaplace.timm:', 'transformers:TimmBackboneConfig HEADConfig HEADFor'
# Each config takes what it knows of them.
TINY = dict(
    d_model=32,
    encoder_ffn_dim=32,
    decoder_ffn_dim=32,
    encoder_layers=1,
    decoder_layers=2,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    num_queries=5,
    encoder_hidden_dim=32,
    decoder_in_channels=[32] * 3,
    num_denoising=2,
    num_feature_levels=3,
    feature_size=32,
    mask_feature_size=32,
    hidden_dim=32,
    encoder_feedforward_dim=32,
    num_attention_heads=2,
    dim_feedforward=32,
    train_num_points=64,
)
THREE, FOUR = (
    f"backbone = TimmBackboneConfig(backbone='laplacianformer_micro', out_indices={indices})\n"
    for indices in ([1, 2, 3], [0, 1, 2, 3])
)
MAPS = "{'contiguous': '0', 'contiguous_1': '1', 'contiguous_2': '2', 'contiguous_3': '3'}"
SHAPES = 'ShapeSpec(channels=c, stride=s) for c, s in ((32, 4), (64, 8), (96, 16), (128, 32))'
YAML = (
    "[-1, 1, 'maps', ['laplacianformer_micro']], [0, 1, 'Index', [64, 1]], "
    "[0, 1, 'Index', [96, 2]], [0, 1, 'Index', [128, 3]]], head=[[[1, 2, 3], 1, 'Detect', ['nc']]"
)
SMP = dict.fromkeys(
    ('Unet', 'UnetPlusPlus', 'MAnet', 'Linknet', 'FPN', 'PSPNet', 'UPerNet', 'Segformer'), {}
)
HOSTS = (
    Host(
        'transformers',
        (HF[0], f'{HF[1]}ObjectDetection'),
        f'{THREE}model = HEADForObjectDetection(HEADConfig(backbone_config=backbone, **options))',
        dict.fromkeys(
            ('RTDetr', 'RTDetrV2', 'DFine', 'Detr', 'ConditionalDetr', 'DeformableDetr'), TINY
        ),
        transformers_loss,
        transformers_scores,
    ),
    Host(
        'transformers',
        (HF[0], f'{HF[1]}UniversalSegmentation'),
        f'{FOUR}model = HEADForUniversalSegmentation('
        'HEADConfig(backbone_config=backbone, **options))',
        {'Mask2Former': TINY},
        transformers_loss,
        transformers_scores,
    ),
    Host(
        'transformers',
        (HF[0], f'{HF[1]}SemanticSegmentation'),
        f'{FOUR}model = HEADForSemanticSegmentation('
        'HEADConfig(backbone_config=backbone, auxiliary_in_channels=96, **options))',
        {'UperNet': dict(hidden_size=16, auxiliary_channels=8)},
        transformers_loss,
        transformers_scores,
    ),
    Host(
        'segmentation-models-pytorch',
        ('mmlaplace.timm:', 'segmentation_models_pytorch:HEAD'),
        "model = HEAD('tu-laplacianformer_micro', encoder_weights=None)",
        SMP,
    ),
    Host(
        'segmentation-models-pytorch',
        ('mmlaplace.timm:', 'segmentation_models_pytorch:HEAD'),
        "model = HEAD('tu-agent_deit_tiny', encoder_weights=None, **options)",
        {'DPT': dict(decoder_intermediate_channels=(8,) * 4, decoder_fusion_channels=8)},
    ),
    Host(
        'lightning',
        ('timm:timm', 'mmlaplace.timm:'),
        "model = timm.create_model('laplacianformer_micro', num_classes=10)  # of your module",
        {'LightningModule': {}},
        lambda model, images: two_steps(model, images)(images).mean(),
    ),
    Host(
        'torchvision',
        (
            'mmlaplace:create_backbone',
            'torchvision.models.detection:HEAD',
            'torchvision.models.feature_extraction:create_feature_extractor',
            'torchvision.ops.feature_pyramid_network:FeaturePyramidNetwork LastLevelMaxPool',
        ),
        f"body = create_feature_extractor(create_backbone('laplacianformer-micro'), {MAPS})\n"
        'fpn = FeaturePyramidNetwork([32, 64, 96, 128], 256, LastLevelMaxPool())\n'
        'backbone = nn.Sequential(body, fpn)\n'
        'backbone.out_channels = 256\n'
        'model = HEAD(backbone, num_classes=2, **options)',
        {name: dict(min_size=SIDE) for name in ('MaskRCNN', 'FasterRCNN', 'RetinaNet', 'FCOS')},
        torchvision_loss,
        lambda model, images: model.backbone(images)['0'],
    ),
    Host(
        'ultralytics',
        ('mmlaplace.timm:', 'functools:partial', 'timm:timm', 'ultralytics.nn.tasks:tasks'),
        'tasks.maps = partial(timm.create_model, features_only=True)\n'
        f'model = tasks.HEAD(dict(nc=2, backbone=[{YAML}]))',
        {'DetectionModel': {}},
        ultralytics_loss,
        lambda model, images: first(model(images)),
    ),
    Host(
        'detectron2',
        (
            'mmlaplace:create_backbone',
            'detectron2.layers:ShapeSpec',
            'detectron2.modeling:BACKBONE_REGISTRY HEAD',
            'detectron2.modeling.mmdet_wrapper:MMDetBackbone',
        ),
        "body = create_backbone('laplacianformer-micro')\n"
        f'bottom_up = MMDetBackbone(body, output_shapes=[{SHAPES}])\n'
        "model = HEAD(bottom_up, ['out0', 'out1', 'out2', 'out3'], 256)",
        {'FPN': {}},
        lambda model, images: sum(each.mean() for each in model(images).values()),
        lambda model, images: model(images)['p2'],
    ),
)
