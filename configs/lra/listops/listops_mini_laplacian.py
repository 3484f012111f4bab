_base_ = ['../_base_/listops_mini.py', '../_base_/default_runtime.py']

model = dict(backbone=dict(attn_cfg=dict(type='LaplacianAttention', num_landmarks=16, rope=False)))
