# DINOv2's training of a linear on frozen features: SGD without weight decay, cosine to 0, 12,500
# iterations. The authors take the best of 13 rates from 4e-5 to 0.4. This is the one in the middle.
max_epochs = 10
optim_wrapper = dict(optimizer=dict(type='SGD', lr=4e-3, momentum=0.9, weight_decay=0.0))
param_scheduler = [
    dict(
        type='CosineAnnealingLR',
        eta_min=0.0,
        by_epoch=True,
        begin=0,
        end=max_epochs,
        convert_to_iter_based=True,
    ),
]
train_cfg = dict(by_epoch=True, max_epochs=max_epochs, val_interval=1)
val_cfg = dict()
test_cfg = dict()

# 8 GPUs x 128 images
auto_scale_lr = dict(base_batch_size=1024)
