custom_imports = dict(imports=['mmlaplace'], allow_failed_imports=False)
default_scope = 'mmpretrain'

default_hooks = dict(
    first_checks=dict(type='FirstChecksHook'),
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=100),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(
        type='AtomicCheckpointHook',
        by_epoch=False,
        interval=1000,
        max_keep_ckpts=1,
        save_best='accuracy/top1',
    ),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    visualization=dict(type='VisualizationHook', enable=False),
)
log_processor = dict(by_epoch=False)
env_cfg = dict(
    cudnn_benchmark=False,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl', timeout=600),  # s until a machine that is silent ends the run
)
vis_backends = [dict(type='LocalVisBackend')]
visualizer = dict(type='UniversalVisualizer', vis_backends=vis_backends)
log_level = 'INFO'
load_from = None
resume = False
randomness = dict(seed=0, deterministic=False)
