# What weight decay would only pull towards zero: norms, biases, learned positions, class tokens and
# the scales and powers inside of attentions. Keys are parts of the names of parameters.
optim_wrapper = dict(
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        bias_decay_mult=0.0,
        custom_keys={
            '.gamma': dict(decay_mult=0.0),  # LaplacianAttention
            '.position.': dict(decay_mult=0.0),  # PositionEmbedding, with its class token
            '.key_positions': dict(decay_mult=0.0),  # PolaAttention
            '.attn.power': dict(decay_mult=0.0),
            '.attn.scale': dict(decay_mult=0.0),
            '.relative_bias': dict(decay_mult=0.0),  # SoftmaxAttention in windows
        },
    )
)
