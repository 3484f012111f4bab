_base_ = './swin-large_8xb128_in1k.py'

model = dict(backbone=dict(arch='base'), head=dict(in_channels=1024))
