_base_ = ['../_base_/pathfinder.py', '../_base_/default_runtime.py']

model = dict(backbone=dict(attn_cfg=dict(type='PolaAttention', key_positions=False)))
