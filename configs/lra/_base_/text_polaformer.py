# PolaFormer Tables 4 and 6. Sizes and schedule are Skyformer's. As published:
# All 25,000 reviews train, and the test set chooses the checkpoint.
# Vectors are sums of tokens, divided by the padded length.
_base_ = './text.py'

model = dict(backbone=dict(num_embeddings=512, pool='padded_mean'))
train_dataloader = dict(dataset=dict(indices=None))
val_dataloader = dict(dataset=dict(split='test', indices=None))
custom_hooks = [dict(type='BetaCycleHook', pct_start=80 / 50000)]
