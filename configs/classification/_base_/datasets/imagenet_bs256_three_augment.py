# DeiT III's 3-Augment: one of grey, solarised and blurred for each image, then a jitter of colours,
# with each image thrice (repeated augmentation). Tested on all of the shorter side.
_base_ = './imagenet_bs128_full.py'

train_pipeline = [
    *_base_.train_pipeline[:3],
    dict(
        type='RandomChoice',
        transforms=[
            [dict(type='RandomGrayscale', prob=1.0, keep_channels=True)],
            [dict(type='Solarize', thr=128, prob=1.0)],
            [dict(type='GaussianBlur', magnitude_range=(0.1, 2.0), magnitude_std='inf', prob=1.0)],
        ],
    ),
    dict(type='ColorJitter', brightness=0.3, contrast=0.3, saturation=0.3),
    dict(type='PackInputs'),
]
train_dataloader = dict(
    batch_size=256,
    dataset=dict(pipeline=train_pipeline),
    sampler=dict(_delete_=True, type='RepeatAugSampler', shuffle=True),
)
