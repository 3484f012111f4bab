# CIFAR-100, or other images of 32 x 32 pixels in a folder for each class: a DeiT-T by which
# attentions are compared, a step between small images and ImageNet. Nothing was trained by it here.
_base_ = [
    '../classification/_base_/models/image_classifier.py',
    '../classification/_base_/schedules/imagenet_bs1024_adamw_300e_flatten.py',
    '../classification/_base_/default_runtime.py',
]

data_root = 'data/cifar100'  # with train/CLASS/*.png and val/CLASS/*.png
num_classes = 100
epochs, warmup_epochs = 200, 5

model = dict(
    backbone=dict(
        type='ViT',
        arch='tiny',
        img_size=32,
        patch_size=2,  # 16 x 16 tokens, which are enough for landmarks
        with_cls_token=False,
        drop_path_rate=0.1,
        out_indices=(0,),
        attn_cfg=dict(type='SoftmaxAttention'),
    ),
    head=dict(in_channels=192, num_classes=num_classes),
)
data_preprocessor = dict(
    num_classes=num_classes,
    mean=[123.675, 116.28, 103.53],
    std=[58.395, 57.12, 57.375],
    to_rgb=True,
)

backend_args = dict(backend='whole')  # errors of reading name the file
train_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    dict(type='RandomCrop', crop_size=32, padding=4),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    dict(type='PackInputs'),
]
train_dataloader = dict(
    batch_size=128,
    num_workers=4,
    persistent_workers=True,
    dataset=dict(
        type='CustomDataset', data_root=data_root, data_prefix='train', pipeline=train_pipeline
    ),
    sampler=dict(type='DefaultSampler', shuffle=True),
)
val_dataloader = dict(
    batch_size=256,
    num_workers=4,
    persistent_workers=True,
    dataset=dict(
        type='CustomDataset', data_root=data_root, data_prefix='val', pipeline=test_pipeline
    ),
    sampler=dict(type='DefaultSampler', shuffle=False),
)
val_evaluator = dict(type='Accuracy', topk=(1, 5))
test_dataloader, test_evaluator = val_dataloader, val_evaluator

optim_wrapper = dict(optimizer=dict(lr=5e-4))
# The warm-up and the cosine of the base, to other ends.
param_scheduler = [
    dict(_base_.param_scheduler[0], end=warmup_epochs),
    dict(_base_.param_scheduler[1], begin=warmup_epochs, end=epochs),
]
train_cfg = dict(max_epochs=epochs, val_interval=10)
auto_scale_lr = dict(base_batch_size=128)
