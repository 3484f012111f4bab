_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_bs128.py',
    '../_base_/schedules/imagenet_bs1024_adamw_300e.py',
    '../_base_/default_runtime.py',
]

# As laplacianformer-tiny_8xb128_in1k.py, with Skyformer's attention under the Laplacian kernel.
model = dict(
    backbone=dict(
        type='LaplacianFormer',
        arch='tiny',
        drop_path_rate=0.1,
        out_indices=(3,),
        attn_cfg=dict(type='SkyformerAttention', kernel='laplacian'),
    ),
    head=dict(in_channels=512),
)
