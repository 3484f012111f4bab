# Mask R-CNN on FLatten-Swin-Tiny.
_base_ = './mask-rcnn_fpn.py'
from mmlaplace import channels

model = dict(
    backbone=dict(
        type='Swin',
        arch='tiny',
        pad_small_maps=True,
        attn_cfg=[
            dict(
                window_size=56, even_windows=True, attn_cfg=dict(type='FLattenAttention', qkv='qkv')
            )
        ]
        * 2
        + [None] * 2,
        drop_path_rate=0.1,
        init_cfg=dict(
            type='Pretrained', skip=['norm3'], checkpoint='mmlaplace://flatten_swin_tiny'
        ),
    ),
)
model['neck'] = dict(in_channels=channels(model['backbone']))
