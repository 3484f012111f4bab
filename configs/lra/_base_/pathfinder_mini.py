# Pathfinder with solid paths of three bars on 16 x 16 pixels.
# Small enough for a CPU core and five minutes.
# Data: tools/dataset_converters/make_lra_datasets.py --size mini.
_base_ = [
    './models/sequence_classifier.py',
    './datasets/sequences.py',
    './schedules/mini.py',
]

dataset = dict(type='LRAPixels', data_root='data/lra/pathfinder_mini', black_is_padding=True)
model = dict(
    backbone=dict(num_embeddings=257, max_length=256, drop_rate=0.0, pixel_map=(16, 16)),
    head=dict(num_classes=2),
)

# Samples are so small that handing them over would take longer than to read them.
train_dataloader = dict(
    batch_size=64,
    num_workers=0,
    persistent_workers=False,
    dataset=dataset,
    batch_sampler=dict(type='LengthBatchSampler'),  # one call of the attention for each batch
)
val_dataloader = dict(
    batch_size=64,
    num_workers=0,
    persistent_workers=False,
    dataset=dataset,
)
test_dataloader = val_dataloader

max_iters = 2000
param_scheduler = dict(total_steps=max_iters, pct_start=100 / max_iters)
train_cfg = dict(max_iters=max_iters)
auto_scale_lr = dict(base_batch_size=64)
