# Retrieval: whether one of two papers cites the other, from their bytes.
# Sizes and schedule are Skyformer's, which PolaFormer takes.
# Data: tools/dataset_converters/convert_lra.py.
_base_ = [
    './models/sequence_classifier.py',
    './datasets/sequences.py',
    './schedules/skyformer.py',
]

dataset = dict(type='LRAText', data_root='data/lra/retrieval', max_length=4000)
model = dict(
    backbone=dict(num_embeddings=257, max_length=4096),
    head=dict(num_classes=2, in_channels=256),  # [a, b, a * b, a - b]
)

train_dataloader = dict(batch_size=16, dataset=dataset)
val_dataloader = dict(batch_size=16, dataset=dataset)
test_dataloader = dict(batch_size=16, dataset=dataset)

optim_wrapper = dict(optimizer=dict(lr=2e-4))
param_scheduler = dict(eta_max=2e-4, pct_start=800 / 50000)
train_cfg = dict(val_interval=1000)
auto_scale_lr = dict(base_batch_size=16)
