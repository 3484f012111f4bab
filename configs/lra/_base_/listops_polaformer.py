# As published: no brackets, so that the value cannot be known. The mean is
# over the padded length. Sizes and schedule are Skyformer's: PolaFormer Tables 4 and 6.
_base_ = './listops.py'

model = dict(backbone=dict(num_embeddings=32, pool='padded_mean'))
train_dataloader = dict(dataset=dict(brackets=False))
val_dataloader = dict(dataset=dict(brackets=False))
test_dataloader = dict(dataset=dict(brackets=False))
