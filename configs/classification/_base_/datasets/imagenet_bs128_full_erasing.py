# As imagenet_bs128_full.py, but parts of a fifth of the training images are erased.
_base_ = './imagenet_bs128_full.py'

data_preprocessor = _base_.data_preprocessor
train_pipeline = [
    *_base_.train_pipeline[:-2],
    dict(
        type='RandomErasing',
        erase_prob=0.2,
        mode='rand',
        min_area_ratio=0.02,
        max_area_ratio=1 / 3,
        fill_color=data_preprocessor['mean'][::-1],
        fill_std=data_preprocessor['std'][::-1],
    ),
    dict(type='PackInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
