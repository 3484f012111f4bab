_base_ = './softpp-small_8xb128_in1k.py'

model = dict(backbone=dict(attn_cfg=dict(num_landmarks=None)))

# Trained at 224 pixels and tested at 384. The number of landmarks grows with the image.
test_pipeline = [
    _base_.test_pipeline[0],
    dict(type='ResizeEdge', scale=438, edge='short', backend='pillow', interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=384),
    dict(type='PackInputs'),
]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
