# Weights, gradients and optimizer states in shards over all GPUs, by torch's FSDP.
runner_type = 'FlexibleRunner'
strategy = dict(
    type='FSDPStrategy',
    model_wrapper=dict(
        use_orig_params=True,  # for weight decay by the name of a parameter
        auto_wrap_policy=dict(
            type='torch.distributed.fsdp.wrap.size_based_auto_wrap_policy', min_num_params=1000000
        ),
    ),
    state_dict_cfg='full',
)
