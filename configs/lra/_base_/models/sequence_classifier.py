# Two blocks, the mean over the tokens, and a head of two linears. A task adds ids, length and
# classes.
model = dict(
    type='ImageClassifier',
    data_preprocessor=dict(type='TokenPreprocessor'),
    backbone=dict(type='SequenceEncoder'),
    head=dict(
        type='StackedLinearClsHead',
        in_channels=64,
        mid_channels=[128],
        loss=dict(type='CrossEntropyLoss'),
    ),
)
