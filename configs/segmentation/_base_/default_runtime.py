custom_imports = dict(imports=['mmlaplace'], allow_failed_imports=False)
default_scope = 'mmseg'

# The hooks that count iterations come with the schedules.
env_cfg = dict(
    cudnn_benchmark=False,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl', timeout=600),  # s until a machine that is silent ends the run
)
vis_backends = [dict(type='LocalVisBackend')]
visualizer = dict(type='SegLocalVisualizer', vis_backends=vis_backends, name='visualizer')
log_processor = dict(by_epoch=False)
log_level = 'INFO'
load_from = None
resume = False
randomness = dict(seed=None, deterministic=False)
