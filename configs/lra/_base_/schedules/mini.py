# Short enough for a CPU core and five minutes. A task adds its iterations and its warm-up.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=2e-3, eps=1e-6, weight_decay=0.0),
    clip_grad=dict(max_norm=1.0),
)
param_scheduler = dict(
    type='OneCycleLR',
    eta_max=2e-3,
    anneal_strategy='linear',
    by_epoch=False,
)
train_cfg = dict(by_epoch=False, val_interval=500)
val_cfg = dict()
test_cfg = dict()
