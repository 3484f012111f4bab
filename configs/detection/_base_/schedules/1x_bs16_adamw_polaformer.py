# PolaFormer's weight decay for COCO.
_base_ = './1x_bs16_adamw.py'

optim_wrapper = dict(optimizer=dict(weight_decay=1e-4))
