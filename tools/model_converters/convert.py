"""Convert a checkpoint as its authors or timm release it.

The result is the checkpoint of a classifier, detector or segmentor. It loads into the model of
mmpretrain, mmdet or mmseg, and into a backbone alone, also by
init_cfg=dict(type='Pretrained', checkpoint=…). The tool finds the model, such as pvt_v2_b0, by
names and shapes. If several models have the same names and shapes, the name of the file tells, or
the tool asks for --model.

Examples:
  python tools/model_converters/convert.py --list
  python tools/model_converters/convert.py pvt_v2_b0.pth --out checkpoints/pvt-v2-b0.pth
  python tools/model_converters/convert.py upernet_swin_tiny_patch4_window7_512x512.pth
  python tools/model_converters/convert.py timm://swin_tiny_patch4_window7_224 --model swin_tiny
"""

import sys

from mmlaplace.commands.converters import parser_for, run
from mmlaplace.commands.model_list import list_published

if __name__ == '__main__':
    parser = parser_for(__doc__)
    parser.add_argument('--list', action='store_true', help='print the models, and end')
    parser.add_output(
        '--out',
        help='the file to write, one of safetensors if .safetensors ends it; default: MODEL.pth',
    )
    if '--list' in sys.argv[1:]:
        print(list_published())
        sys.exit()
    args = parser.parse_args()
    run(parser, args, args.out)
