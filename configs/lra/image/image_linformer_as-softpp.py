_base_ = ['../_base_/image_softpp.py', '../_base_/default_runtime.py']

model = dict(
    backbone=dict(
        attn_cfg=dict(
            type='LinformerAttention',
            num_landmarks=128,
            resize=False,
        )
    )
)
