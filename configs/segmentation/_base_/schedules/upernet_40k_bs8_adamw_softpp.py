# The rate that SOFT++ prints, without the images a step that it is for: here the 8 of the base.
# Most recipes for UPerNet on transformers have 6e-5.
_base_ = './upernet_40k_bs8_adamw.py'

optim_wrapper = dict(optimizer=dict(lr=6e-4))
