_base_ = ['./_base_/pathfinder.py', './_base_/default_runtime.py']
from mmlaplace.lab.lra import encoder_options

model = dict(backbone=encoder_options('own', '{{$ATTENTION:pola}}'))
work_dir = 'work_dirs/pathfinder_{{$ATTENTION:pola}}'
