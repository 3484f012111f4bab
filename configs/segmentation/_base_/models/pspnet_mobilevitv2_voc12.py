# Of VOC, where the last stage alone keeps the size of the map.
_base_ = './pspnet_mobilevitv2.py'

model = dict(
    backbone=dict(output_stride=16),
    decode_head=dict(num_classes=21),
    auxiliary_head=dict(num_classes=21),
)
