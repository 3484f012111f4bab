_base_ = './softpp-small_upernet_4xb2-40k_cityscapes-768x768.py'

model = dict(
    backbone=dict(arch='softpp-large', drop_path_rate=0.4),
    decode_head=dict(in_channels=[128, 256, 512, 1024]),
    auxiliary_head=dict(in_channels=512),
)
