_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_256_bs128_292.py',
    '../_base_/schedules/imagenet_finetune_bs512_adamw_30e_swin.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='SwinV2',
        arch='large',
        window_size=16,
        pretrained_windows=(12, 12, 12, 6),
        img_size=256,
        drop_path_rate=0.2,
        out_indices=(3,),
    ),
    head=dict(in_channels=1536),
)
# 2e-5 for 512 images
optim_wrapper = dict(optimizer=dict(lr=4e-5))
auto_scale_lr = dict(base_batch_size=1024)

# The weights of a run on ImageNet-22k go here, or by --cfg-options load_from=FILE.
load_from = None
