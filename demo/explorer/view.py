"""What is looked at, which the address of the page holds."""

from dataclasses import dataclass, fields
from typing import Dict, List, Tuple
from urllib.parse import parse_qs, urlencode

SIZES = (64, 96, 128, 160, 224, 320)
SCALES = ('own', 'shared')
LAST = -1  # block


@dataclass(frozen=True)
class View:
    """The state of the page.

    Attributes:
        image: Key of an image.
        size: Pixels of its longer side as the models see it.
        x, y: The query, as shares of width and height.
        trained: Names of models with checkpoints.
        attention, host: Each attention on each host, with random weights.
        stage, block, head: From 0; block -1 is the last.
        matrix: Which matrices are drawn of attentions that have several. The first if none is.
        scale: Of the colours: each panel's own, or one for all.
    """

    image: str = 'astronaut'
    size: int = 224
    x: float = 0.5
    y: float = 0.5
    trained: Tuple[str, ...] = ()
    attention: Tuple[str, ...] = ()
    host: Tuple[str, ...] = ('laplacianformer',)
    stage: int = 1
    block: int = LAST
    head: int = 0
    matrix: Tuple[str, ...] = ()
    scale: str = 'own'

    def __post_init__(self) -> None:
        for name in ('x', 'y'):
            value = getattr(self, name)
            side = 'width' if name == 'x' else 'height'
            if not 0 <= value < 1:
                raise ValueError(
                    f'the query {name}={value:g} is outside of the image; click on the image, or '
                    f'give {name} as a fraction of its {side}, at least 0 and less than 1'
                )
        if self.size not in SIZES:
            raise ValueError(f'size={self.size} is not offered; choose one of {SIZES}')
        if self.scale not in SCALES:
            raise ValueError(f'scale={self.scale} is unknown; choose one of {SCALES}')
        for name, least in (('stage', 0), ('block', LAST), ('head', 0)):
            if getattr(self, name) < least:
                raise ValueError(
                    f'{name}={getattr(self, name)} is too small; choose {least} or more'
                )

    def address(self) -> str:
        """The view as the query of an address, ``'?image=…'``."""
        pairs = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ('x', 'y'):  # rounded, but not to 1, which is outside
            pairs[name] = f'{min(getattr(self, name), 0.9999):.4f}'.rstrip('0') or '0'
        return '?' + urlencode(pairs, doseq=True)

    @classmethod
    def from_address(cls, query: str, default: 'View') -> 'View':
        """The view of an address; what it does not name is as in the default.

        Raises:
            ValueError: For a value that is none; quotes it.
        """
        given: Dict[str, List[str]] = parse_qs(query.lstrip('?'), keep_blank_values=True)
        values = {}
        names_models = not given.keys().isdisjoint({'trained', 'attention'})
        for field in fields(cls):
            before = getattr(default, field.name)
            if field.name not in given:
                # A list without entries is not in the address.
                emptied = names_models and isinstance(before, tuple) and field.name != 'host'
                values[field.name] = () if emptied else before
            elif isinstance(before, tuple):
                # Each once: of lists as long as an address may be, there are millions of pairs.
                names = [name for name in given[field.name] if name]
                values[field.name] = tuple(dict.fromkeys(names))
            else:
                text = given[field.name][-1]
                try:
                    values[field.name] = type(before)(text)
                except ValueError:
                    raise ValueError(
                        f'{field.name}={text} in the address is not a number; correct it, or open '
                        'the page without what follows the question mark'
                    ) from None
        return cls(**values)
