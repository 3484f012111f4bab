_base_ = './polaformer-swin-tiny_upernet_8xb2-160k_ade20k-512x512.py'

model = dict(backbone=dict(arch='small', drop_path_rate=0.3))
