_base_ = './image_classifier.py'

model = dict(backbone=dict(type='PolaFormerPVT', arch='tiny', drop_path_rate=0.1, out_indices=(3,)))
