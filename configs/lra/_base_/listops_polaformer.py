# PolaFormer Tables 4 and 6. Sizes and schedule are Skyformer's. As published:
# There are no brackets, so that the value cannot be known.
# Vectors are sums of tokens, divided by the padded length.
_base_ = './listops.py'

model = dict(backbone=dict(num_embeddings=32, pool='padded_mean'))
train_dataloader = dict(dataset=dict(brackets=False))
val_dataloader = dict(dataset=dict(brackets=False))
test_dataloader = dict(dataset=dict(brackets=False))
custom_hooks = [dict(type='BetaCycleHook', pct_start=1000 / 50000)]
