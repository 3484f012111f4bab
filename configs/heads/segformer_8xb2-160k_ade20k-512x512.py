# The head of SegFormer.
_base_ = 'mmseg::segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py'
from mmlaplace import backbone_config, channels

custom_imports = dict(imports=['mmlaplace'])

backbone = backbone_config('{{$BACKBONE:cswin-tiny}}', pretrained=True)
model = dict(
    backbone=dict(_delete_=True, **backbone),
    decode_head=dict(in_channels=channels(backbone, maps=4)),
)
optim_wrapper = dict(constructor='NoDecayOptimWrapperConstructor')
