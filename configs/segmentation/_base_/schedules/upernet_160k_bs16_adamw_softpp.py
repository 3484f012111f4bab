# The rate that SOFT++ prints, without the images a step that it is for: here the 16 of the base.
# Most recipes for UPerNet on transformers have 6e-5.
_base_ = './upernet_160k_bs16_adamw.py'

optim_wrapper = dict(optimizer=dict(lr=6e-4))
