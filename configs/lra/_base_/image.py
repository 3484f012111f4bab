# Image: the class of a grey picture of CIFAR-10, from its pixels.
# Sizes and schedule are Skyformer's, which PolaFormer takes.
# Data: tools/dataset_converters/convert_lra.py.
_base_ = [
    './models/sequence_classifier.py',
    './datasets/sequences.py',
    './schedules/skyformer.py',
]

dataset = dict(type='LRAPixels', data_root='data/lra/image')
model = dict(
    backbone=dict(num_embeddings=257, max_length=1024),
    head=dict(num_classes=10),
)

train_dataloader = dict(batch_size=256, dataset=dataset)
val_dataloader = dict(batch_size=256, dataset=dataset)
test_dataloader = dict(batch_size=256, dataset=dataset)

param_scheduler = dict(pct_start=175 / 50000)
train_cfg = dict(val_interval=50)
auto_scale_lr = dict(base_batch_size=256)
