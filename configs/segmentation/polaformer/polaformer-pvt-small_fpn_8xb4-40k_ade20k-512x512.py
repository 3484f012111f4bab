_base_ = [
    '../_base_/models/semantic-fpn.py',
    '../_base_/datasets/ade20k_512x512.py',
    '../_base_/schedules/fpn_40k_bs32_adamw_polaformer.py',
    '../_base_/default_runtime.py',
]

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(
        type='PolaFormerPVT',
        arch='small',
        drop_path_rate=0.2,
        attn_cfg=dict(_delete_=True),  # its own
    ),
)

train_dataloader = dict(batch_size=4)
