"""Train Hugging Face's RT-DETR on one of our backbones, by its Trainer, and evaluate it by COCO.

DATA has annotations/{train,val}.json in COCO's format, and the images in train/ and val/. The
detector is saved by save_pretrained and loaded again, and that one is evaluated, by pycocotools.
Into the work directory go model.safetensors, config.json and the log, results.json.

It needs transformers and accelerate, in an environment without mmpretrain.

Examples:
  python tools/train_rt_detr.py data/mini/detection --small --image-size 96 128 --lr 1e-3 \\
      --weights work_dirs/quickstart/epoch_11.pth
  python tools/train_rt_detr.py data/mine --backbone mlla_tiny --weights mmlaplace://mlla-tiny
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from pycocotools.cocoeval import COCOeval
from torchvision.datasets import CocoDetection

from mmlaplace.commands.command_line import ToolParser, end_tool, load_or_exit, positive, write_json
from mmlaplace.model_zoo import near_names
from mmlaplace.timm import MODELS, TimmClassifier

# Heads for the mini data, on a CPU. Without them, RT-DETR's own: 256 channels and 300 queries.
SMALL = dict(
    d_model=64,
    encoder_hidden_dim=64,
    encoder_ffn_dim=128,
    encoder_attention_heads=4,
    decoder_in_channels=[64, 64, 64],
    decoder_ffn_dim=128,
    decoder_attention_heads=4,
    decoder_layers=2,
    num_queries=30,
    num_denoising=30,
    hidden_expansion=0.5,
)


class CocoImages(CocoDetection):
    """A part of a data set in COCO's format, as RT-DETR's processor makes it.

    The categories are those of a training, if it is given, whose labels another part has too.
    """

    def __init__(self, data: Path, part: str, processor, train=None) -> None:
        super().__init__(data / part, data / f'annotations/{part}.json')
        self.processor = processor
        self.names = {number: one['name'] for number, one in self.coco.cats.items()}
        known = self.names if train is None else train.names
        if others := self.names.items() - known.items():
            end_tool(f'{part}.json has the categories {dict(others)}, and train.json {known}')
        self.categories = sorted(known)  # by label: COCO's own have gaps

    def __getitem__(self, index: int) -> dict:
        image, annotations = super().__getitem__(index)
        labelled = [
            dict(a, category_id=self.categories.index(a['category_id']))
            for a in annotations
            if not a['iscrowd']
        ]
        batch = self.processor(image, dict(image_id=self.ids[index], annotations=labelled))
        return dict(pixel_values=batch['pixel_values'][0], labels=batch['labels'][0])


def collate(samples: list) -> dict:
    images = torch.stack([torch.as_tensor(sample['pixel_values']) for sample in samples])
    return dict(pixel_values=images, labels=[sample['labels'] for sample in samples])


@torch.no_grad()
def evaluate(model, part: CocoImages) -> dict:
    """The AP of the boxes in per cent."""
    model.eval()
    results = []
    for sample in part:
        outputs = model(pixel_values=collate([sample])['pixel_values'].to(model.device))
        size = sample['labels']['orig_size'][None]
        (found,) = part.processor.post_process_object_detection(outputs, 0.0, size)
        corners = found['boxes'].cpu()
        boxes = torch.cat([corners[:, :2], corners[:, 2:] - corners[:, :2]], 1).tolist()
        for box, score, label in zip(boxes, found['scores'].tolist(), found['labels'].tolist()):
            results.append(
                dict(
                    image_id=int(sample['labels']['image_id']),
                    bbox=box,
                    score=score,
                    category_id=part.categories[label],
                )
            )
    coco = COCOeval(part.coco, part.coco.loadRes(results), 'bbox')
    coco.evaluate()
    coco.accumulate()
    coco.summarize()
    return dict(zip(('AP', 'AP50', 'AP75'), (round(100 * float(x), 2) for x in coco.stats)))


def parse_args():
    parser = ToolParser(__doc__)
    parser.add_argument('data', type=Path, help='a folder in the layout above')
    parser.add_argument('--backbone', default='laplacianformer_micro', help='default: %(default)s')
    parser.add_argument('--weights', help='of the backbone; default: random')
    parser.add_argument('--small', action='store_true', help='small heads, for the mini data')
    parser.add_image_size(
        former='--size', type=positive, nargs=2, default=(640, 640), metavar=('H', 'W')
    )
    parser.add_argument('--epochs', type=positive, default=8, help='default: %(default)s')
    parser.add_argument('--batch-size', type=positive, default=4, help='default: %(default)s')
    parser.add_argument('--lr', type=float, default=1e-4, help='default: %(default)s')
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/rt_detr'))
    args = parser.parse_args()
    for part in ('train', 'val'):
        file = args.data / f'annotations/{part}.json'
        if not file.is_file():
            parser.error(f'there is no {file}; name a folder in the layout of --help')
    if args.backbone not in MODELS:
        near = near_names(args.backbone, list(MODELS))
        parser.error(f'there is no backbone {args.backbone!r}; similar ones are {near}')
    return args


def main() -> None:
    args = parse_args()
    try:
        import accelerate  # noqa: F401  (Trainer needs it)
        import transformers as hf
    except ImportError as error:
        end_tool(f'this needs transformers and accelerate ({error}); pip install them')
    hf.set_seed(0)
    size = dict(height=args.image_size[0], width=args.image_size[1])
    processor = hf.RTDetrImageProcessor(size=size, do_normalize=True)
    train = CocoImages(args.data, 'train', processor)
    val = CocoImages(args.data, 'val', processor, train)
    names = {i: train.names[number] for i, number in enumerate(train.categories)}
    model = hf.RTDetrForObjectDetection(
        hf.RTDetrConfig(
            backbone_config=hf.TimmBackboneConfig(backbone=args.backbone, out_indices=[1, 2, 3]),
            id2label=names,
            label2id={name: i for i, name in names.items()},
            **(SMALL if args.small else {}),
        )
    )
    if args.weights:
        (ours,) = (module for module in model.modules() if isinstance(module, TimmClassifier))
        load_or_exit(ours.backbone, args.weights)
    settings = hf.TrainingArguments(
        str(args.work_dir),
        num_train_epochs=args.epochs,
        learning_rate=args.lr,
        warmup_steps=50,
        per_device_train_batch_size=args.batch_size,
        weight_decay=1e-4,
        max_grad_norm=0.1,
        lr_scheduler_type='cosine',
        remove_unused_columns=False,
        logging_steps=20,
        save_strategy='no',
        report_to='none',
    )
    trainer = hf.Trainer(model, settings, train_dataset=train, data_collator=collate)
    seconds = trainer.train().metrics['train_runtime']
    trainer.save_model()
    loaded = hf.RTDetrForObjectDetection.from_pretrained(args.work_dir).to(model.device)
    log = dict(
        command=' '.join(['python', 'tools/train_rt_detr.py', *sys.argv[1:]]),
        box=evaluate(loaded, val),
        seconds=round(seconds),
        parameters=model.num_parameters(),
        versions={name: version(name) for name in ('torch', 'timm', 'transformers')},
        history=trainer.state.log_history,
    )
    write_json(args.work_dir / 'results.json', log)
    print(json.dumps(log['box']))


if __name__ == '__main__':
    main()
