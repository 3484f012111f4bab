_base_ = './swin-large_8xb64-384px_in1k.py'

model = dict(backbone=dict(arch='base'), head=dict(in_channels=1024))
