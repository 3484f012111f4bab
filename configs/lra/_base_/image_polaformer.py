# PolaFormer Tables 4 and 6. Sizes and schedule are Skyformer's. As published:
# Black pixels are padding.
# Vectors are sums of tokens, divided by the padded length.
_base_ = './image.py'

model = dict(backbone=dict(num_embeddings=256, pool='padded_mean'))
train_dataloader = dict(dataset=dict(black_is_padding=True))
val_dataloader = dict(dataset=dict(black_is_padding=True))
test_dataloader = dict(dataset=dict(black_is_padding=True))
custom_hooks = [dict(type='BetaCycleHook', pct_start=175 / 50000)]
