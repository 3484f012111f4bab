_base_ = ['../_base_/listops_polaformer.py', '../_base_/default_runtime.py']

model = dict(backbone=dict(attn_cfg=dict(type='SoftmaxAttention', attn_drop=0.1)))
