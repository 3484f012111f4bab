# The decoder of SegNeXt, LightHamHead. It reads the maps at strides 8, 16 and 32.
_base_ = 'mmseg::segnext/segnext_mscan-t_1xb16-adamw-160k_ade20k-512x512.py'
from mmlaplace import backbone_config, channels

custom_imports = dict(imports=['mmlaplace'])

backbone = backbone_config('{{$BACKBONE:cswin-tiny}}', pretrained=True, out_indices=(1, 2, 3))
model = dict(
    backbone=dict(_delete_=True, **backbone),
    decode_head=dict(in_channels=channels(backbone), in_index=[0, 1, 2]),
)
optim_wrapper = dict(constructor='NoDecayOptimWrapperConstructor')
