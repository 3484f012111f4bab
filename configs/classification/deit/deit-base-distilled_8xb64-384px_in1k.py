_base_ = './deit-base_8xb64-384px_in1k.py'

# The tokens of both heads, and a linear on both. The authors' teacher is left out.
model = dict(backbone=dict(with_dist_token=True), head=dict(in_channels=1536))
