"""A base whose modules load a checkpoint whole, or not at all."""

from os import PathLike
from typing import Any

from mmengine.model import BaseModule, ModuleDict, PretrainedInit, update_init_info

from .loading import load_weights
from .own_names import rename_maps
from .resizing import resize_weights

PRETRAINED_KEYS = (
    'checkpoint',
    'prefix',
    'min_matched',
    'map_location',
    'skip',
    'key',
    'adapt_input_conv',
)


class StrictLoading(BaseModule):
    """A base for modules of mmengine, before other classes of modules in the bases.

    ``init_cfg=dict(type='Pretrained', checkpoint='CLASSIFIER.pth')`` loads by
    :func:`mmlaplace.engine.load_weights`, which refuses a checkpoint that does not fit. However
    weights are loaded, tensors whose shape depends on the image size are resized, and a backbone
    takes the names of its authors' detectors.
    """

    init_cfg: Any  # mmengine gives these two no type
    is_init: Any

    def init_weights(self) -> None:
        """As in mmengine, but ``type='Pretrained'`` in ``init_cfg`` loads by :func:`load_weights`.

        Its further keys are the arguments of that function. It is applied after all other entries.

        Raises:
            ValueError: For another key, no checkpoint, or one that does not fit.
        """
        init_cfgs = [self.init_cfg] if isinstance(self.init_cfg, dict) else self.init_cfg or []
        # Of a path, each is a letter.
        if not all(isinstance(cfg, dict) and 'type' in cfg for cfg in init_cfgs):
            raise ValueError(
                "init_cfg must be a dict such as dict(type='Pretrained', checkpoint=...), or a "
                f'list of these, got {self.init_cfg!r}'
            )
        pretrained = [cfg for cfg in init_cfgs if cfg['type'] in ('Pretrained', PretrainedInit)]
        if self.is_init or not pretrained:
            super().init_weights()
            return
        if not hasattr(self, '_params_init_info'):
            # mmengine records what initialised a parameter until the outermost call ends. This must
            # not be that call, or the record would miss the weights, which are loaded last.
            ModuleDict(dict(backbone=self)).init_weights()
            return
        settings = [{k: v for k, v in cfg.items() if k != 'type'} for cfg in pretrained]
        for cfg in settings:
            unknown = [key for key in cfg if key not in PRETRAINED_KEYS]
            if unknown or not isinstance(cfg.get('checkpoint'), (str, PathLike)):
                raise ValueError(
                    f"an init_cfg of type='Pretrained' has a checkpoint and the keys "
                    f'{PRETRAINED_KEYS}, got {cfg}; unknown: {unknown}. The checkpoint is a path '
                    'or address; random weights need no such init_cfg'
                )
        given = self.init_cfg
        self.init_cfg = [cfg for cfg in init_cfgs if cfg not in pretrained]
        try:
            super().init_weights()
        finally:
            self.init_cfg = given
        self.is_init = False  # as long as the loading can fail
        for cfg in settings:
            load_weights(self, **cfg)
            update_init_info(self, f'Loaded from {cfg["checkpoint"]}')
        self.is_init = True

    def _load_from_state_dict(
        self, state_dict: dict, prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Rename tensors of authors' detectors, and resize those that depend on the image size.

        A module that owns a tensor of such a shape defines ``resize_weight(name, value)``. PyTorch
        raises an error for a tensor that does not fit. mmengine may only log it.

        Raises:
            ValueError: For tables of other windows, and authors' backbones that do not fit.
        """
        if hasattr(self, 'other_outputs'):  # a backbone
            rename_maps(self, state_dict, prefix)
        resize_weights(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
