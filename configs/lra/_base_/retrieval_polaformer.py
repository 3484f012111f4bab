# PolaFormer Tables 4 and 6. Sizes and schedule are Skyformer's. As published:
# Vectors are sums of tokens, divided by the padded length.
_base_ = './retrieval.py'

model = dict(backbone=dict(num_embeddings=512, pool='padded_mean'))
custom_hooks = [dict(type='BetaCycleHook', pct_start=800 / 50000)]
