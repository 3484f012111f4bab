# What all segmentors share.
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
    train_cfg=dict(),
    test_cfg=dict(mode='whole'),
)
