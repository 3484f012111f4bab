# SOFT++ Table 12. Sizes and schedule are Nyströmformer's. As published:
# Vectors are sums of tokens, divided by the padded length.
_base_ = [
    './models/sequence_classifier.py',
    './datasets/sequences.py',
    './schedules/nystromformer.py',
]

dataset = dict(type='LRAText', data_root='data/lra/retrieval', max_length=4000)
model = dict(
    backbone=dict(num_embeddings=512, max_length=4096, pool='padded_mean'),
    head=dict(num_classes=2, in_channels=256),  # [a, b, a * b, a - b]
)

train_dataloader = dict(batch_size=32, dataset=dataset)
val_dataloader = dict(batch_size=32, dataset=dataset)
test_dataloader = dict(batch_size=32, dataset=dataset)

max_iters = 30000
param_scheduler = dict(total_steps=max_iters, pct_start=800 / max_iters)
train_cfg = dict(max_iters=max_iters, val_interval=300)
auto_scale_lr = dict(base_batch_size=32)
custom_hooks = [dict(type='BetaCycleHook', pct_start=800 / max_iters)]
