# What all schedules that count iterations share; they add how many and how often.
train_cfg = dict(type='IterBasedTrainLoop')
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

default_hooks = dict(
    first_checks=dict(type='FirstChecksHook'),
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50, log_metric_by_epoch=False),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(
        type='AtomicCheckpointHook',
        by_epoch=False,
        max_keep_ckpts=3,
        save_best='mIoU',
    ),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    visualization=dict(type='SegVisualizationHook'),
)
