"""Convert a checkpoint of SOFT as its authors release it, as convert.py does.

Example:
  python tools/model_converters/soft_to_mmlaplace.py SOFT_Tiny.pth checkpoints/soft-tiny.pth
"""

from mmlaplace.commands.converters import parser_for, run
from mmlaplace.models.backbones import soft

if __name__ == '__main__':
    parser = parser_for(__doc__)
    parser.add_output('out', help='the file to write, one of safetensors if .safetensors ends it')
    args = parser.parse_args()
    run(parser, args, args.out, only=(soft.SOFT_NAMES,))
