# PolaFormer Tables 4 and 6. Sizes and schedule are Skyformer's. As published:
# All 25,000 reviews train, and the test set chooses the checkpoint.
# Vectors are sums of tokens, divided by the padded length.
_base_ = [
    './models/sequence_classifier.py',
    './datasets/sequences.py',
    './schedules/skyformer.py',
]

dataset = dict(type='LRAText', data_root='data/lra/text', max_length=4000)
model = dict(
    backbone=dict(num_embeddings=512, max_length=4096, pool='padded_mean'),
    head=dict(num_classes=2),
)

train_dataloader = dict(batch_size=32, dataset=dict(dataset, indices=None))
val_dataloader = dict(batch_size=32, dataset=dict(dataset, split='test', indices=None))
test_dataloader = dict(batch_size=32, dataset=dataset)

param_scheduler = dict(pct_start=80 / 50000)
auto_scale_lr = dict(base_batch_size=32)
custom_hooks = [dict(type='BetaCycleHook', pct_start=80 / 50000)]
