# SOFT++ Table 12. Sizes and schedule are Nyströmformer's. As published:
# Black pixels are padding.
# Vectors are sums of tokens, divided by the padded length.
_base_ = [
    './models/sequence_classifier.py',
    './datasets/sequences.py',
    './schedules/nystromformer.py',
]

dataset = dict(type='LRAPixels', data_root='data/lra/image')
model = dict(
    backbone=dict(num_embeddings=512, max_length=1024, pool='padded_mean'),
    head=dict(num_classes=10),
)

train_dataloader = dict(batch_size=256, dataset=dict(dataset, black_is_padding=True))
val_dataloader = dict(batch_size=256, dataset=dict(dataset, black_is_padding=True))
test_dataloader = dict(batch_size=256, dataset=dict(dataset, black_is_padding=True))

max_iters = 35000
param_scheduler = dict(total_steps=max_iters, pct_start=175 / max_iters)
train_cfg = dict(max_iters=max_iters, val_interval=175)
auto_scale_lr = dict(base_batch_size=256)
custom_hooks = [dict(type='BetaCycleHook', pct_start=175 / max_iters)]
