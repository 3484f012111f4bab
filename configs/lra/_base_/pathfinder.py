# Pathfinder: whether two discs are the ends of one path, from 32 x 32 pixels.
# Sizes and schedule are Skyformer's, which PolaFormer takes.
# Data: tools/dataset_converters/make_lra_datasets.py.
_base_ = [
    './models/sequence_classifier.py',
    './datasets/sequences.py',
    './schedules/skyformer.py',
]

dataset = dict(type='LRAPixels', data_root='data/lra/pathfinder')
model = dict(
    backbone=dict(num_embeddings=257, max_length=1024),
    head=dict(num_classes=2),
)

train_dataloader = dict(batch_size=128, dataset=dataset)
val_dataloader = dict(batch_size=128, dataset=dataset)
test_dataloader = dict(batch_size=128, dataset=dataset)

optim_wrapper = dict(optimizer=dict(lr=2e-4))
param_scheduler = dict(eta_max=2e-4, pct_start=312 / 50000)
auto_scale_lr = dict(base_batch_size=128)
