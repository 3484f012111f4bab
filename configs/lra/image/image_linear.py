_base_ = ['../_base_/image.py', '../_base_/default_runtime.py']

model = dict(backbone=dict(attn_cfg=dict(type='LinearAttention')))
