# 100 classes of ImageNet, or other images in a folder for each class: a PVT-T without spatial
# reduction, by which attentions are compared. No model was trained by it here.
_base_ = '../classification/flatten/flatten-pvt-tiny_8xb128_in1k.py'

data_root = 'data/imagenet100'  # with train/CLASS/*.JPEG and val/CLASS/*.JPEG
num_classes = 100
epochs, warmup_epochs = 100, 5

model = dict(
    backbone=dict(attn_cfg=dict(_delete_=True, type='SoftmaxAttention')),
    head=dict(num_classes=num_classes),
)
data_preprocessor = dict(num_classes=num_classes)
train_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='CustomDataset',
        data_root=data_root,
        data_prefix='train',
        pipeline={{_base_.train_dataloader.dataset.pipeline}},
    )
)
val_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='CustomDataset',
        data_root=data_root,
        data_prefix='val',
        pipeline={{_base_.test_dataloader.dataset.pipeline}},
    )
)
test_dataloader = val_dataloader
# The warm-up and the cosine of the base, to other ends.
param_scheduler = [
    dict(_base_.param_scheduler[0], end=warmup_epochs),
    dict(_base_.param_scheduler[1], begin=warmup_epochs, end=epochs),
]
train_cfg = dict(max_epochs=epochs, val_interval=5)
