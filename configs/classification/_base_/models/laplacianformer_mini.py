model = dict(
    type='ImageClassifier',
    # 48 pixels give a 12 x 12 map in the first stage: 4 x 4 landmarks there, 2 x 2 in the last.
    backbone=dict(
        type='LaplacianFormer',
        arch='micro',
        img_size=48,
        out_indices=(3,),
        attn_cfg=dict(type='LaplacianAttention', landmarks=16),
    ),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='LinearClsHead',
        num_classes=10,
        in_channels=128,
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
        topk=(1,),
    ),
)
