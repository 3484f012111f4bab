_base_ = './polaformer-pvt-tiny_fpn_8xb4-40k_ade20k-512x512.py'

model = dict(backbone=dict(arch='small', drop_path_rate=0.2))
