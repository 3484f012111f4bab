_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_bs128.py',
    '../_base_/schedules/imagenet_bs1024_adamw_300e.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='SOFTPlusPlus',
        arch='large',
        drop_path_rate=0.1,
        drop_path_per='element',
        attn_cfg=dict(normalized=False),
        out_indices=(3,),
        out_type='cls_token',
    ),
    neck=None,  # the class token goes to the head
    head=dict(in_channels=1024),
)

# The authors' code lowers the rate for the larger sizes.
optim_wrapper = dict(optimizer=dict(lr=3.3e-4))
