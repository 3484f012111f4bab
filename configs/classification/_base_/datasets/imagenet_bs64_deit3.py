# As imagenet_bs128_full_no_erasing.py, with batches of 64.
_base_ = './imagenet_bs128_full_no_erasing.py'

train_dataloader = dict(batch_size=64)
