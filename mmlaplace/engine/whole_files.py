"""Whole files: checkpoints that survive a kill or a full disk, errors that name an image."""

import errno
import os
from io import BytesIO
from os import PathLike
from typing import Any, Callable, Dict, List, Tuple, Union

from mmengine.dist import is_main_process
from mmengine.fileio import LocalBackend, get, register_backend
from mmengine.hooks import CheckpointHook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..checkpoints.own_names import check_dense
from ..writing import remove_partial, write_whole

# Suffixes of formats that Pillow reads in all their forms. It knows TIFFs of few channels only, and
# neither HDR nor PFM, which mmcv's loader reads.
KNOWN_WHOLLY = ('.bmp', '.gif', '.jpeg', '.jpg', '.png', '.webp')
# How files of these formats begin, whatever their names are.
BEGINNINGS = (b'\x89PNG', b'\xff\xd8\xff', b'GIF8')


class DamagedImageError(OSError):
    """A file is no whole image. The message names it, and says what to do."""


@register_backend('whole')
class WholeFileBackend(LocalBackend):
    """A file backend, ``backend_args=dict(backend='whole')``, that gives a whole file or an error.

    It writes to local paths alone. A file gets its name when all of it is on the disk. Until then
    the old file keeps the name. It reads from everywhere that mmengine.fileio reads. An error names
    a file that is no image, and a damaged PNG. mmcv's LoadImageFromFile names truncated JPEGs.
    """

    def put(self, obj: bytes, filepath: Union[str, PathLike]) -> None:
        """Write a file, or replace it at once.

        Raises:
            OSError: If writing failed, as on a full disk. No part of the new file is left.
        """
        try:
            write_whole(filepath, obj)
        except OSError as error:
            reason = os.strerror(error.errno or errno.EIO)
            raise OSError(
                error.errno,
                f'{filepath} could not be saved, {len(obj) / 2**20:.1f} MiB: {reason}. Earlier '
                'files are intact. Free space on that disk, or fix the error, and then continue '
                'with --resume',
            ) from error

    def get(self, filepath: Union[str, PathLike]) -> bytes:
        """Read an image's file.

        A format that Pillow does not know is left to mmcv's loader.

        Raises:
            OSError: If it cannot be read.
            DamagedImageError: If it is no image by its name, or is a damaged PNG.
        """
        content = get(filepath)  # from the backend for its prefix
        check_image(content, filepath)
        return content


def check_image(file: Union[bytes, str, PathLike], name: Union[str, PathLike]) -> None:
    """Raise a :class:`DamagedImageError` for a file that is no image, or is a damaged PNG.

    Args:
        file: Its content. Of a path, only the header is read.
        name: Its name for the message.
    """
    from PIL import Image  # comes with every toolbox

    whole = isinstance(file, bytes)
    try:
        with Image.open(BytesIO(file) if isinstance(file, bytes) else file) as image:
            if whole:
                image.verify()  # of a PNG all checksums, of other formats little
    except Image.DecompressionBombError:
        pass  # more pixels than Pillow opens, which mmcv's loader may still read
    except Exception as error:  # which ones is not documented; SyntaxError is among them
        beginning = file[:16] if isinstance(file, bytes) else _beginning_of(file)
        if _is_known(name, beginning):
            raise DamagedImageError(
                f'{name} is not a complete image'
                + (f' ({len(file)} bytes)' if isinstance(file, bytes) else '')
                + '; copy or download it again, or remove it from the data set'
            ) from error


def _beginning_of(path: Union[str, PathLike]) -> bytes:
    with open(path, 'rb') as file:
        return file.read(16)


def _is_known(name: Union[str, PathLike], beginning: bytes) -> bool:
    """Whether Pillow would know a file if it were whole, by its name or its first bytes."""
    suffix = os.path.splitext(name)[1].lower()
    return not beginning or suffix in KNOWN_WHOLLY or beginning.startswith(BEGINNINGS)


class _RemovesLater:
    """A file backend that only notes the files to remove."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.outdated: List[Tuple[Callable[[str], None], str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def remove(self, path: str) -> None:
        self.outdated.append((self.backend.remove, path))

    def rmtree(self, path: str) -> None:
        self.outdated.append((self.backend.rmtree, path))


@HOOKS.register_module()
class AtomicCheckpointHook(CheckpointHook):
    """mmengine's CheckpointHook, but ``last_checkpoint`` names a whole file at any moment.

    mmengine writes into the file itself. It removes an outdated checkpoint before it writes the new
    one. After the best evaluation so far it writes the last checkpoint a second time. A run that is
    killed, or finds the disk full, in one of these moments cannot be resumed.

    Here a checkpoint gets its name when it is whole, and an outdated one is removed last. So the
    disk needs room for one more than ``max_keep_ckpts``, and for a second best. File systems that
    are not local are not covered. Neither are FSDP and DeepSpeed, which write by themselves.
    """

    file_backend: Any  # mmengine gives it no type

    def after_load_checkpoint(self, runner: Runner, checkpoint: Dict) -> None:
        """Refuse a detector or segmentor with other heads, which mmengine would only log.

        Raises:
            ValueError: With the heads in the file, those of the model, and the configs that fit.
        """
        own = {**dict(runner.model.named_parameters()), **dict(runner.model.named_buffers())}
        check_dense(checkpoint.get('state_dict', checkpoint), own)

    def before_train(self, runner: Runner) -> None:
        super().before_train(runner)
        if self.file_client_args is None and isinstance(self.file_backend, LocalBackend):
            self.backend_args = dict(backend='whole')
            if is_main_process():
                remove_partial(self.out_dir, '*.pth')

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: Dict) -> None:
        """Do the same as mmengine's method, in another order."""
        outdated = []
        if self.max_keep_ckpts > 0 and step not in self.keep_ckpt_ids:
            if len(self.keep_ckpt_ids) == self.max_keep_ckpts:
                outdated.append(self.keep_ckpt_ids.popleft())
            self.keep_ckpt_ids.append(step)
            runner.message_hub.update_info('keep_ckpt_ids', list(self.keep_ckpt_ids))
        name = self.filename_tmpl.format(step)
        self.last_ckpt = self.file_backend.join_path(self.out_dir, name)
        runner.message_hub.update_info('last_ckpt', self.last_ckpt)
        runner.save_checkpoint(
            self.out_dir,
            name,
            self.file_client_args,
            save_optimizer=self.save_optimizer,
            save_param_scheduler=self.save_param_scheduler,
            meta=meta,
            by_epoch=self.by_epoch,
            backend_args=self.backend_args,
            **self.args,
        )
        if not is_main_process():
            return
        last_checkpoint = os.path.join(runner.work_dir, 'last_checkpoint')
        WholeFileBackend().put(self.last_ckpt.encode(), last_checkpoint)
        for step in outdated:
            path = self.file_backend.join_path(self.out_dir, self.filename_tmpl.format(step))
            if self.file_backend.isdir(path):  # DeepSpeed's
                self.file_backend.rmtree(path)
            elif self.file_backend.isfile(path):
                self.file_backend.remove(path)

    def _save_best_checkpoint(self, runner: Runner, metrics: Dict) -> None:
        """Do the same as mmengine's method, and remove the old best when the new one is whole."""
        self.file_backend = later = _RemovesLater(self.file_backend)
        try:
            super()._save_best_checkpoint(runner, metrics)
        finally:
            self.file_backend = later.backend
        best = {getattr(self, 'best_ckpt_path', None)}
        best.update(getattr(self, 'best_ckpt_path_dict', {}).values())
        for remove, path in later.outdated:
            if path not in best:  # evaluated twice in an epoch, the new one has the old one's name
                remove(path)
