# Nyströmformer's schedule, without clipping. A task adds its iterations and its warm-up.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, eps=1e-6, weight_decay=0.0),
    clip_grad=None,
)
param_scheduler = dict(
    type='OneCycleLR',
    eta_max=1e-4,
    anneal_strategy='linear',
    by_epoch=False,
)
train_cfg = dict(by_epoch=False, val_interval=500)
val_cfg = dict()
test_cfg = dict()
