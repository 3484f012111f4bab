# SegNeXt's decoder, LightHamHead, of the maps at strides 8, 16 and 32: the backbone has
# out_indices=(1, 2, 3). Its GroupNorm needs no other images of a batch. A config adds the backbone
# and in_channels.
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
    decode_head=dict(
        type='LightHamHead',
        in_index=[0, 1, 2],
        channels=512,
        ham_channels=512,
        ham_kwargs=dict(MD_R=16),
        dropout_ratio=0.1,
        num_classes=150,
        norm_cfg=dict(type='GN', num_groups=32),
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'),
)
