# The twin: the same host, data and schedule, with softmax attention.
_base_ = './laplacianformer-micro_1xb32_mini.py'

model = dict(backbone=dict(attn_cfg=dict(_delete_=True, type='SoftmaxAttention')))
