"""Count what a forward asks of torch and of Python, for backbones of each family, beside timm's.

Operators are those that are no views, each of which a GPU has to launch. Calls are those of our
functions in Python, or of timm's, and files are where these stand. A second forward is counted,
when tables of positions and masks are there. Our backbones return the maps of all stages, and
timm's models a vector.

It writes a log, from which make_pages.py makes the table of docs/developers/forwards.md.

Examples:
  python .dev_scripts/count_forwards.py                        # one size of each family; a minute
  python .dev_scripts/count_forwards.py swin-tiny cswin-small  # by name; the log keeps the others
"""

import sys
from pathlib import Path
from typing import Any, Dict

import timm
import torch
from pages.files import ROOT
from pages.forwards import LOG
from torch import nn

import mmlaplace
from mmlaplace.commands.command_line import ToolParser, read_json, write_json

sys.path.append(str(ROOT / 'tests'))
from called_ops import Called, calls_of

# Each with the name in timm of the same model, if it is there.
MODELS = {
    'swin-tiny': 'swin_tiny_patch4_window7_224',
    'swinv2-tiny-w8': 'swinv2_tiny_window8_256',
    'pvt-tiny': '',
    'pvtv2-b0': 'pvt_v2_b0',
    'deit-tiny': 'deit_tiny_patch16_224',
    'dinov2-small': 'vit_small_patch14_dinov2',
    'xcit-t12-p16': 'xcit_tiny_12_p16_224',
    'efficientvit-b1': 'efficientvit_b1',
    'efficientvit-l1': 'efficientvit_l1',
    'swiftformer-xs': 'swiftformer_xs',
    'mobilevitv2-050': 'mobilevitv2_050',
    'cswin-tiny': '',
    'mlla-tiny': '',
    'ravlt-tiny': '',
    'mavit-tiny': '',
    'h-vit3-tiny': '',
    'vit3-tiny': '',
    'laplacianformer-tiny': '',
    'soft-tiny': '',
    'softpp-tiny': '',
    'polaformer-pvt-tiny': '',
    'polaformer-pvtv2-b0': '',
    'polaformer-swin-tiny': '',
    'polaformer-deit-tiny': '',
    'polaformerpp-b0': '',
    'agent-deit-tiny': '',
    'agent-swin-tiny': '',
    'circulant-deit-tiny': '',
    'flatten-swin-tiny': '',
    'flatten-cswin-tiny': '',
    'inline-swin-tiny': '',
    'inline-cswin-tiny': '',
    'slab-deit-tiny': '',
    'slab-swin-tiny': '',
}
OTHER_SIZES = ('swinv2-tiny-w8', 'dinov2-small')  # timm's have another size of images


def counts(model: nn.Module, package: str) -> Dict[str, int]:
    """Operators in eval mode and in training, calls and files of a forward."""
    images, operators = torch.randn(1, 3, 224, 224), {}
    for training in (False, True):
        model.train(training)
        with torch.set_grad_enabled(training):
            model(images)
            with Called() as called:
                model(images)
        operators[training] = len(called.computing)
    model.eval()
    with torch.no_grad():
        met = [code.co_filename for code in calls_of(lambda: model(images), package)]
    return dict(
        operators=operators[False],
        training_operators=operators[True],
        calls=len(met),
        files=len(set(met)),
    )


def row(name: str) -> Dict[str, Any]:
    """The counts of a backbone, and those of timm's model if it is there."""
    found: Dict[str, Any] = counts(
        mmlaplace.create_backbone(name), str(Path(mmlaplace.__file__).parent)
    )
    beside = MODELS.get(name)
    if beside:
        sizes = dict(img_size=224) if name in OTHER_SIZES else {}
        model = timm.create_model(beside, num_classes=0, **sizes)
        found['timm'] = counts(model, str(Path(timm.__file__).parent))
    return found


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('names', nargs='*', help='of backbones (default: one of each family)')
    names = parser.parse_args().names or list(MODELS)
    rows = read_json(LOG)['rows'] if LOG.exists() else {}
    for name in names:
        rows[name] = row(name)
        print(name, rows[name])
    rows = {name: rows[name] for name in MODELS if name in rows}
    write_json(LOG, dict(torch=torch.__version__, timm=timm.__version__, rows=rows))


if __name__ == '__main__':
    main()
