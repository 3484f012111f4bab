# DINO on a plain ViT, whose map is resized to three strides; its own neck adds the fourth.
_base_ = 'mmdet::dino/dino-4scale_r50_8xb2-12e_coco.py'
from mmlaplace import backbone_config, channels, normalization, plain_pyramid

custom_imports = dict(imports=['mmlaplace'])

backbone_name = '{{$BACKBONE:dinov2-small}}'
backbone = backbone_config(backbone_name, pretrained=True)
model = dict(
    # Strides of the pyramid end with the image.
    data_preprocessor=dict(pad_size_divisor=32, **normalization(backbone_name)),
    backbone=dict(_delete_=True, **backbone),
    neck=[
        plain_pyramid(backbone, 'ResizedPyramid', strides=(8, 16, 32)),
        dict(_base_.model.neck, in_channels=3 * channels(backbone)),
    ],
)
optim_wrapper = dict(constructor='NoDecayOptimWrapperConstructor')
