_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_384_bs64_square.py',
    '../_base_/schedules/imagenet_finetune_bs512_adamw_20e_cswin.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='CSWin',
        arch=dict(
            embed_dims=(96, 192, 384, 768),
            depths=(3, 6, 29, 2),
            num_heads=(4, 8, 16, 32),
            ffn_ratios=(4, 4, 4, 4),
        ),
        img_size=384,
        stripe_widths=(1, 2, 12),
        attn_cfg=[dict(type='AgentAttention', qkv='qkv', num_landmarks=count) for count in (9, 16)]
        + [None] * 2,
        drop_path_rate=0.7,
        out_indices=(3,),
    ),
    head=dict(in_channels=768),
)
optim_wrapper = dict(optimizer=dict(lr=5e-6))

# The weights of the run at 224 pixels go here, or by --cfg-options load_from=FILE.
load_from = None
