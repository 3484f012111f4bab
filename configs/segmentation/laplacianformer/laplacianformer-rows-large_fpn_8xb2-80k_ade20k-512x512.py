_base_ = ['./laplacianformer-large_fpn_8xb2-80k_ade20k-512x512.py']

model = dict(backbone=dict(type='LaplacianFormerRows'))
