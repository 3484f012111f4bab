"""Write the compiled ops as a package that Hugging Face's library ``kernels`` loads.

    python .dev_scripts/make_hf_kernel.py FOLDER [LIBRARY ...]

A LIBRARY is a compiled ``_C.abi3.so``, or a wheel that has one; default: that of ``mmlaplace/``.
Each becomes a variant in ``FOLDER/build``, for CPUs or for GPUs too, which serves every torch from
2.10 on. Its ops have a namespace of their own, so a process can load it beside mmlaplace:

    ops = kernels.get_local_kernel(Path('FOLDER'), backend='cpu')
    ops.laplacian_kernel(q, k, bandwidth=4.0)

For other machines, take the libraries of wheels, which run on older systems too
(``.dev_scripts/build_wheels.sh``). A person with an account publishes the package by one command:

    hf upload --repo-type kernel ACCOUNT/mmlaplace-ops FOLDER . --revision v1

Beside ``build`` is the source for Hugging Face's ``kernel-builder``, which compiles all variants:
``build.toml``, ``flake.nix``, ``torch-ext`` and ``ops``. It was not built with kernel-builder here.
"""

import base64
import hashlib
import json
import re
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Dict

from mmlaplace import ops
from mmlaplace.commands.command_line import ToolParser
from mmlaplace.ops._native import build_info
from mmlaplace.ops._sources import library_sources

ROOT = Path(__file__).resolve().parents[1]
NAME, VERSION = 'mmlaplace-ops', 1  # a change that breaks callers needs another version
LIBRARY = 'mmlaplace/_C.abi3.so'
SLOT = re.compile(rb'(mmlaplace built for namespace=)[\w.]+\0+')  # see tensor_stable.h
SYSTEMS = {b'\x7fELF': 'linux', b'\xcf\xfa\xed\xfe': 'darwin'}  # by the start of a library
OF_LAYERS = (
    '_sources',
    'gelu_ffn',
    'pola_streams',
    'signed_powers',
    'subnormals',
    'table',
)  # not public
FIRST_LINES = '---\nlibrary_name: kernels\n'  # of the README of a folder that was made here
# Without mmengine there is no log of a run.
LOG = 'from mmengine.logging import print_log\n', 'from ._log import print_log\n'
# build_info.cpp becomes the binding by these changes: the extension's name is that of the ops.
BINDING = (
    ('#include "tensor.h"', '#include "../ops/common/tensor.h"\n#include "registration.h"'),
    (
        'MMLAPLACE_NAMESPACE(mmlaplace);',
        'extern "C" __attribute__((used, visibility("hidden"))) const char '
        'mmlaplace_build_namespace[128] =\n'
        '    MMLAPLACE_NAMESPACE_TEXT STRINGIFY(TORCH_EXTENSION_NAME);\n\n'
        'REGISTER_EXTENSION(TORCH_EXTENSION_NAME)',
    ),
)


def template(name: str) -> str:
    """A file of .dev_scripts/hf_kernel."""
    return Path(__file__).with_name('hf_kernel').joinpath(name).read_text(encoding='utf-8')


def python_files() -> Dict[str, str]:
    """The Python files of the ops by their paths in a variant."""
    files = {
        f'ops/{path.name}': path.read_text(encoding='utf-8').replace(*LOG)
        for path in sorted((ROOT / 'mmlaplace/ops').glob('*.py'))
        if path.stem not in OF_LAYERS
    }
    init = f'"""The ops of mmlaplace."""\n\nfrom .ops import *\n\n__all__ = {ops.__all__}\n'
    return {**files, 'ops/_log.py': template('_log.py'), '__init__.py': init}


def write_variant(library: Path, build: Path) -> Path:
    """Write the variant of a library into the folder of variants. Returns its folder."""
    info = build_info(library)
    content = library.read_bytes()
    files = python_files()
    slots = list(SLOT.finditer(content))
    if 'torch_from' not in info or len(slots) != 1 or content[:4] not in SYSTEMS:
        sys.exit(
            f'{library} is no library that serves torch 2.10 and later; compile the ops of today '
            "with such a torch: 'python setup.py build_ext --inplace'"
        )
    system = f'{info["machine"]}-{SYSTEMS[content[:4]]}'
    backend = 'cpu'
    archs = {}
    if 'cuda' in info:
        backend = f'cu{info["cuda"].replace(".", "")}'
        numbers = [int(arch) // 10 for arch in info['arches'].split(',')]
        names = [f'{number // 10}.{number % 10}' for number in numbers]
        archs = {'archs': [*names[:-1], f'{names[-1]}+PTX']}  # as setup.py compiles
    abi = info['torch_from'].replace('.', '')
    folder = build / f'torch-stable-abi{abi}-{backend}-{system}'

    # The namespace of the ops must be the id, and that of no other build.
    state = hashlib.sha256(content + ''.join(files.values()).encode()).hexdigest()[:10]
    kind = 'cuda' if archs else 'cpu'
    namespace = f'_{NAME.replace("-", "_")}_{kind}_{state}'
    slot = slots[0]
    text = (slot[1] + namespace.encode()).ljust(len(slot[0]), b'\0')
    content = content[: slot.start()] + text + content[slot.end() :]
    shutil.rmtree(folder, ignore_errors=True)
    written = {**{path: text.encode() for path, text in files.items()}, Path(LIBRARY).name: content}
    write_files(folder, written)
    digests = {
        path: base64.b64encode(hashlib.sha256(data).digest()).decode()
        for path, data in sorted(written.items())
    }
    metadata = {
        'name': NAME,
        'id': namespace,
        'version': VERSION,
        'license': 'Apache-2.0',
        'python-depends': [],
        'kernel-depends': [],
        'backend': {'type': kind, **archs},
        'digest': {'algorithm': 'sha256', 'files': digests},
    }
    (folder / 'metadata.json').write_text(json.dumps(metadata, indent=2) + '\n', encoding='utf-8')
    return folder


def write_files(folder: Path, contents: Dict[str, bytes]) -> None:
    """Write files by their paths in a folder."""
    for path, content in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def write_source(folder: Path) -> None:
    """Write the source from which kernel-builder compiles the package."""
    package = NAME.replace('-', '_')
    texts = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding='utf-8')
        for path in library_sources(ROOT / 'ops')
    }
    text = texts.pop('ops/common/build_info.cpp')
    cpu = [path for path in texts if not path.endswith('.cu')]
    for old, new in BINDING:
        text = text.replace(old, new)
    lists = {'cpu': json.dumps(cpu, indent=2), 'cuda': json.dumps([*texts], indent=2)}
    texts['torch-ext/torch_binding.cpp'] = text
    texts['flake.nix'] = template('flake.nix')
    texts['build.toml'] = template('build.toml').format(name=NAME, version=VERSION, **lists)
    for path, content in python_files().items():
        # Its library is named like the extension.
        own = content.replace("glob('_C*')", f"glob('_{package}*')")
        texts[f'torch-ext/{package}/{path}'] = own
    for old in ('ops', 'torch-ext'):
        shutil.rmtree(folder / old, ignore_errors=True)
    write_files(folder, {path: content.encode() for path, content in texts.items()})


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('folder', type=Path)
    parser.add_argument('libraries', nargs='*', type=Path, default=[ROOT / LIBRARY])
    args = parser.parse_args()
    build, card_file = args.folder / 'build', args.folder / 'README.md'
    made_here = card_file.is_file() and card_file.read_text('utf-8').startswith(FIRST_LINES)
    if args.folder.exists() and any(args.folder.iterdir()) and not made_here:
        sys.exit(f'{args.folder} is not empty and no kernel package; give the name of a new folder')
    for given in args.libraries:
        wheel = zipfile.is_zipfile(given)
        there = LIBRARY in zipfile.ZipFile(given).namelist() if wheel else given.is_file()
        if not there:
            sys.exit(f"no library in {given}; 'python setup.py build_ext --inplace' makes it")
        with tempfile.TemporaryDirectory() as extracted:
            library = zipfile.ZipFile(given).extract(LIBRARY, extracted) if wheel else given
            print(write_variant(Path(library), build))
    write_source(args.folder)
    rows = [f'- `{name}`: {getattr(ops, name).__doc__.splitlines()[0]}' for name in ops.__all__]
    card = template('README.md').format(name=NAME, version=VERSION, rows='\n'.join(rows))
    card_file.write_text(card, encoding='utf-8')


if __name__ == '__main__':
    main()
