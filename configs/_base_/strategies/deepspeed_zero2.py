# Gradients and optimizer states in shards over all GPUs, in bf16, by DeepSpeed's ZeRO 2. Needs pip
# install deepspeed, and optim_wrapper=dict(type='DeepSpeedOptimWrapper').
runner_type = 'FlexibleRunner'
strategy = dict(
    type='DeepSpeedStrategy',
    bf16=dict(enabled=True),
    gradient_clipping=1.0,
    zero_optimization=dict(stage=2, overlap_comm=True, contiguous_gradients=True),
)
