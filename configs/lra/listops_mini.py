_base_ = ['./_base_/listops_mini.py', './_base_/default_runtime.py']
from mmlaplace.lab.lra import encoder_options

model = dict(backbone=encoder_options('mini', '{{$ATTENTION:pola}}'))
work_dir = 'work_dirs/listops_mini_{{$ATTENTION:pola}}'
