# PolaFormer Tables 4 and 6. Sizes and schedule are Skyformer's. As published:
# Black pixels are padding.
# Vectors are sums of tokens, divided by the padded length.
_base_ = [
    './models/sequence_classifier.py',
    './datasets/sequences.py',
    './schedules/skyformer.py',
]

dataset = dict(type='LRAPixels', data_root='data/lra/image')
model = dict(
    backbone=dict(num_embeddings=256, max_length=1024, pool='padded_mean'),
    head=dict(num_classes=10),
)

train_dataloader = dict(batch_size=256, dataset=dict(dataset, black_is_padding=True))
val_dataloader = dict(batch_size=256, dataset=dict(dataset, black_is_padding=True))
test_dataloader = dict(batch_size=256, dataset=dict(dataset, black_is_padding=True))

param_scheduler = dict(pct_start=175 / 50000)
train_cfg = dict(val_interval=50)
auto_scale_lr = dict(base_batch_size=256)
custom_hooks = [dict(type='BetaCycleHook', pct_start=175 / 50000)]
