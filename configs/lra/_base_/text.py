# Text: whether a review of IMDb is positive, from its bytes.
# Sizes and schedule are Skyformer's, which PolaFormer takes.
# Data: tools/dataset_converters/convert_lra.py.
_base_ = [
    './models/sequence_classifier.py',
    './datasets/sequences.py',
    './schedules/skyformer.py',
]

dataset = dict(type='LRAText', data_root='data/lra/text', max_length=4000)
model = dict(
    backbone=dict(num_embeddings=257, max_length=4096),
    head=dict(num_classes=2),
)

# The data have no held-out reviews but the test set, so these are a tenth of the training set.
train_dataloader = dict(batch_size=32, dataset=dict(dataset, indices=22500))
val_dataloader = dict(batch_size=32, dataset=dict(dataset, split='train', indices=-2500))
test_dataloader = dict(batch_size=32, dataset=dataset)

param_scheduler = dict(pct_start=80 / 50000)
auto_scale_lr = dict(base_batch_size=32)
