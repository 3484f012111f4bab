# SOFT++ Table 12. Sizes and schedule are Nyströmformer's. As published:
# There are no brackets, so that the value cannot be known.
# Vectors are sums of tokens, divided by the padded length.
_base_ = './listops.py'

model = dict(backbone=dict(num_embeddings=32, pool='padded_mean'))
train_dataloader = dict(dataset=dict(brackets=False))
val_dataloader = dict(dataset=dict(brackets=False))
test_dataloader = dict(dataset=dict(brackets=False))
optim_wrapper = dict(clip_grad=None)
param_scheduler = dict(total_steps=5000, pct_start=1000 / 5000)
max_iters = 5000
train_cfg = dict(max_iters=5000, val_interval=50)
custom_hooks = [dict(type='BetaCycleHook', pct_start=1000 / 5000)]
