# A config adds the backbone, the channels and the classes.
# Weights of a classifier of the same arch come by --cfg-options:
#   model.backbone.init_cfg.type=Pretrained model.backbone.init_cfg.checkpoint=FILE
# These cannot merge into an init_cfg=None, so leave init_cfg out.
model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
    ),
    backbone=dict(type='EfficientViT', out_indices=(1, 2, 3)),
    neck=dict(type='EfficientViTSegNeck', num_blocks=3),
    # The last linear alone.
    decode_head=dict(
        type='FCNHead',
        num_convs=0,
        concat_input=False,
        dropout_ratio=0,
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'),
)
sync_bn = 'torch'  # BatchNorms of all GPUs together, as two images are few
