_base_ = './polaformer-swin-small_8xb64-384px_in1k.py'

model = dict(head=dict(in_channels=1024), backbone=dict(arch='base', drop_path_rate=0.5))
