_base_ = [
    '../_base_/models/mask-rcnn_fpn.py',
    '../_base_/datasets/coco_instance.py',
    '../_base_/schedules/1x_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    backbone=dict(
        type='PVT',
        arch=dict(
            embed_dims=(64, 128, 320, 512),
            depths=(3, 4, 6, 3),
            num_heads=(2, 4, 10, 16),
            ffn_ratios=(8, 8, 4, 4),
        ),
        attn_cfg=dict(type='InLineAttention', qkv='q_kv'),
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='mmlaplace://inline_pvt_small'),
    ),
)
model['neck'] = dict(in_channels=channels(model['backbone']))
optim_wrapper = dict(optimizer=dict(lr=2e-4, weight_decay=1e-4))
