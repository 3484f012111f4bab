_base_ = './softpp-small_upernet_4xb2-40k_cityscapes-768x768.py'

model = dict(backbone=dict(arch='softpp-medium', drop_path_rate=0.3))
