# A slim neck and a slim head.
_base_ = './semantic-fpn.py'

# Digits cover 8 % of the pixels: with equal weights their classes are learned late.
class_weight = [0.1] + 10 * [1.0]
model = dict(
    # Images of any shape when testing, padded to the strides.
    data_preprocessor=dict(size=(128, 128), test_cfg=dict(size_divisor=32)),
    backbone=dict(
        arch='micro',
        img_size=128,
        drop_path_rate=0.0,
        attn_cfg=dict(landmarks=16),
        # What bash tools/quickstart.sh trains. A classifier has the norm of its last stage alone.
        init_cfg=dict(
            type='Pretrained',
            checkpoint='work_dirs/quickstart/epoch_11.pth',
            prefix='backbone.',
        ),
    ),
    neck=dict(in_channels=[32, 64, 96, 128], out_channels=64),
    decode_head=dict(
        in_channels=[64, 64, 64, 64],
        channels=64,
        num_classes=11,
        norm_cfg=dict(type='BN'),
        loss_decode=dict(class_weight=class_weight),
    ),
)
