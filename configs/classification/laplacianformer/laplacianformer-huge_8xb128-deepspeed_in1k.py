_base_ = ['./laplacianformer-huge_8xb128_in1k.py', '../../_base_/strategies/deepspeed_zero2.py']

# The strategy clips the gradients.
optim_wrapper = dict(
    _delete_=True,
    type='DeepSpeedOptimWrapper',
    optimizer=_base_.optim_wrapper.optimizer,
    constructor=_base_.optim_wrapper.constructor,
)
custom_hooks = []  # averaged weights would be a whole copy of the model
