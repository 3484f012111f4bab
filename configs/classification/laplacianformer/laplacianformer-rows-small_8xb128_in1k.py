_base_ = ['./laplacianformer-small_8xb128_in1k.py']

model = dict(backbone=dict(type='LaplacianFormerRows'))
