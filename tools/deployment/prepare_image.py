"""Prepare an image for a program in C++, as the test pipeline of the exported model does.

Writes the RGB pixels that a pt2 or aoti file takes as a PPM file (P6), which
tools/deployment/aoti_classify.cpp and most libraries read. It needs numpy and opencv-python, and
Pillow where the pipeline resizes by it, but no PyTorch.

Examples:
  python tools/deployment/prepare_image.py classifier.aoti.pt2 cat.jpg cat.ppm
"""

import argparse
import json
import sys
import zipfile
from pathlib import Path

import numpy as np

# The module alone, as its package needs torch. A copy beside this file comes first.
sys.path.append(str(Path(__file__).resolve().parents[2] / 'mmlaplace/deployment'))  # in a clone
sys.path.append(str(Path(__file__).resolve().parents[3] / 'deployment'))  # in .mim of a wheel
import image_pipeline


def metadata_of(path: Path) -> dict:
    """The metadata of a ``pt2`` or ``aoti`` file, which is a zip archive. It is not loaded.

    Raises:
        ValueError: If it has none; says what to do.
    """
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith('extra/mmlaplace'):
                    return image_pipeline.facts(archive.read(name).decode(), path)
                if name.endswith('.json') and b'"mmlaplace"' in (content := archive.read(name)):
                    return image_pipeline.facts(json.loads(content)['mmlaplace'], path)
    raise ValueError(f'{path} was not made by export.py --format pt2 or aoti; export it again')


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('model', type=Path, help='of export.py --format aoti or pt2')
    parser.add_argument('image', type=Path)
    parser.add_argument('out', type=Path, help='the PPM file')
    parser.add_argument('--force', action='store_true', help='replace a file that is there')
    args = parser.parse_args()
    for path, maker in ((args.model, 'export.py makes it'), (args.image, 'check the path')):
        if not path.is_file():
            parser.error(f'there is no file {path}; {maker}')
    if args.out.resolve() in (args.model.resolve(), args.image.resolve()):
        parser.error(f'{args.out} is an input; name another file')
    if args.out.exists() and not args.force:
        parser.error(f'{args.out} is there already; --force replaces it')
    try:
        about = metadata_of(args.model)
        image = image_pipeline.read_image(args.image, about['color'])
        pixels = image_pipeline.prepare(image, about).pixels[0].transpose(1, 2, 0)
    except (OSError, ValueError) as error:
        parser.error(str(error) if str(args.model) in str(error) else f'{args.image}: {error}')
    if pixels.shape[2] != 3 or (pixels != np.rint(pixels)).any():
        parser.error(
            f'the pixels for {args.model} are not RGB, or padded by {about["pad"]["value"]}, which '
            'a PPM file cannot hold; let your program pad them'
        )
    height, width = pixels.shape[:2]
    content = b'P6\n%d %d\n255\n' % (width, height) + pixels.astype(np.uint8).tobytes()
    try:
        image_pipeline.write_whole(args.out, content)
    except OSError as error:
        parser.error(f'{args.out} cannot be written ({error}); name another place')
    print(f'{args.out}: {height} x {width}')


if __name__ == '__main__':
    main()
