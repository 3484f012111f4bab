# Made by tools/dataset_converters/make_mini_datasets.py, in a few seconds and without a download.
# In ADE20K's layout:
# label 0 is ignored, 1 is the background, 2 to 11 are the digits.
dataset_type = 'BaseSegDataset'
data_root = 'data/mini/segmentation'
backend_args = dict(backend='whole')  # errors of reading name the file
metainfo = dict(
    classes=('background', *'0123456789'),
    palette=[
        [200, 200, 200],
        [31, 119, 180],
        [255, 127, 14],
        [44, 160, 44],
        [214, 39, 40],
        [148, 103, 189],
        [140, 86, 75],
        [227, 119, 194],
        [127, 127, 127],
        [188, 189, 34],
        [23, 190, 207],
    ],
)

# Images are 128 x 128 as they come. No flips: a mirrored digit is another shape.
train_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    dict(type='LoadAnnotations', reduce_zero_label=True, backend_args=backend_args),
    dict(type='RandomResize', scale=(128, 128), ratio_range=(1.0, 1.25), keep_ratio=True),
    dict(type='RandomCrop', crop_size=(128, 128)),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    dict(type='LoadAnnotations', reduce_zero_label=True, backend_args=backend_args),
    dict(type='PackSegInputs'),
]

train_dataloader = dict(
    batch_size=16,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        img_suffix='.png',
        reduce_zero_label=True,
        metainfo=metainfo,
        data_prefix=dict(img_path='images/training', seg_map_path='annotations/training'),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=16,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        img_suffix='.png',
        reduce_zero_label=True,
        metainfo=metainfo,
        data_prefix=dict(img_path='images/validation', seg_map_path='annotations/validation'),
        pipeline=test_pipeline,
    ),
)
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_dataloader = val_dataloader
test_evaluator = val_evaluator
