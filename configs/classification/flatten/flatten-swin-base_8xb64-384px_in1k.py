_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_384_bs64.py',
    '../_base_/schedules/imagenet_finetune_bs512_adamw_30e_swin.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='Swin',
        arch='base',
        img_size=384,
        attn_cfg=[
            dict(
                window_size=96,
                even_windows=True,
                attn_cfg=dict(type='FLattenAttention', qkv='qkv'),
            )
        ]
        * 2
        + [dict(window_size=12)] * 2,
        drop_path_rate=0.5,
        out_indices=(3,),
    ),
    head=dict(in_channels=1024),
)

# The weights of the run at 224 pixels go here, or by --cfg-options load_from=FILE.
load_from = None
