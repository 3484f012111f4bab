# PolaFormer Tables 4 and 6. Sizes and schedule are Skyformer's. As published:
# Black pixels are padding.
# Vectors are sums of tokens, divided by the padded length.
_base_ = [
    './models/sequence_classifier.py',
    './datasets/sequences.py',
    './schedules/skyformer.py',
]

dataset = dict(type='LRAPixels', data_root='data/lra/pathfinder')
model = dict(
    backbone=dict(num_embeddings=512, max_length=1024, pool='padded_mean'),
    head=dict(num_classes=2),
)

train_dataloader = dict(batch_size=128, dataset=dict(dataset, black_is_padding=True))
val_dataloader = dict(batch_size=128, dataset=dict(dataset, black_is_padding=True))
test_dataloader = dict(batch_size=128, dataset=dict(dataset, black_is_padding=True))

optim_wrapper = dict(optimizer=dict(lr=5e-4))
param_scheduler = dict(eta_max=5e-4, pct_start=312 / 50000)
auto_scale_lr = dict(base_batch_size=128)
custom_hooks = [dict(type='BetaCycleHook', pct_start=312 / 50000)]
