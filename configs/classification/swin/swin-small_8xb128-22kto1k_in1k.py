_base_ = './swin-large_8xb128_in1k.py'

model = dict(backbone=dict(arch='small', drop_path_rate=0.2), head=dict(in_channels=768))
