# Slim heads.
_base_ = './upernet.py'

# Digits cover 8 % of the pixels: with equal weights their classes are learned late.
loss = dict(_delete_=True, type='WeightedCrossEntropy', class_weight=[0.1] + 10 * [1.0])
slim = dict(channels=64, num_classes=11, norm_cfg=dict(type='BN'))
model = dict(
    # Images of any shape when testing, padded to the strides.
    data_preprocessor=dict(size=(128, 128), test_cfg=dict(size_divisor=32)),
    decode_head=dict(loss_decode=loss, **slim),
    auxiliary_head=dict(loss_decode=dict(loss_weight=0.4, **loss), **slim),
)
