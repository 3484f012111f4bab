# As published: all 25,000 reviews train, and the test set chooses the checkpoint. The mean is
# over the padded length. Sizes and schedule are Skyformer's: PolaFormer Tables 4 and 6.
_base_ = './text.py'

model = dict(backbone=dict(num_embeddings=512, pool='padded_mean'))
train_dataloader = dict(dataset=dict(indices=None))
val_dataloader = dict(dataset=dict(split='test', indices=None))
