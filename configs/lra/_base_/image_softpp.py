# SOFT++ Table 12. Sizes and schedule are Nyströmformer's. As published:
# Black pixels are padding.
# Vectors are sums of tokens, divided by the padded length.
_base_ = './image.py'

model = dict(backbone=dict(num_embeddings=512, pool='padded_mean'))
train_dataloader = dict(dataset=dict(black_is_padding=True))
val_dataloader = dict(dataset=dict(black_is_padding=True))
test_dataloader = dict(dataset=dict(black_is_padding=True))
optim_wrapper = dict(clip_grad=None)
param_scheduler = dict(total_steps=35000, pct_start=175 / 35000)
max_iters = 35000
train_cfg = dict(max_iters=35000, val_interval=175)
custom_hooks = [dict(type='BetaCycleHook', pct_start=175 / 35000)]
