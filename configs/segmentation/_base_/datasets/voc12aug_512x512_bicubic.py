# VOC 2012, trained on 1,464 images and 9,118 with the labels of SBD, and tested as ADE20K.
_base_ = './ade20k_512x512_bicubic.py'

dataset_type = 'PascalVOCDataset'
data_root = 'data/VOCdevkit/VOC2012'
labels = dict(type='LoadAnnotations', backend_args=_base_.backend_args)  # 0 is a class, background
train_pipeline = [_base_.train_pipeline[0], labels, *_base_.train_pipeline[2:]]
test_pipeline = [*_base_.test_pipeline[:3], labels, _base_.test_pipeline[4]]

train = dict(
    type=dataset_type,
    data_root=data_root,
    data_prefix=dict(img_path='JPEGImages', seg_map_path='SegmentationClass'),
    ann_file='ImageSets/Segmentation/train.txt',
    pipeline=train_pipeline,
)
augmented = dict(
    train,
    data_prefix=dict(img_path='JPEGImages', seg_map_path='SegmentationClassAug'),
    ann_file='ImageSets/Segmentation/aug.txt',
)
train_dataloader = dict(
    dataset=dict(_delete_=True, type='ConcatDataset', datasets=[train, augmented]),
)
val_dataloader = dict(
    dataset=dict(train, ann_file='ImageSets/Segmentation/val.txt', pipeline=test_pipeline),
)
test_dataloader = val_dataloader
