# As published. The mean is
# over the padded length. Sizes and schedule are Skyformer's: PolaFormer Tables 4 and 6.
_base_ = './retrieval.py'

model = dict(backbone=dict(num_embeddings=512, pool='padded_mean'))
