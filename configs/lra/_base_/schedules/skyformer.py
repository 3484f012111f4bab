# Skyformer's schedule, which PolaFormer takes. A task adds its warm-up.
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
    anneal_strategy='linear',
    by_epoch=False,
)
train_cfg = dict(by_epoch=False, max_iters=max_iters, val_interval=500)
val_cfg = dict()
test_cfg = dict()
