# ListOps of 5 to 31 tokens: the value of a nested expression.
# Small enough for a CPU core and five minutes.
# Data: tools/dataset_converters/make_lra_datasets.py --size mini.
dataset = dict(
    type='LRAListOps', data_root='data/lra/listops_mini', pipeline=[dict(type='PackInputs')]
)
model = dict(
    type='ImageClassifier',
    data_preprocessor=dict(type='TokenPreprocessor'),
    backbone=dict(type='SequenceEncoder', num_embeddings=16, max_length=32, drop_rate=0.0),
    head=dict(
        type='StackedLinearClsHead',
        num_classes=10,
        in_channels=64,
        mid_channels=[128],
        loss=dict(type='CrossEntropyLoss'),
    ),
)

train_dataloader = dict(
    batch_size=64,
    num_workers=1,
    persistent_workers=True,
    dataset=dict(dataset, split='train'),
    sampler=dict(type='InfiniteSampler', shuffle=True),
    collate_fn=dict(type='pseudo_collate'),  # sequences have different lengths
)
val_dataloader = dict(
    batch_size=64,
    num_workers=1,
    persistent_workers=True,
    dataset=dict(dataset, split='val'),
    sampler=dict(type='DefaultSampler', shuffle=False),
    collate_fn=dict(type='pseudo_collate'),
)
test_dataloader = dict(val_dataloader, dataset=dict(dataset, split='test'))
val_evaluator = dict(type='Accuracy', topk=(1,))
test_evaluator = val_evaluator

max_iters = 2500
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=2e-3, eps=1e-6, weight_decay=0.0),
    clip_grad=dict(max_norm=1.0),
)
param_scheduler = dict(
    type='OneCycleLR',
    eta_max=2e-3,
    total_steps=max_iters,
    pct_start=100 / max_iters,
    anneal_strategy='linear',
    by_epoch=False,
)
train_cfg = dict(by_epoch=False, max_iters=max_iters, val_interval=500)
val_cfg = dict()
test_cfg = dict()
auto_scale_lr = dict(base_batch_size=64)
