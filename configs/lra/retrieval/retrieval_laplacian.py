_base_ = ['../_base_/retrieval.py', '../_base_/default_runtime.py']

model = dict(backbone=dict(attn_cfg=dict(type='LaplacianAttention', num_landmarks=64, rope=False)))
