_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_bs128.py',
    '../_base_/schedules/imagenet_bs1024_adamw_300e.py',
    '../_base_/default_runtime.py',
]

# As softpp-tiny_8xb128_in1k.py, with LaplacianFormer's kernel instead of the Gaussian.
model = dict(
    backbone=dict(
        type='SOFTPlusPlus',
        arch='tiny',
        drop_path_rate=0.1,
        drop_path_per='element',
        attn_cfg=dict(kernel='laplacian'),
        out_indices=(3,),
        out_type='cls_token',
    ),
    neck=None,  # the class token goes to the head
    head=dict(in_channels=512),
)
