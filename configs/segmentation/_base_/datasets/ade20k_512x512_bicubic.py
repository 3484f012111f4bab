# As ade20k_512x512_aligned.py, but by bicubic interpolation.
_base_ = './ade20k_512x512.py'

backend_args = dict(backend='whole')  # errors of reading name the file

test_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    dict(type='Resize', scale=(2048, 512), keep_ratio=True, interpolation='bicubic'),
    dict(type='ResizeToMultiple', size_divisor=32, interpolation='bicubic'),
    # Behind Resize: maps are compared at the size of the image as it was.
    dict(type='LoadAnnotations', reduce_zero_label=True, backend_args=backend_args),
    dict(type='PackSegInputs'),
]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
