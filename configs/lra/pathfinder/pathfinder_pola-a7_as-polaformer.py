_base_ = ['../_base_/pathfinder_polaformer.py', '../_base_/default_runtime.py']

model = dict(backbone=dict(attn_cfg=dict(type='PolaAttention', alpha=7, key_positions=False)))
