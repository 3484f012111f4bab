_base_ = ['./_base_/text_polaformer.py', './_base_/default_runtime.py']
from mmlaplace.lab.lra import encoder_options

model = dict(backbone=encoder_options('polaformer', '{{$ATTENTION:pola-a3}}'))
work_dir = 'work_dirs/text_{{$ATTENTION:pola-a3}}_as-polaformer'
