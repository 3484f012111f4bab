norm_cfg = dict(type='SyncBN')
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
    # Weights of a classifier of the same arch come by --cfg-options, which cannot merge into an
    # init_cfg=None, so there is none here:
    #   model.backbone.init_cfg.type=Pretrained model.backbone.init_cfg.checkpoint=FILE
    backbone=dict(
        type='LaplacianFormer',
        arch='tiny',
        # 0.1 for tiny, 0.2 small, 0.3 medium and large, 0.4 huge: our choice.
        drop_path_rate=0.1,
        # A fixed number, so that cost is linear in the pixels.
        attn_cfg=dict(type='LaplacianAttention', landmarks=49),
    ),
    decode_head=dict(
        type='UPerHead',
        in_channels=[64, 128, 320, 512],
        in_index=[0, 1, 2, 3],
        pool_scales=(1, 2, 3, 6),
        channels=512,
        dropout_ratio=0.1,
        num_classes=150,
        norm_cfg=norm_cfg,
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False),
    ),
    auxiliary_head=dict(
        type='FCNHead',
        in_channels=320,
        in_index=2,
        channels=256,
        num_convs=1,
        concat_input=False,
        dropout_ratio=0.1,
        num_classes=150,
        norm_cfg=norm_cfg,
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=0.4),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'),
)
