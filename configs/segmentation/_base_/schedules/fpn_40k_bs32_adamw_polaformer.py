# The weight decay that PolaFormer prints. The rate it prints, 2e-4, without the images a step that
# it is for, is that of the base.
_base_ = './fpn_40k_bs32_adamw.py'

optim_wrapper = dict(optimizer=dict(weight_decay=1e-3))
