"""Weights by their names on the Hugging Face hub, and in timm."""

import re
from difflib import get_close_matches
from typing import Any, Callable, Dict
from urllib.parse import unquote

import torch
from torch import Tensor

from ._plain_load import UnsafeCheckpointError

HUB = 'hf://'
TIMM = 'timm://'
# Where hf://OWNER/NAME has its weights: the first that is there, as in timm.
USUAL_FILES = (
    'model.safetensors',
    'pytorch_model.bin',
    'pytorch_model.pth',
    'model.pth',
    'open_clip_model.safetensors',
    'open_clip_pytorch_model.bin',
)
ADDRESS = re.compile(f'{HUB}([^/@]+/[^/@]+)(?:@([^/@]+))?(?:/(.+))?')


def file_from_hub(address: str) -> str:
    """The path of a file of the Hugging Face hub in huggingface_hub's cache, downloaded if needed.

    Args:
        address: ``hf://OWNER/NAME``, ``hf://OWNER/NAME@REVISION``, or either with ``/FILE``. In a
            revision ``%2F`` stands for a slash. Without a file the first of :data:`USUAL_FILES` is
            taken. A file gets its name in the cache when it is whole.

    Raises:
        ValueError: If it is no such address.
        ImportError: If huggingface_hub is not installed.
        FileNotFoundError: If the hub has no such file, or it cannot be downloaded.
    """
    parts = ADDRESS.fullmatch(address)
    if parts is None:
        raise ValueError(
            f'{address!r} names no repository of the Hugging Face hub; write hf://OWNER/NAME, '
            'hf://OWNER/NAME@REVISION or hf://OWNER/NAME/FILE'
        )
    try:
        from huggingface_hub import errors, hf_hub_download
    except ImportError as error:
        raise ImportError(
            f'{address} is on the Hugging Face hub: pip install huggingface_hub'
        ) from error
    repository, revision, file = parts.groups()
    revision = revision and unquote(revision)
    unreachable = None
    for name in [file] if file else USUAL_FILES:
        try:  # after a failure of the network the cache alone is asked
            return hf_hub_download(
                repository, name, revision=revision, local_files_only=unreachable is not None
            )
        except errors.LocalEntryNotFoundError as error:
            unreachable = unreachable or error
        except errors.EntryNotFoundError:
            continue
        except errors.RevisionNotFoundError as error:
            raise FileNotFoundError(
                f'{address}: {repository} has no revision {revision!r}; give a branch, tag or '
                'commit of its page'
            ) from error
        except errors.RepositoryNotFoundError as error:
            raise FileNotFoundError(
                f'{address}: the Hugging Face hub shows no repository {repository!r}; check the '
                'name, or if it is private or gated, log in with: hf auth login'
            ) from error
        except errors.HFValidationError as error:
            raise ValueError(f'{address}: {str(error).rstrip(".")}; check the name') from error
        except Exception as error:  # of requests or of httpx, by the version of huggingface_hub
            raise _unreachable(address, error) from error
    if unreachable:
        raise _unreachable(address, unreachable) from unreachable
    if file:
        raise FileNotFoundError(f'{address}: {repository} has no file {file!r}; check its page')
    raise FileNotFoundError(
        f'{address}: {repository} has none of the files {", ".join(USUAL_FILES)}; if its weights '
        f'have another name, write hf://{repository}/FILE'
    )


def _unreachable(address: str, error: Exception) -> FileNotFoundError:
    reason = (str(error.__cause__ or error).splitlines() or [''])[0].rstrip('.')
    return FileNotFoundError(
        f'{address} cannot be downloaded ({type(error).__name__}: {reason}), and the cache has no '
        'copy; check the network and HF_HUB_OFFLINE, or give the path of a file'
    )


def weights_of_timm(address: str, read: Callable[[str], Dict[str, Tensor]]) -> Dict[str, Tensor]:
    """The state dict of ``timm.create_model(NAME, pretrained=True)``, for the address timm://NAME.

    Args:
        address: The address. As in timm, a name may end with a tag.
        read: Reads the state dict of the model's file safely, by its path or address. After that
            timm changes its names to those in the model.

    Raises:
        ImportError: If timm is not installed.
        ValueError: If timm has no pretrained model of this name, or its weights do not fit.
        Exception: As ``read`` does. The message begins with the address.
    """
    name = address[len(TIMM) :]
    try:
        import timm
    except ImportError as error:
        raise ImportError(f'{address} is in timm: pip install timm') from error
    if not timm.is_model_pretrained(name):
        near = get_close_matches(name, timm.list_models(pretrained=True), cutoff=0.5)
        raise ValueError(
            f'{address!r}: timm {timm.__version__} has no weights of a model {name!r}; '
            + (f'similar names are {", ".join(near)}; ' if near else '')
            + 'timm.list_pretrained() has all names'
        )
    cfg: Any = timm.get_pretrained_cfg(name)  # not None, as it has weights
    place = cfg.url or cfg.file
    if cfg.hf_hub_id:  # timm prefers it too
        place = HUB + '/'.join(filter(None, (cfg.hf_hub_id, cfg.hf_hub_filename)))
    try:
        weights = read(place)
    except (ImportError, OSError, ValueError, UnsafeCheckpointError) as error:
        raise type(error)(f'{address}: {error}') from error
    try:
        with torch.random.fork_rng(devices=[]):  # the model is initialised before it is loaded
            model = timm.create_model(
                name, pretrained=True, pretrained_cfg_overlay=dict(state_dict=weights)
            )
    except RuntimeError as error:
        raise ValueError(
            f'{address}: the weights of {place} do not fit the model of timm {timm.__version__} '
            f'({error}); install another timm'
        ) from error
    return model.state_dict()
