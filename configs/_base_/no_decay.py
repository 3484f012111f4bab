# No weight decay for norms, biases and what the modules name by no_weight_decay():
# LaplacianAttention's gamma, class tokens, Swin's bias tables. What the papers' authors let decay,
# such as SOFT's and PolaFormer's positions, powers and scales, decays here too.
optim_wrapper = dict(constructor='NoDecayOptimWrapperConstructor')
