# The rate and weight decay that PolaFormer prints, without the images a step that they are for:
# here the 16 of the base.
_base_ = './upernet_160k_bs16_adamw.py'

optim_wrapper = dict(optimizer=dict(lr=2e-4, weight_decay=1e-3))
