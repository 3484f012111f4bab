"""Convert a checkpoint as its authors or timm release it.

The result is a classifier's checkpoint. It loads into mmpretrain's ImageClassifier, and into a
backbone alone, also by init_cfg=dict(type='Pretrained', checkpoint=…). The family is the size of a
model, such as pvt_v2_b0. Without it, the tool finds the family by the names and shapes. If several
families have the same names and shapes, the name of the file tells, or the tool asks for --family.

Examples:
  python tools/model_converters/convert.py --list
  python tools/model_converters/convert.py pvt_v2_b0.pth --out checkpoints/pvt-v2-b0.pth
  python tools/model_converters/convert.py timm://swin_tiny_patch4_window7_224 --family swin_tiny
"""

import sys

from mmlaplace.commands.converters import list_families, parser_for, run

if __name__ == '__main__':
    parser = parser_for(__doc__)
    parser.add_argument('--list', action='store_true', help='print the families, and end')
    parser.add_output(
        '--out', help='the file to write, one of safetensors if .safetensors ends it; default: '
        'FAMILY.pth',
    )  # fmt: skip
    if '--list' in sys.argv[1:]:
        print(list_families())
        sys.exit()
    args = parser.parse_args()
    run(parser, args, args.out)
