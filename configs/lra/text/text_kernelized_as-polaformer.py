_base_ = ['../_base_/text_polaformer.py', '../_base_/default_runtime.py']

model = dict(backbone=dict(attn_cfg=dict(type='KernelAttention', attn_drop=0.1)))
