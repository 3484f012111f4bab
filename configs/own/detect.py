# A detector of your own objects. `python -m mmlaplace own detect FOLDER` writes a copy of this file
# whose first lines fit your data. All below follows from them: copy it, do not inherit it.
_base_ = 'mmlaplace::detection/_base_/default_runtime.py'
from mmlaplace import model_config

data_root = 'data/mine/'  # with annotations/train.json, annotations/val.json, train/ and val/
classes = ('cat', 'dog')  # as `categories` of the JSON files spell them
masks = False  # whether the JSON files have masks, and the head predicts some
head = 'faster-rcnn_fpn_1x_coco'  # of configs/heads, or a released detector
backbone = 'cswin-tiny'  # None with a released detector, which has its own
weights = 'mmlaplace://cswin-tiny'  # of the backbone, or a file; None starts from scratch
load_from = None  # weights of a whole detector
image_size = (1333, 800)  # longer and shorter side, at most
batch_size = 4
epochs = 12
warmup_steps = 100
learning_rate = 1e-4

model = model_config(head, len(classes), backbone, weights)

backend_args = dict(backend='whole')  # errors of reading name the file
load_annotations = dict(type='LoadAnnotations', with_bbox=True, with_mask=masks)
train_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    load_annotations,
    dict(type='RandomResize', scale=image_size, ratio_range=(0.8, 1.25), keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    dict(type='Resize', scale=image_size, keep_ratio=True),
    # Behind Resize: boxes are compared in the coordinates of the image as it was.
    load_annotations,
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'),
    ),
]
dataset = dict(type='CocoDataset', data_root=data_root, metainfo=dict(classes=classes))
train_dataloader = dict(
    batch_size=batch_size,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    batch_sampler=dict(type='AspectRatioBatchSampler'),
    dataset=dict(
        **dataset,
        ann_file='annotations/train.json',
        data_prefix=dict(img='train/'),
        filter_cfg=dict(filter_empty_gt=False),  # images without objects teach what is none
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    drop_last=False,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        **dataset,
        ann_file='annotations/val.json',
        data_prefix=dict(img='val/'),
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
val_evaluator = dict(
    type='CocoMetric',
    ann_file=data_root + 'annotations/val.json',
    metric=['bbox', 'segm'] if masks else ['bbox'],
)
test_dataloader, test_evaluator = val_dataloader, val_evaluator

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=learning_rate, weight_decay=0.05),
    constructor='NoDecayOptimWrapperConstructor',
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, end=warmup_steps),
    dict(type='CosineAnnealingLR', by_epoch=True, end=epochs, convert_to_iter_based=True),
]
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=epochs, val_interval=max(1, epochs // 10))
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
default_hooks = dict(logger=dict(interval=10))
auto_scale_lr = dict(enable=False, base_batch_size=batch_size)  # for several GPUs
