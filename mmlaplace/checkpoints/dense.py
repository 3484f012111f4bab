"""Released detectors and segmentors: the names of their tensors, and the configs that they fit."""

from typing import Collection, Dict, List, Mapping, NamedTuple, Optional, Tuple

from mmengine.registry import DATASETS
from torch import Tensor

from .conversion import Converted, NameTable
from .names import first_names
from .published import PREFIX, best_table, near, shapes_of


class DenseModel(NamedTuple):
    """A detector or segmentor as its authors released it. Its name is that of a config here.

    Attributes:
        classifier: Name in ``PUBLISHED`` of the classifier with a backbone of the same size.
        names: The names of its backbone, as necks and heads have those of mmdet and mmseg. If the
            table is ``whole``, the names of all of it.
        weights: Address of the file. Empty, if the authors' link is.
        page: Address of a web page with the file, where that of the file is not known.
        licence: Of the repository's copy of the toolbox, if it is not that of the family, which
            fills it in.
        config: Name of the config, if another file of the same model has its name.
        scores: What the authors publish for such a file. Otherwise the config's metafile has it.
    """

    classifier: str
    names: NameTable
    weights: str = ''
    page: str = ''
    licence: str = ''
    config: str = ''
    scores: Mapping[str, float] = {}

    @property
    def place(self) -> str:
        """Where the weights are, for lists."""
        return self.weights or (f'on {self.page}' if self.page else "the authors' link is empty")


# By name. The files of papers in ``models/backbones/`` add to it.
DENSE: Dict[str, DenseModel] = {}


def dense_models(
    files: Mapping[str, Mapping[str, str]],
    classifier: str,
    names: NameTable,
    weights: str = '',
    page: str = '',
    licence: str = '',
) -> Dict[str, DenseModel]:
    """The detectors and segmentors of a family, by the names of their configs.

    Args:
        files: By the name of a config, with ``{}`` for the size, the name of the file of each size,
            or nothing where the authors' link is empty.
        classifier: The name in ``PUBLISHED``, with ``{}`` for the size.
        names: As in :class:`DenseModel`.
        weights: As there, with ``{}`` for the name of the file. Default: ''.
        page: The same. Default: ''.
        licence: As there. Default: ''.
    """
    models = {}
    for config, by_size in files.items():
        for size, file in by_size.items():
            models[config.format(size)] = DenseModel(
                classifier.format(size),
                names,
                weights.format(file) if file else '',
                page.format(file) if file else '',
                licence,
            )
    return models


# By the word in the name of a config.
DATA_SETS = {
    'coco': 'mmdet.CocoDataset',
    'ade20k': 'mmseg.ADE20KDataset',
    'cityscapes': 'mmseg.CityscapesDataset',
    'voc12aug': 'mmseg.PascalVOCDataset',
}
# The first that starts a name of a file tells its kind. Where the authors have their own toolbox,
# there are their start and ours. The configs of a kind have its word.
KINDS = (
    ('rpn_head.init_proposal_', 'Sparse R-CNN', ''),
    ('roi_head.mask_head.0.', 'Cascade Mask R-CNN', 'cascade-mask-rcnn'),
    ('roi_head.bbox_head.0.', 'Cascade R-CNN', ''),
    ('roi_head.mask_head.', 'Mask R-CNN', 'mask-rcnn'),
    ('roi_head.bbox_head.', 'Faster R-CNN', ''),
    ('bbox_head.retina_', 'RetinaNet', 'retinanet'),
    ('bbox_head.atss_', 'ATSS', ''),
    ('bbox_head.gfl_', 'GFL', ''),
    ('bbox_head.reppoints_', 'RepPoints', ''),
    ('bbox_head.transformer.', 'DETR', ''),
    (('neck.laterals.', 'head.output_ops.'), 'SegHead', 'seghead'),
    (('decode_head.aspp_modules.', 'seg_head.aspp.'), 'DeepLabv3', 'deeplabv3'),
    (('neck.branches.', 'seg_head.psp_layer.'), 'PSPNet', 'pspnet'),
    (('neck.extra_layers.', 'ssd_heads.'), 'SSD', 'ssdlite'),
    ('decode_head.psp_modules.', 'UPerNet', 'upernet'),
    ('decode_head.scale_heads.', 'Semantic FPN', 'fpn'),
    ('head.fc.', 'classifier', ''),
)
OTHER_HEADS = ('bbox_head.', 'decode_head.', 'rpn_head.', 'roi_head.', 'mask_head.')
# Heads of mmdet 1, which had the background first.
MMDET_1 = ('bbox_head.fc_cls.', 'bbox_head.0.fc_cls.', 'mask_head.')
# In the names of OpenMMLab's Swin and PVT.
OPENMMLAB = ('.attn.w_msa.', '.attn.attn.in_proj_')
# Tensors with a row for each class, or several.
CLASSES = (
    'roi_head.mask_head.conv_logits.weight',
    'roi_head.mask_head.0.conv_logits.weight',
    'decode_head.conv_seg.weight',
    'bbox_head.retina_cls.weight',
    'bbox_head.cls_convs.0.weight',
)


def kind_of(names: Collection[str]) -> str:
    """The kind of a whole model by the names of its heads, or nothing of another module."""
    for mark, kind, _ in KINDS:
        if any(name.startswith(mark) for name in names):
            return kind
    return 'model with other heads' if any(n.startswith(OTHER_HEADS) for n in names) else ''


def _kind_of_config(name: str) -> str:
    kinds = {word: kind for _, kind, word in KINDS if word}
    for word in name.split('_')[:2]:
        if word in kinds:
            return kinds[word]
    return ''


def _backbone_of(names: Collection[str]) -> Dict[str, str]:
    """The names of the backbone in a file, each by itself without what comes before it."""
    return {name[len(PREFIX) :]: name for name in names if name.startswith(PREFIX)}


def maps_table(names: Collection[str]) -> Optional[NameTable]:
    """The authors' names of a detector's backbone, or None. ``names`` have no prefix."""
    return best_table((each.names for each in DENSE.values() if not each.names.whole), names)


def table_of(names: Collection[str]) -> Optional[NameTable]:
    """The authors' names of a whole detector or segmentor, or of its backbone, or None."""
    whole = best_table((each.names for each in DENSE.values() if each.names.whole), names)
    return whole or maps_table(_backbone_of(names))


def dataset_meta_of(name: str, stored: Mapping[str, list]) -> Dict[str, list]:
    """Classes and palette for a converted file: those of the authors' file, else of the data set.

    Without the toolbox, they are those of the file alone.

    Args:
        name: The released model.
        stored: What the file has of them.
    """
    data = (DENSE[name].config or name).rpartition('_')[-1].partition('-')[0]
    known = getattr(DATASETS.get(DATA_SETS[data]), 'METAINFO', None)
    if known is None or stored.get('classes', list(known['classes'])) != list(known['classes']):
        return dict(stored)
    return {**{key: list(known[key]) for key in ('classes', 'palette')}, **stored}


def convert(
    released: Mapping[str, Tensor], table: NameTable, image_size: Tuple[int, int] = (1, 1)
) -> Converted:
    """Rename a detector or segmentor. Unless the table is whole, neck and heads keep their names.

    Args:
        released: The authors' tensors, without a ``module.`` before all names.
        table: That of :func:`table_of`.
        image_size: As in :meth:`NameTable.convert`.

    Raises:
        ValueError: As there, and for heads of mmdet 1.
    """
    check_heads(released)
    if table.whole:
        return table.convert(released, image_size)
    inside = {name: released[full] for name, full in _backbone_of(released).items()}
    weights, report = table.convert(inside, image_size, PREFIX)
    report = [(PREFIX + name, own, shape) for name, own, shape in report]
    for name, value in released.items():
        if not name.startswith(PREFIX):
            averaged = name.startswith('ema_')  # of mmdet 2's EMAHook, which are no part of it
            report.append((name, 'dropped' if averaged else name, tuple(value.shape)))
            if not averaged:
                weights[name] = value
    return Converted(weights, report)


def _sign_of_mmdet_1(weights: Mapping[str, Tensor]) -> str:
    """What shows that the heads may be those of mmdet 1, or nothing."""
    old = [name for name in weights if name.startswith(MMDET_1)]
    if old and any(name.startswith('rpn_head.') for name in weights):
        return first_names(old)  # without an RPN, DETR and SOLO have such names too
    rows = [len(weights[name]) for name in CLASSES[:2] if name in weights]
    boxes = [v for k, v in weights.items() if k.startswith('roi_head.') and 'fc_cls.weight' in k]
    if any(count > 1 and count == len(box) for count in rows for box in boxes):
        return f'{rows[0]} rows of masks, as of boxes'
    return ''


def check_heads(weights: Mapping[str, Tensor], own: Optional[Mapping[str, Tensor]] = None) -> None:
    """Raise a ValueError for the heads of mmdet 1, unless those of the model look so too."""
    sign = _sign_of_mmdet_1(weights)
    if sign and not _sign_of_mmdet_1(own or {}):
        raise ValueError(
            f'its heads are those of mmdet 1, {sign}, whose background is the first class; run '
            'tools/model_converters/upgrade_model_version.py of mmdet 2 on it first'
        )


def unknown_backbone(names: Collection[str]) -> str:
    """Why a whole detector or segmentor is none that is converted."""
    inside = list(_backbone_of(names).values())
    marked = [name for name in inside if any(mark in name for mark in OPENMMLAB)]
    if marked:
        return (
            f"its names are those of OpenMMLab's own Swin or PVT, as {marked[0]}; take the config "
            'of mmdet or mmseg for it'
        )
    if not inside:
        return f'it is a {kind_of(names)}, and no config here has its heads'
    return f'the names of its backbone are {first_names(inside)}, those of no released {DENSE_TEXT}'


DENSE_TEXT = 'detector or segmentor; python -m mmlaplace list --weights shows all'


def fitting_dense(weights: Mapping[str, Tensor]) -> List[str]:
    """The released models with the heads and the backbone of a detector or segmentor.

    Args:
        weights: By the names of mmlaplace. The numbers of classes do not count.
    """
    kind = kind_of(weights)
    sizes = near(weights)
    given = {key for key in _backbone_of(weights) if key.startswith('stages.')}
    differences: Dict[str, int] = {}  # by name, how many tensors of the stages one of both lacks
    for name, model in DENSE.items():
        if model.classifier in sizes and _kind_of_config(model.config or name) == kind:
            own = {
                key
                for key in shapes_of(model.classifier)
                if key.startswith('stages.') and '.cls_' not in key
            }
            differences[name] = len(own ^ given)
    least = min(differences.values(), default=0)
    return [name for name, count in differences.items() if count == least]


def other_kind(weights: Mapping[str, Tensor], own: Collection[str]) -> str:
    """Why a file is for a model with other heads, or nothing.

    Args:
        weights: By the names of mmlaplace.
        own: The names of the model.
    """
    given, wanted = kind_of(weights), kind_of(own)
    if not given or not wanted or given == wanted or 'classifier' in (given, wanted):
        return ''
    mark = next((mark for mark, kind, _ in KINDS if kind == given), '')
    shown = next(name for name in weights if name.startswith(mark or OTHER_HEADS))
    configs = [DENSE[name].config or name for name in fitting_dense(weights)]
    take = f'take the config {" or ".join(dict.fromkeys(configs)) or "with its heads"}'
    return (
        f'it has {shown}, so it is a {given}, and this model is a {wanted}; {take}, or give it '
        "to the backbone's init_cfg"
    )
