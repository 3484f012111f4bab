_base_ = './image_classifier.py'

# No mixup and no cutmix, which want longer training.
model = dict(head=dict(num_classes=10, topk=(1,)), train_cfg=None)
