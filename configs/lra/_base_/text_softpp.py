# SOFT++ Table 12. Sizes and schedule are Nyströmformer's. As published:
# All 25,000 reviews train, and the test set chooses the checkpoint.
# Vectors are sums of tokens, divided by the padded length.
_base_ = './text.py'

model = dict(backbone=dict(num_embeddings=512, pool='padded_mean'))
train_dataloader = dict(dataset=dict(indices=None))
val_dataloader = dict(dataset=dict(split='test', indices=None))
optim_wrapper = dict(clip_grad=None)
param_scheduler = dict(total_steps=20000, pct_start=8000 / 20000)
max_iters = 20000
train_cfg = dict(max_iters=20000, val_interval=500)
custom_hooks = [dict(type='BetaCycleHook', pct_start=8000 / 20000)]
