# The same host, data and schedule, with SOFT's Gaussian kernel instead of the Laplacian.
_base_ = './laplacianformer-micro_1xb32_mini.py'

model = dict(backbone=dict(attn_cfg=dict(kernel='gaussian')))
