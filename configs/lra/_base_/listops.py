# ListOps of up to 2,000 tokens: the value of a nested expression.
# Sizes and schedule are Skyformer's, which PolaFormer takes.
# Data: tools/dataset_converters/make_lra_datasets.py.
dataset = dict(type='LRAListOps', data_root='data/lra/listops', pipeline=[dict(type='PackInputs')])
model = dict(
    type='ImageClassifier',
    data_preprocessor=dict(type='TokenPreprocessor'),
    backbone=dict(type='SequenceEncoder', num_embeddings=16, max_length=2048),
    head=dict(
        type='StackedLinearClsHead',
        num_classes=10,
        in_channels=64,
        mid_channels=[128],
        loss=dict(type='CrossEntropyLoss'),
    ),
)

train_dataloader = dict(
    batch_size=32,
    num_workers=2,
    persistent_workers=True,
    dataset=dict(dataset, split='train'),
    sampler=dict(type='InfiniteSampler', shuffle=True),
    collate_fn=dict(type='pseudo_collate'),  # sequences have different lengths
)
val_dataloader = dict(
    batch_size=32,
    num_workers=2,
    persistent_workers=True,
    dataset=dict(dataset, split='val'),
    sampler=dict(type='DefaultSampler', shuffle=False),
    collate_fn=dict(type='pseudo_collate'),
)
test_dataloader = dict(val_dataloader, dataset=dict(dataset, split='test'))
val_evaluator = dict(type='Accuracy', topk=(1,))
test_evaluator = val_evaluator

max_iters = 50000
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, eps=1e-6, weight_decay=0.0),
    clip_grad=dict(type='value', clip_value=1.0),
)
param_scheduler = dict(
    type='OneCycleLR',
    eta_max=1e-4,
    total_steps=max_iters,
    pct_start=1000 / max_iters,
    anneal_strategy='linear',
    by_epoch=False,
)
train_cfg = dict(by_epoch=False, max_iters=max_iters, val_interval=500)
val_cfg = dict()
test_cfg = dict()
auto_scale_lr = dict(base_batch_size=32)
