"""Make data sets of a few images in the layouts of ImageNet, COCO, ADE20K, Cityscapes and VOC.

Full-size configs run on them, to check that their pipelines, models and evaluators work. The data
are useless for learning: images are photographs with digits, as in the mini data sets, and labels
are those of the layouts' own classes with the digits' numbers.

  imagenet     {train,val}/<class>/*.jpg of 1,000 classes, two of which have images
  coco         annotations/instances_{train,val}2017.json with 80 classes, {train,val}2017/*.jpg
  ade/ADEChallengeData2016   {images,annotations}/{training,validation}
  cityscapes   {leftImg8bit,gtFine}/{train,val}/<city>, with label ids of training
  VOCdevkit/VOC2012   JPEGImages, SegmentationClass{,Aug}, ImageSets/Segmentation/*.txt

Example:
  python tools/dataset_converters/make_stand_in_datasets.py --out data/stand_in
"""

import json
import shutil
from pathlib import Path
from typing import Callable, Dict

import numpy as np
from filelock import FileLock
from PIL import Image

from mmlaplace.commands.command_line import ToolParser
from mmlaplace.lab.mini_datasets.pictures import SCENES, make_detection, make_segmentation

IMAGES = 2  # of each split
SHAPE = (256, 384)  # pixels; the lowest photographs have 300
IMAGENET_FOLDERS = 1000


def make_scenes(make: Callable, task: str, folder: Path) -> None:
    """The scenes of a mini data set, but few and larger."""
    _, counts, digits = SCENES[task]
    before, SCENES[task] = SCENES[task], (SHAPE, dict.fromkeys(counts, IMAGES), digits)
    try:
        make(folder, seed=0)
    finally:
        SCENES[task] = before


def as_jpeg(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    Image.open(source).save(target, quality=95)


def make_imagenet(out: Path, scenes: Path) -> None:
    for split in ('train', 'val'):
        for label in range(IMAGENET_FOLDERS):
            (out / split / f'n{label:08d}').mkdir(parents=True)
        for number, source in enumerate(sorted((scenes / split).glob('*.png'))):
            as_jpeg(source, out / split / f'n{number % 2:08d}' / f'{number}.jpg')


def make_coco(out: Path, scenes: Path) -> None:
    # As in mmdet, which classifiers do not need.
    from torchvision.models.detection import RetinaNet_ResNet50_FPN_Weights as Weights

    (out / 'annotations').mkdir(parents=True)
    for split in ('train', 'val'):
        content = json.loads((scenes / f'annotations/{split}.json').read_bytes())
        for image in content['images']:
            source = scenes / split / image['file_name']
            image['file_name'] = f'{source.stem}.jpg'
            as_jpeg(source, out / f'{split}2017' / image['file_name'])
        known = Weights.COCO_V1.meta['categories']
        names = [name for name in known if name not in ('__background__', 'N/A')]
        content['categories'] = [dict(id=i, name=name) for i, name in enumerate(names)]
        name = f'instances_{split}2017.json'
        (out / 'annotations' / name).write_text(json.dumps(content))


def make_ade(out: Path, scenes: Path) -> None:
    out = out / 'ADEChallengeData2016'
    for split in ('training', 'validation'):
        for source in sorted((scenes / 'images' / split).glob('*.png')):
            as_jpeg(source, out / 'images' / split / f'{source.stem}.jpg')
        shutil.copytree(scenes / 'annotations' / split, out / 'annotations' / split)


def make_cityscapes(out: Path, scenes: Path) -> None:
    for split, folder in (('train', 'training'), ('val', 'validation')):
        images = out / 'leftImg8bit' / split / 'town'
        labels = out / 'gtFine' / split / 'town'
        images.mkdir(parents=True)
        labels.mkdir(parents=True)
        for source in sorted((scenes / 'images' / folder).glob('*.png')):
            shutil.copy(source, images / f'{source.stem}_leftImg8bit.png')
            classes = np.asarray(Image.open(scenes / 'annotations' / folder / source.name))
            classes = np.where(classes == 0, 255, classes - 1).astype(np.uint8)  # 255 is ignored
            Image.fromarray(classes).save(labels / f'{source.stem}_gtFine_labelTrainIds.png')


def make_voc(out: Path, scenes: Path) -> None:
    out = out / 'VOC2012'
    lists = out / 'ImageSets/Segmentation'
    lists.mkdir(parents=True)
    for split, folder in (('train', 'training'), ('val', 'validation')):
        sources = sorted((scenes / 'images' / folder).glob('*.png'))
        for source in sources:
            as_jpeg(source, out / 'JPEGImages' / f'{split}_{source.stem}.jpg')
            for labels in ('SegmentationClass', 'SegmentationClassAug'):
                (out / labels).mkdir(exist_ok=True)
                found = scenes / 'annotations' / folder / source.name
                shutil.copy(found, out / labels / f'{split}_{source.name}')
        names = ''.join(f'{split}_{source.stem}\n' for source in sources)
        for name in ('train', 'aug') if split == 'train' else ('val',):
            (lists / f'{name}.txt').write_text(names)


MAKERS: Dict[str, tuple] = {
    'imagenet': (make_imagenet, make_detection, 'detection'),
    'coco': (make_coco, make_detection, 'detection'),
    'ade': (make_ade, make_segmentation, 'segmentation'),
    'cityscapes': (make_cityscapes, make_segmentation, 'segmentation'),
    'VOCdevkit': (make_voc, make_segmentation, 'segmentation'),
}


def make_all(out: Path) -> None:
    """Make what is not there. A folder gets its name when it is whole."""
    out.mkdir(parents=True, exist_ok=True)
    for name, (convert, make, task) in MAKERS.items():
        with FileLock(out / f'.{name}.lock'):  # a second call waits
            if (out / name).exists():
                continue
            scenes, partial = out / f'{name}.scenes', out / f'{name}.partial'
            for folder in (scenes, partial):
                shutil.rmtree(folder, ignore_errors=True)
            make_scenes(make, task, scenes)
            convert(partial, scenes)
            shutil.rmtree(scenes)
            partial.rename(out / name)
            print(f'wrote {out / name}')


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('--out', type=Path, default=Path('data/stand_in'))
    args = parser.parse_args()
    parser.check_folder('--out', args.out)
    make_all(args.out)


if __name__ == '__main__':
    main()
