_base_ = './image_classifier.py'

# SOFT++; its class token goes to the head, so there is nothing to pool.
model = dict(
    backbone=dict(
        type='SOFT', arch='tiny', drop_path_rate=0.1, out_indices=(3,), out_type='class_token'
    ),
    neck=None,
)
