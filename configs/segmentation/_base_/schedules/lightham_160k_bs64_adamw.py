# PolaFormer++'s schedule of LightHamHead: UPerNet's, for 64 images a step, with a head that learns
# ten times as fast.
_base_ = './upernet_160k_bs16_adamw.py'

optim_wrapper = dict(paramwise_cfg=dict(custom_keys=dict(decode_head=dict(lr_mult=10.0))))

# 6e-5 is for 8 GPUs x 8 images; another batch takes 6e-5 x images / 64.
auto_scale_lr = dict(base_batch_size=64)
