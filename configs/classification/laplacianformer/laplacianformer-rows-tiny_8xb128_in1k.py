_base_ = ['./laplacianformer-tiny_8xb128_in1k.py']

model = dict(backbone=dict(type='LaplacianFormerRows'))
