# As published: black pixels are padding. The mean is
# over the padded length. Sizes and schedule are Skyformer's: PolaFormer Tables 4 and 6.
_base_ = './image.py'

model = dict(backbone=dict(num_embeddings=256, pool='padded_mean'))
train_dataloader = dict(dataset=dict(black_is_padding=True))
val_dataloader = dict(dataset=dict(black_is_padding=True))
test_dataloader = dict(dataset=dict(black_is_padding=True))
