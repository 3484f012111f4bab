_base_ = ['./_base_/retrieval.py', './_base_/default_runtime.py']
from mmlaplace.lab.lra import encoder_options

model = dict(backbone=encoder_options('own', '{{$ATTENTION:pola}}'))
work_dir = 'work_dirs/retrieval_{{$ATTENTION:pola}}'
