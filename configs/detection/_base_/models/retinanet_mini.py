# A slim neck and slim heads, for digits of 28 to 64 pixels.
_base_ = './retinanet_fpn.py'

model = dict(
    backbone=dict(
        arch='micro',
        img_size=(192, 256),
        drop_path_rate=0.0,
        attn_cfg=dict(landmarks=16),
        # What bash tools/quickstart.sh trains. A classifier has the norm of its last stage alone.
        init_cfg=dict(
            type='Pretrained',
            checkpoint='work_dirs/quickstart/epoch_11.pth',
            prefix='backbone.',
        ),
    ),
    neck=dict(in_channels=[64, 96, 128], out_channels=64, num_outs=3),
    bbox_head=dict(
        num_classes=10,
        in_channels=64,
        stacked_convs=2,
        feat_channels=64,
        anchor_generator=dict(scales_per_octave=2, ratios=[1.0, 2.0], strides=[8, 16, 32]),
    ),
    test_cfg=dict(nms_pre=300, max_per_img=20),
)
