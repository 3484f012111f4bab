"""Everything static is in pyproject.toml; this adds the files mim looks for."""

import os
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
MIM_FILES = ('configs', 'tools', 'model-index.yml')


class BuildWithMimFiles(build_py):
    """Put configs, tools and the model index inside the package, under ``.mim``.

    That is where mim looks. A wheel gets copies; an editable install gets links, so that edits
    show.
    """

    def run(self) -> None:
        super().run()
        base = ROOT if self.editable_mode else Path(self.build_lib)
        mim = base / 'mmlaplace' / '.mim'
        shutil.rmtree(mim, ignore_errors=True)
        mim.mkdir(parents=True)
        for name in MIM_FILES:
            source, target = ROOT / name, mim / name
            if self.editable_mode:
                target.symlink_to(os.path.relpath(source, mim))
            elif source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns('__pycache__'))
            else:
                shutil.copy2(source, target)


setup(cmdclass={'build_py': BuildWithMimFiles})
