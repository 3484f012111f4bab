_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_bs128_248.py',
    '../_base_/schedules/imagenet_bs1024_adamw_300e.py',
    '../_base_/default_runtime.py',
]

# The kernel that SOFT approximates. It has a weight for each pair of tokens, which in the first
# stage are 2.5 GB for 32 images.
exact = dict(type='KernelAttention', kernel='gaussian', qkv='shared_qk')
model = dict(
    backbone=dict(
        type='SOFT',
        arch='tiny',
        drop_path_rate=0.1,
        drop_path_per='element',
        attn_cfg=[exact, exact, exact, None],
        out_indices=(3,),
        out_type='cls_token',
    ),
    neck=None,  # the class token goes to the head
    head=dict(in_channels=512),
)

train_dataloader = dict(batch_size=32)
val_dataloader = dict(batch_size=32)
test_dataloader = val_dataloader
