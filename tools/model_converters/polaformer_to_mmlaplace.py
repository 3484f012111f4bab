"""Convert a checkpoint of PolaFormer as its authors release it, as convert.py does.

Example:
  python tools/model_converters/polaformer_to_mmlaplace.py pola_swin_t.pth pola-swin-tiny.pth
"""

from mmlaplace.commands.converters import parser_for, run
from mmlaplace.models.backbones import polaformer

if __name__ == '__main__':
    parser = parser_for(__doc__)
    parser.add_output('out', help='the file to write, one of safetensors if .safetensors ends it')
    args = parser.parse_args()
    run(parser, args, args.out, only=(polaformer.PVT_NAMES, polaformer.SWIN_NAMES))
