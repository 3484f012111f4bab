"""The depth of a pyramid's parameters, and the outputs they belong to, from their names."""

import re
from typing import TYPE_CHECKING, Any, Collection, Dict, Sequence, Set, Tuple

if TYPE_CHECKING:
    from torch.nn import Module
else:  # a plain mixin of a module
    Module = object


class PyramidNames(Module):
    """Methods for training and loading that read names such as ``stages.0.`` and ``norm0.``."""

    depths: Sequence[int]
    num_stages: int
    out_indices: Sequence[int]
    cls_tokens: Sequence[int]
    stages: Any

    @property
    def num_extra_tokens(self) -> int:
        """How many tokens precede those of the last map, as mmpretrain's ``vis_cam.py`` asks."""
        return self.cls_tokens[max(self.out_indices)]

    def no_weight_decay(self) -> Set[str]:
        """Names of the parameters without weight decay, besides norms and biases.

        The modules inside return these names by their own ``no_weight_decay()``.
        :class:`mmlaplace.engine.NoDecayOptimWrapperConstructor` calls this method, and so does
        timm.
        """
        named = {
            f'{path}.{name}'
            for path, module in self.named_modules()
            if path and hasattr(module, 'no_weight_decay')
            for name in module.no_weight_decay()
        }
        return named & {name for name, _ in self.named_parameters()}

    def get_layer_depth(self, param_name: str, prefix: str = '') -> Tuple[int, int]:
        """The depth of a parameter, for layer-wise learning rates, and the number of depths.

        The stem has depth 0. Block j, counted through all stages, has depth j + 1. Later patch
        embeddings and positions have the depth of the block after them. The norm of a stage has the
        depth of its last block. Parameters after the last block, or outside ``prefix``, have the
        last depth.

        Args:
            param_name: As in the model's ``named_parameters()``.
            prefix: Prefix of the names of this backbone in the model, such as ``'backbone.'``.
                Default: ''.
        """
        num_layers = sum(self.depths) + 2
        inside = param_name.startswith(prefix)
        kind, *path = (param_name[len(prefix) :] if inside else '').split('.')
        if kind == 'stages':
            stage, block = int(path[0]), int(path[2]) if path[1] == 'blocks' else None
            if path[1] == 'norm':
                block = self.depths[stage] - 1
            if block is None and stage == 0:
                return 0, num_layers
            return sum(self.depths[:stage]) + (block or 0) + 1, num_layers
        norms = {f'norm{i}': sum(self.depths[: i + 1]) for i in range(self.num_stages - 1)}
        return norms.get(kind, num_layers - 1), num_layers

    def other_outputs(self, names: Collection[str]) -> Set[str]:
        """Names that a checkpoint has or lacks because its model had other ``out_indices``.

        The class token of a classifier is among them, if this backbone has none and returns several
        maps, as PVT's detectors do. So are norms of maps of another kind than the checkpoint's, as
        in SLAB's detectors.

        Args:
            names: The names in the checkpoint, without the prefix of this backbone.

        Raises:
            ValueError: If the names belong to another arch, whose stages have other numbers of
                blocks.
        """
        block = re.compile(r'stages\.(\d+)\.blocks\.(\d+)\.')
        depths: Dict[int, Set[str]] = {}
        for match in filter(None, map(block.match, names)):
            depths.setdefault(int(match[1]), set()).add(match[2])
        for i, depth in enumerate(self.depths[: len(self.stages)]):
            if len(depths.get(i, ())) not in (0, depth):
                raise ValueError(
                    f'this checkpoint is for another arch: its stage {i} has {len(depths[i])} '
                    f'blocks, and that of this {type(self).__name__} has {depth}; build the model '
                    'with the arch of the checkpoint'
                )
        behind = tuple(f'stages.{i}.' for i in depths if i >= len(self.stages))
        other = {name for name in names if name.startswith(behind)}
        if len(self.out_indices) > 1 and not any(self.cls_tokens):
            other |= {name for name in names if re.search(r'\.position\.cls_\w+$', name)}
        # A checkpoint with norms has that of its last stage. In one without, no norm is missing
        # because of other outputs.
        last_norm = f'norm{max(depths, default=0)}.'
        has_norms = any(name.startswith(last_norm) for name in names)
        for i in range(self.num_stages):
            saved = {name for name in names if name.startswith(f'norm{i}.')}
            norm = getattr(self, f'norm{i}', None)
            own = {f'norm{i}.{name}' for name in norm.state_dict()} if norm is not None else set()
            if not own or (has_norms and not own & saved):
                other |= saved | own
        return other
