# How sequences are loaded. A task adds which, and how many at once.
dataset = dict(pipeline=[dict(type='PackInputs')])
train_dataloader = dict(
    num_workers=2,
    persistent_workers=True,
    dataset=dict(dataset, split='train'),
    sampler=dict(type='InfiniteSampler', shuffle=True),
    collate_fn=dict(type='pseudo_collate'),  # sequences have different lengths
)
val_dataloader = dict(
    num_workers=2,
    persistent_workers=True,
    dataset=dict(dataset, split='val'),
    sampler=dict(type='DefaultSampler', shuffle=False),
    collate_fn=dict(type='pseudo_collate'),
)
test_dataloader = dict(val_dataloader, dataset=dict(dataset, split='test'))
val_evaluator = dict(type='Accuracy', topk=(1,))
test_evaluator = val_evaluator
