_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_bs128.py',
    '../_base_/schedules/imagenet_bs1024_adamw_300e.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='SOFTPlusPlus',
        arch='small',
        drop_path_rate=0.1,
        drop_path_per='element',
        attn_cfg=dict(num_landmarks=None, normalized=False),
        out_indices=(3,),
        out_type='cls_token',
    ),
    neck=None,  # the class token goes to the head
    head=dict(in_channels=768),
)

# Trained at 224 pixels and tested at 384. The number of landmarks grows with the image.
test_pipeline = [
    _base_.test_pipeline[0],
    dict(type='ResizeEdge', scale=438, edge='short', backend='pillow', interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=384),
    dict(type='PackInputs'),
]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
