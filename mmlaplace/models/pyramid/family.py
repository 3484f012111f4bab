"""A family: the backbones and the published models of a paper."""

from typing import Any, Dict, Mapping, NamedTuple

from ...checkpoints.dense import DenseModel
from ...checkpoints.published import PublishedModel


class Family(NamedTuple):
    """All that is here of a paper. The last lines of its file in ``models/backbones/`` make it.

    Its name is that of the file, and of its folders in ``configs/``.

    Attributes:
        backbones: Classes of backbones, each with the start of the names of its models. Before an
            arch it is the name of a backbone: ``{PVTv2: 'pvtv2'}`` has ``'pvtv2-b0'``. Default:
            none, for a paper of an attention alone.
        published: The authors' classifiers by name, with their names of parameters. Default: none.
        timm: By the start of names in timm, with ``_`` for ``-``, what timm is to know of these
            models, as in its default configs: ``paper_ids``, ``first_conv``, inside
            of the first patch embedding (default: ``'projection'``), and how the authors evaluate,
            ``crop_pct`` (default: 0.875) and ``crop_mode`` (default: ``'center'``). Of several
            starts of a name, the longer ones change the shorter ones. Without any, a backbone or
            published classifier is no model of timm. Default: none.
        dense: The detectors and segmentors that the authors released, by the name of the config
            here. Default: none.
        licence: That of the authors' repository, such as ``'MIT'``; ``'none'`` if it has none, and
            nothing if that is not known here. Models of other repositories have their own. All
            lists, pages and messages take it from here. Default: ''.
        weights_licence: That of the files, where the authors say it apart. Default: ''.

    Examples:
        >>> from mmlaplace.models import FAMILIES
        >>> {cls.__name__: start for cls, start in FAMILIES['pvt'].backbones.items()}
        {'PVT': 'pvt', 'PVTv2': 'pvtv2'}
        >>> FAMILIES['pvt'].published['pvt_v2_b0'].backbone
        {'type': 'PVTv2', 'arch': 'b0', 'stage_norms': True}
    """

    backbones: Mapping[Any, str] = {}
    published: Mapping[str, PublishedModel] = {}
    timm: Mapping[str, Dict[str, Any]] = {}
    dense: Mapping[str, DenseModel] = {}
    licence: str = ''
    weights_licence: str = ''
