# ListOps of up to 2,000 tokens: the value of a nested expression.
# Sizes and schedule are Skyformer's, which PolaFormer takes.
# Data: tools/dataset_converters/make_lra_datasets.py.
_base_ = [
    './models/sequence_classifier.py',
    './datasets/sequences.py',
    './schedules/skyformer.py',
]

dataset = dict(type='LRAListOps', data_root='data/lra/listops')
model = dict(
    backbone=dict(num_embeddings=16, max_length=2048),
    head=dict(num_classes=10),
)

train_dataloader = dict(batch_size=32, dataset=dataset)
val_dataloader = dict(batch_size=32, dataset=dataset)
test_dataloader = dict(batch_size=32, dataset=dataset)

param_scheduler = dict(pct_start=1000 / 50000)
auto_scale_lr = dict(base_batch_size=32)
