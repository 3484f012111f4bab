_base_ = [
    '../_base_/models/lightham.py',
    '../_base_/datasets/ade20k_512x512_aligned.py',
    '../_base_/schedules/lightham_160k_bs64_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(
        type='PolaFormerPP',
        arch='b2',
        drop_path_rate=0.1,
        norm_eval=True,
        out_indices=(1, 2, 3),
    ),
)
model['decode_head'] = dict(in_channels=channels(model['backbone']))

train_dataloader = dict(batch_size=8)
