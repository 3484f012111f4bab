# As published: black pixels are padding. The mean is
# over the padded length. Sizes and schedule are Nyströmformer's: SOFT++ Table 12.
_base_ = './image.py'

model = dict(backbone=dict(num_embeddings=512, pool='padded_mean'))
train_dataloader = dict(dataset=dict(black_is_padding=True))
val_dataloader = dict(dataset=dict(black_is_padding=True))
test_dataloader = dict(dataset=dict(black_is_padding=True))
optim_wrapper = dict(clip_grad=None)
param_scheduler = dict(total_steps=35000, pct_start=175 / 35000)
max_iters = 35000
train_cfg = dict(max_iters=35000, val_interval=175)
