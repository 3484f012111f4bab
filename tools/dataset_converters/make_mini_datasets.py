"""Make small data sets of real images. All but one need no download.

Bright handwritten digits (scikit-learn) stand on dimmed photographs (scikit-image). The held-out
images show other digits on other parts of the photographs than the training images.

  classification  ImageFolder layout: {train,val}/<digit>/*.png, one digit on 48 x 48 pixels
  crowds          the same layout, but each image is a cut from a plane full of digits of its class;
                  val_72 and val_96 are wider views of the scenes in val, at the same scale (only on
                  demand: for the study of image size in docs/scale.md)
  textures        the same layout: patches of fifteen photographs, 64 x 64 pixels, and the class is
                  the photograph. The held-out patches are from a part of each photograph that no
                  training patch shows, and val_96 and val_128 are wider views of the same places
                  (only on demand: for comparing attentions)
  detection       COCO layout: annotations/{train,val}.json with boxes and masks, {train,val}/*.png
  segmentation    ADE20K layout: {images,annotations}/{training,validation}; label 0 is ignored (the
                  digits' soft edges), 1 is background, 2 to 11 are the digits
  fashion         Fashion-MNIST as mmpretrain reads it: 60,000 and 10,000 grey images of clothes,
                  28 x 28 pixels (only on demand: for comparing attentions). Its four files are
                  those of the Debian package dataset-fashion-mnist, or of --fashion-files
  rendered        {images,targets}/{training,validation}: photographs on the floor, the wall and the
                  balls of rendered rooms. The channels of a target are nearness, edges and the grey
                  of superpixels. The held-out photographs are others (only on demand: for studies)

Example:
  python tools/dataset_converters/make_mini_datasets.py      # the three tasks, into data/mini
  python tools/dataset_converters/make_mini_datasets.py --tasks classification --seed 1 \\
      --out /tmp/mini
  python tools/dataset_converters/make_mini_datasets.py --tasks fashion
"""

from functools import partial
from pathlib import Path

from mmlaplace.commands.command_line import ToolParser, at_least
from mmlaplace.lab.lra.storage import make_folder
from mmlaplace.lab.mini_datasets import fashion, pictures


def main() -> None:
    parser = ToolParser(__doc__)
    tasks = ('classification', 'detection', 'segmentation')
    parser.add_argument('--tasks', nargs='+', choices=list(pictures.MAKERS), default=tasks)
    parser.add_argument('--out', type=Path, default=Path('data/mini'), help='default: %(default)s')
    parser.add_argument('--seed', type=partial(at_least, 0), default=0, help='default: %(default)s')
    parser.add_argument(
        '--fashion-files',
        type=Path,
        default=fashion.PACKAGE,
        metavar='FOLDER',
        help='with the files of Fashion-MNIST; default: %(default)s',
    )
    parser.add_argument('--force', action='store_true', help='replace data made otherwise')
    args = parser.parse_args()
    parser.check_folder('--out', args.out)
    for task in args.tasks:
        folder = args.out / task
        options = dict(source=args.fashion_files) if task == 'fashion' else {}
        make = partial(pictures.fill, task=task, seed=args.seed, **options)
        with parser.refusing(FileExistsError, FileNotFoundError, ValueError):
            made = make_folder(folder, pictures.settings(args.seed), args.force, make)
        print(f'wrote {folder}' if made else f'{folder} is there already')


if __name__ == '__main__':
    main()
