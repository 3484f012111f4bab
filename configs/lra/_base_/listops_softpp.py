# SOFT++ Table 12. Sizes and schedule are Nyströmformer's. As published:
# There are no brackets, so that the value cannot be known.
# Vectors are sums of tokens, divided by the padded length.
_base_ = [
    './models/sequence_classifier.py',
    './datasets/sequences.py',
    './schedules/nystromformer.py',
]

dataset = dict(type='LRAListOps', data_root='data/lra/listops')
model = dict(
    backbone=dict(num_embeddings=32, max_length=2048, pool='padded_mean'),
    head=dict(num_classes=10),
)

train_dataloader = dict(batch_size=32, dataset=dict(dataset, brackets=False))
val_dataloader = dict(batch_size=32, dataset=dict(dataset, brackets=False))
test_dataloader = dict(batch_size=32, dataset=dict(dataset, brackets=False))

max_iters = 5000
param_scheduler = dict(total_steps=max_iters, pct_start=1000 / max_iters)
train_cfg = dict(max_iters=max_iters, val_interval=50)
auto_scale_lr = dict(base_batch_size=32)
custom_hooks = [dict(type='BetaCycleHook', pct_start=1000 / max_iters)]
