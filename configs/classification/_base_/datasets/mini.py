# Made by tools/dataset_converters/make_mini_datasets.py, in a few seconds and without a download.
dataset_type = 'CustomDataset'
data_root = 'data/mini/classification'
backend_args = dict(backend='whole')  # errors of reading name the file
data_preprocessor = dict(
    num_classes=10,
    mean=[123.675, 116.28, 103.53],
    std=[58.395, 57.12, 57.375],
    to_rgb=True,
)

# No resizing: val_72 and val_96 then are what they mean to be, more tokens at the same scale.
train_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    dict(type='RandomCrop', crop_size=48, padding=3, padding_mode='reflect'),
    dict(type='PackInputs'),
]
test_pipeline = [dict(type='LoadImageFromFile', backend_args=backend_args), dict(type='PackInputs')]

train_dataloader = dict(
    batch_size=32,
    num_workers=1,
    persistent_workers=True,
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        data_prefix='train',
        with_label=True,
        pipeline=train_pipeline,
    ),
    sampler=dict(type='DefaultSampler', shuffle=True),
)
val_dataloader = dict(
    batch_size=64,
    num_workers=1,
    persistent_workers=True,
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        data_prefix='val',
        with_label=True,
        pipeline=test_pipeline,
    ),
    sampler=dict(type='DefaultSampler', shuffle=False),
)
val_evaluator = dict(type='Accuracy', topk=(1,))
test_dataloader = val_dataloader
test_evaluator = val_evaluator
