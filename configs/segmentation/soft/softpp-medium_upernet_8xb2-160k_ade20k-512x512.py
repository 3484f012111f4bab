_base_ = './softpp-small_upernet_8xb2-160k_ade20k-512x512.py'

model = dict(backbone=dict(arch='softpp-medium', drop_path_rate=0.3))
