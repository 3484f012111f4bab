# Slim heads.
_base_ = './upernet.py'

# Digits cover 8 % of the pixels: with equal weights their classes are learned late.
class_weight = [0.1] + 10 * [1.0]
slim = dict(
    channels=64,
    num_classes=11,
    norm_cfg=dict(type='BN'),
    loss_decode=dict(class_weight=class_weight),
)
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
    decode_head=dict(in_channels=[32, 64, 96, 128], **slim),
    auxiliary_head=dict(in_channels=96, **slim),
)
