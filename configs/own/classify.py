# A classifier of your own images. `python -m mmlaplace own classify FOLDER` writes a copy of this
# file whose first lines fit your images. All below follows from them: copy it, do not inherit it.
_base_ = 'mmlaplace::classification/_base_/default_runtime.py'
from mmlaplace import model_config

data_root = 'data/mine'  # with train/CLASS/*.jpg and val/CLASS/*.jpg
classes = ('cat', 'dog')  # the names of the folders, in alphabetical order
backbone = 'mlla-tiny'
weights = 'mmlaplace://mlla-tiny'  # or a file; None starts from scratch
image_size = 224
batch_size = 32
epochs = 20
warmup_epochs = 2
learning_rate = 1e-4

model = model_config(backbone, len(classes), weights=weights, drop_path_rate=0.0)

backend_args = dict(backend='whole')  # errors of reading name the file
train_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    dict(
        type='RandomResizedCrop',
        scale=image_size,
        crop_ratio_range=(0.35, 1.0),
        backend='pillow',
        interpolation='bicubic',
    ),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    dict(
        type='ResizeEdge',
        scale=image_size * 8 // 7,
        edge='short',
        backend='pillow',
        interpolation='bicubic',
    ),
    dict(type='CenterCrop', crop_size=image_size),
    dict(type='PackInputs'),
]
dataset = dict(type='CustomDataset', data_root=data_root, metainfo=dict(classes=classes))
train_dataloader = dict(
    batch_size=batch_size,
    num_workers=2,
    persistent_workers=True,
    dataset=dict(**dataset, data_prefix='train', pipeline=train_pipeline),
    sampler=dict(type='DefaultSampler', shuffle=True),
)
val_dataloader = dict(
    batch_size=batch_size,
    num_workers=2,
    persistent_workers=True,
    dataset=dict(**dataset, data_prefix='val', pipeline=test_pipeline),
    sampler=dict(type='DefaultSampler', shuffle=False),
)
val_evaluator = dict(type='Accuracy', topk=(1,))
test_dataloader, test_evaluator = val_dataloader, val_evaluator

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=learning_rate, weight_decay=0.05),
    constructor='NoDecayOptimWrapperConstructor',
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=0.01,
        by_epoch=True,
        end=warmup_epochs,
        convert_to_iter_based=True,
    ),
    dict(
        type='CosineAnnealingLR',
        by_epoch=True,
        begin=warmup_epochs,
        end=epochs,
        convert_to_iter_based=True,
    ),
]
train_cfg = dict(by_epoch=True, max_epochs=epochs, val_interval=1)
val_cfg = dict()
test_cfg = dict()
default_hooks = dict(logger=dict(interval=10))
auto_scale_lr = dict(base_batch_size=batch_size)  # for --auto-scale-lr on several GPUs
