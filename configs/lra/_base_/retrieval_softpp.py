# SOFT++ Table 12. Sizes and schedule are Nyströmformer's. As published:
# Vectors are sums of tokens, divided by the padded length.
_base_ = './retrieval.py'

model = dict(backbone=dict(num_embeddings=512, pool='padded_mean'))
train_dataloader = dict(batch_size=32)
val_dataloader = dict(batch_size=32)
test_dataloader = dict(batch_size=32)
optim_wrapper = dict(optimizer=dict(lr=1e-4), clip_grad=None)
param_scheduler = dict(eta_max=1e-4, total_steps=30000, pct_start=800 / 30000)
max_iters = 30000
train_cfg = dict(max_iters=30000, val_interval=300)
auto_scale_lr = dict(base_batch_size=32)
custom_hooks = [dict(type='BetaCycleHook', pct_start=800 / 30000)]
