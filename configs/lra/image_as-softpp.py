_base_ = ['./_base_/image_softpp.py', './_base_/default_runtime.py']
from mmlaplace.lab.lra import encoder_options

model = dict(backbone=encoder_options('softpp', '{{$ATTENTION:softpp}}'))
work_dir = 'work_dirs/image_{{$ATTENTION:softpp}}_as-softpp'
