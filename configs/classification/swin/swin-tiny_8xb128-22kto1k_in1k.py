_base_ = './swin-large_8xb128_in1k.py'

model = dict(backbone=dict(arch='tiny', drop_path_rate=0.1), head=dict(in_channels=768))
