# Fashion-MNIST, 60,000 + 10,000 images. tools/dataset_converters/make_mini_datasets.py --tasks
# fashion takes the files of Debian's package; mmpretrain downloads what is missing.
dataset_type = 'FashionMNIST'
data_root = 'data/mini/fashion'
data_preprocessor = dict(
    num_classes=10,
    mean=[123.675, 116.28, 103.53],
    std=[58.395, 57.12, 57.375],
    to_rgb=True,  # repeats the grey channel
)

train_pipeline = [
    dict(type='RandomCrop', crop_size=28, padding=2, padding_mode='reflect'),
    dict(type='RandomFlip', prob=0.5),
    dict(type='Cutout', shape=8, pad_val=0, prob=0.5),
    dict(type='PackInputs'),
]
test_pipeline = [dict(type='PackInputs')]

train_dataloader = dict(
    batch_size=128,
    num_workers=1,
    persistent_workers=True,
    dataset=dict(type=dataset_type, data_root=data_root, split='train', pipeline=train_pipeline),
    sampler=dict(type='DefaultSampler', shuffle=True),
)
val_dataloader = dict(
    batch_size=128,
    num_workers=1,
    persistent_workers=True,
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        split='test',
        test_mode=True,  # or it would read the training images
        pipeline=test_pipeline,
    ),
    sampler=dict(type='DefaultSampler', shuffle=False),
)
val_evaluator = dict(type='Accuracy', topk=(1,))
test_dataloader = val_dataloader
test_evaluator = val_evaluator
