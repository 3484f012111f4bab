# A segmentor of your own images. `python -m mmlaplace own segment FOLDER --classes …` writes a copy
# of this file whose first lines fit your data. All below follows from them: copy it, do not inherit
# it.
_base_ = [
    'mmlaplace::segmentation/_base_/default_runtime.py',
    'mmlaplace::segmentation/_base_/schedules/iterations.py',
]
from mmlaplace import model_config

data_root = 'data/mine'
train_folders = ('images/training', 'annotations/training')
val_folders = ('images/validation', 'annotations/validation')
suffixes = ('.jpg', '.png')  # ends of the names of images and of label images
classes = ('road', 'car')
reduce_zero_label = False  # True if 0 in a label image is no class, and 1 the first
class_weight = None  # or one for each class, larger for rare ones
head = 'fpn_4xb4-160k_ade20k-512x512'  # of configs/heads, or a released segmentor
backbone = 'cswin-tiny'  # None with a released segmentor, which has its own
weights = 'mmlaplace://cswin-tiny'  # of the backbone, or a file; None starts from scratch
load_from = None  # weights of a whole segmentor
image_size = (2048, 512)  # longer and shorter side, at most
crop_size = (512, 512)
batch_size = 4
iterations = 2000
warmup_steps = 100
learning_rate = 1e-4

model = model_config(head, len(classes), backbone, weights, class_weight)
model['data_preprocessor'].update(size=crop_size)

backend_args = dict(backend='whole')  # errors of reading name the file
load_annotations = dict(
    type='LoadAnnotations', reduce_zero_label=reduce_zero_label, backend_args=backend_args
)
train_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    load_annotations,
    dict(type='RandomResize', scale=image_size, ratio_range=(0.5, 2.0), keep_ratio=True),
    dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    dict(type='Resize', scale=image_size, keep_ratio=True),
    # Behind Resize: maps are compared at the size of the image as it was.
    load_annotations,
    dict(type='PackSegInputs'),
]
dataset = dict(
    type='BaseSegDataset',
    data_root=data_root,
    metainfo=dict(classes=classes),
    img_suffix=suffixes[0],
    seg_map_suffix=suffixes[1],
    reduce_zero_label=reduce_zero_label,
)
train_dataloader = dict(
    batch_size=batch_size,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        **dataset,
        data_prefix=dict(img_path=train_folders[0], seg_map_path=train_folders[1]),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        **dataset,
        data_prefix=dict(img_path=val_folders[0], seg_map_path=val_folders[1]),
        pipeline=test_pipeline,
    ),
)
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_dataloader, test_evaluator = val_dataloader, val_evaluator

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=learning_rate, weight_decay=0.01),
    constructor='NoDecayOptimWrapperConstructor',
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, end=warmup_steps),
    dict(type='PolyLR', power=0.9, by_epoch=False, begin=warmup_steps, end=iterations),
]
train_cfg = dict(max_iters=iterations, val_interval=max(1, iterations // 10))
default_hooks = dict(logger=dict(interval=10), checkpoint=dict(interval=max(1, iterations // 10)))
auto_scale_lr = dict(enable=False, base_batch_size=batch_size)  # for several GPUs
