"""Write what a module of the authors computes, in a file that says what it is of.

It needs PyTorch and NumPy alone, so it works where the authors' code does. A file in
``tests/data/golden/described/`` needs no line of a test: its tests read all that they need in it.
``tests/data/golden/README.md`` has its keys.
"""

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from torch import Tensor

DATA = Path(__file__).resolve().parent / 'data'
DESCRIBED = DATA / 'golden/described'
INPUTS = ('x', 'q', 'k', 'v')


class Source(NamedTuple):
    """Where a module is from.

    Attributes:
        module: The class of the authors and its options, in words.
        repository: Its owner and name.
        commit: The first digits.
    """

    module: str
    repository: str
    commit: str


def write_attention(
    path: Union[str, Path],
    module: torch.nn.Module,
    inputs: Mapping[str, Tensor],
    hw_shape: Tuple[int, int],
    source: Source,
    config: Mapping[str, Any],
    names: Optional[Mapping[str, str]] = None,
) -> None:
    """Run an attention of the authors, forward and backward, and write its file.

    Args:
        path: The file, in ``tests/data/golden/described/``.
        module: The authors' module, which takes ``inputs`` by their names.
        inputs: Tokens ``x`` ``(B, N, C)``, or ``q, k, v`` ``(B, heads, N, d)`` of a mixing rule.
        hw_shape: Height and width of the map of tokens.
        source: Where the module is from.
        config: The attention here, with its type, embed_dims, num_heads and options.
        names: For the start of a parameter's name there, its start here, where that differs.
    """
    given = {name: inputs[name].detach().requires_grad_() for name in INPUTS if name in inputs}
    out = module.eval()(**given)
    grad = torch.randn_like(out)
    grads = torch.autograd.grad(out, [*given.values()], grad)
    about = dict(source._asdict(), kind='attention', config=config, hw_shape=hw_shape)
    about['names'] = names or {}
    results = {f'out:grad_{name}': value for name, value in zip(given, grads)}
    arrays = {f'param:{name}': value for name, value in module.state_dict().items()}
    arrays.update({f'in:{name}': value for name, value in given.items()})
    _write(path, about, {**arrays, 'in:grad_y': grad, 'out:y': out, **results})


def write_classifier(
    path: Union[str, Path],
    module: torch.nn.Module,
    images: Tensor,
    source: Source,
    config: Mapping[str, Any],
    neck: Optional[Mapping[str, Any]] = None,
    published: Optional[Mapping[str, torch.nn.Module]] = None,
) -> None:
    """Run a small classifier of the authors, forward and backward, and write its file.

    Args:
        path: The file, in ``tests/data/golden/described/``.
        module: The authors' classifier. Its weights are rounded to fp16 first.
        images: ``(B, 3, H, W)``, which are rounded too.
        source: Where the module is from.
        config: The backbone here, with its type and arch.
        neck: The config of the neck here, if it has weights. Default: None.
        published: The authors' models of the released sizes, by their names in ``PUBLISHED``, which
            may be on PyTorch's meta device. The file has the names and shapes of their tensors.
    """
    module = module.eval()
    module.load_state_dict({k: _rounded(v) for k, v in module.state_dict().items()})
    images = _rounded(images).requires_grad_()
    logits = module(images)
    grad = torch.randn_like(logits)
    (of_images,) = torch.autograd.grad(logits, images, grad)
    about = dict(source._asdict(), kind='classifier', config=config, neck=neck)
    about['manifests'] = {name: manifest(each) for name, each in (published or {}).items()}
    arrays = {f'param:{k}': _half(v) for k, v in module.state_dict().items()}
    arrays.update({'in:x': _half(images), 'in:grad_y': grad})
    _write(path, about, {**arrays, 'out:logits': logits, 'out:grad_x': of_images})


def manifest(module: torch.nn.Module) -> Dict[str, Any]:
    """The number of parameters of a model, and the names and shapes of its tensors."""
    shapes = {name: list(value.shape) for name, value in module.state_dict().items()}
    count = sum(value.numel() for value in module.parameters())
    return dict(authors=dict(parameters=count, shapes=shapes))


def _half(value: Tensor) -> Tensor:
    return value.half() if value.is_floating_point() else value


def _rounded(value: Tensor) -> Tensor:
    return value.detach().half().float() if value.is_floating_point() else value.detach()


def _write(path: Union[str, Path], about: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> None:
    kept = {
        name: sampled(value).to(value.dtype) if name.startswith('out:') else value
        for name, value in arrays.items()
    }
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {name: value.detach().cpu().numpy() for name, value in kept.items()}
    np.savez_compressed(path, about=np.array(json.dumps(about)), **values)


def sampled(values: Tensor) -> Tensor:
    """Up to 512 of the values, as the files have them, and eight sums of all with random signs.

    An error anywhere changes the sums. They are divided by the root of the count, so that rounding
    errors are as small in them as in a value.
    """
    flat = values.detach().double().flatten()
    if len(flat) <= 512:
        return flat
    signs = np.random.RandomState(0).choice([-1.0, 1.0], (8, len(flat)))
    sums = torch.from_numpy(signs) @ flat / len(flat) ** 0.5
    return torch.cat([flat[:: -(-len(flat) // 512)], sums])


def about(path: Path) -> Dict[str, Any]:
    """What a described file says of itself."""
    with np.load(path) as content:
        return json.loads(str(content['about']))


def described(kind: str = '') -> Dict[str, Dict[str, Any]]:
    """What the described files say of themselves, by their names.

    Args:
        kind: ``'attention'`` or ``'classifier'``. Default: both.
    """
    found = {path.stem: about(path) for path in sorted(DESCRIBED.glob('*.npz'))}
    return {name: each for name, each in found.items() if kind in ('', each['kind'])}


@cache
def manifests() -> Dict[str, Dict[str, Any]]:
    """The manifests of released classifiers by their names, see ``tests/data/manifests``."""
    files = sorted((DATA / 'manifests').glob('*.json.gz'))
    found = {
        path.name.partition('.')[0]: json.loads(gzip.decompress(path.read_bytes()))
        for path in files
    }
    for each in described('classifier').values():
        found.update(each['manifests'])
    return found


def shapes_of(name: str, source: Sequence[str] = ('authors', 'timm')) -> Dict[str, list]:
    """The shapes of a released file by the names in it, of the first of these sources."""
    manifest = manifests()[name]
    return next(manifest[each]['shapes'] for each in source if each in manifest)
