"""The table of the toolboxes agrees with what the repository has of each task."""

import re
from importlib.util import find_spec

import pytest
from conftest import ROOT

from mmlaplace import toolboxes
from mmlaplace.dependencies import TESTED
from mmlaplace.model_zoo import read_models
from mmlaplace.toolboxes import PACKAGES, TOOLBOXES, require_toolbox, toolbox_script


def test_the_tasks_are_those_of_the_configs():
    folders = {path.name for path in (ROOT / 'configs').iterdir() if path.is_dir()}
    # The papers' tables are no configs, and sequences have one encoder and no toolbox of their own.
    folders -= {'_base_', 'lra', 'tables'}
    assert set(TOOLBOXES) == folders == {model.task for model in read_models()}


def test_the_newest_tested_versions_are_those_of_the_requirements():
    texts = [(ROOT / f'requirements/{name}.txt').read_text() for name in ('openmmlab', 'onedl')]
    pinned = {name: v for text in texts for name, v in re.findall(r'^([\w-]+)==(\S+)$', text, re.M)}
    for toolbox in TOOLBOXES.values():
        assert {name: newest for name, (_, newest) in toolbox.tested.items()} == {
            name: pinned[name] for name in toolbox.tested
        }
        assert TESTED[toolbox.package] is toolbox.tested


def test_the_published_figures_have_the_names_of_the_table():
    costs = {'Parameters', 'MACs'}
    for model in read_models():
        assert set(model.metadata['Published']) - costs <= set(TOOLBOXES[model.task].metrics)


@pytest.mark.parametrize('package', PACKAGES)
def test_every_toolbox_brings_its_scripts(package):
    assert toolbox_script(package, 'train.py').is_file()
    with pytest.raises(FileNotFoundError, match=f'{package} is installed without.*no none.py in'):
        toolbox_script(package, 'none.py')


def test_a_toolbox_that_is_missing_is_named_with_the_command():
    with pytest.raises(ModuleNotFoundError, match='needs mmother, .* bash tools/setup_env.sh'):
        require_toolbox('mmother')


@pytest.mark.parametrize('absent', ['mmcv', 'mmcv._ext'])
def test_toolboxes_that_need_mmcvs_ops_say_so_with_the_command(monkeypatch, absent):
    monkeypatch.setattr(
        toolboxes, 'find_spec', lambda name: None if name == absent else find_spec(name)
    )
    for toolbox in TOOLBOXES.values():
        if not toolbox.needs_mmcv_ops:
            require_toolbox(toolbox.package)
            continue
        message = f'{toolbox.package} needs mmcv with its compiled ops.*bash tools/setup_env.sh'
        with pytest.raises(ImportError, match=message):
            toolbox_script(toolbox.package, 'train.py')
