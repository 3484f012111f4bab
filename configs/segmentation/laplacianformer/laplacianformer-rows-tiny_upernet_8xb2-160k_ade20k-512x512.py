_base_ = ['./laplacianformer-tiny_upernet_8xb2-160k_ade20k-512x512.py']

model = dict(backbone=dict(type='LaplacianFormerRows'))
