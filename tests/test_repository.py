"""Files for the hosting site name what is there; sources are typed."""

import json
import re
import shutil
import subprocess

import pytest
import yaml
from conftest import ROOT, run_python

from mmlaplace.version import __version__

WORKFLOWS = sorted((ROOT / '.github/workflows').glob('*.yml'))
IMAGES = sorted((ROOT / 'docker').iterdir())
TESTS = ROOT / '.github/workflows/tests.yml'
PINNED = re.compile(r'\b(torch|torchvision|mypy|pillow|ruff)==(\d[\d.]*)')


def read(*names: str) -> str:
    return '\n'.join((ROOT / name).read_text() for name in names)


def test_the_files_for_the_site_parse():
    files = [*(ROOT / '.github').rglob('*.yml'), ROOT / 'CITATION.cff']
    assert all(isinstance(yaml.safe_load(file.read_text()), dict) for file in files)
    container = json.loads(read('.devcontainer/devcontainer.json'))
    assert container['remoteUser'] in read('docker/Dockerfile')


@pytest.mark.parametrize('path', [*WORKFLOWS, *IMAGES], ids=lambda path: path.name)
def test_workflows_and_images_name_files_that_exist_and_pinned_versions(path):
    text = path.read_text()
    named = re.findall(r'(?<![\w/.-])(?:(?:tools|\.dev_scripts|requirements)/\w+\.\w+)', text)
    assert all((ROOT / name).is_file() for name in named), named
    tested = read('requirements/onedl.txt', 'requirements/tests.txt', '.pre-commit-config.yaml')
    tested = re.sub(r'ruff-pre-commit\n +rev: v', 'ruff==', tested)
    assert set(PINNED.findall(text)) <= set(PINNED.findall(tested))


def test_the_tests_run_on_the_versions_that_the_project_names():
    jobs = yaml.safe_load(TESTS.read_text())['jobs']
    pythons = {python for job in jobs.values() for python in job['strategy']['matrix']['python']}
    assert pythons == set(re.findall(r'Python :: (3\.\d+)', read('pyproject.toml')))
    for row in jobs['fast']['strategy']['matrix']['include']:
        pins = dict(PINNED.findall(read(f'requirements/{row["set"]}.txt')))
        pinned = {'torch': row['torch'], 'torchvision': row['torchvision']} == pins
        assert pinned != row.get('newer', False), row


def test_the_versions_of_python_are_those_of_the_project_everywhere():
    project = read('pyproject.toml')
    tested = re.findall(r'Python :: (3\.\d+)', project)
    assert tested == sorted(tested, key=lambda version: int(version.split('.')[1]))
    least, newest = tested[0], tested[-1]
    assert f'requires-python = ">={least}"' in project
    assert f'python_version = "{least}"' in project  # what mypy checks for
    assert 'target-version' not in project  # ruff takes it from requires-python
    pages = [path for path in (ROOT / 'docs').rglob('*.md') if 'logs' not in path.parts]
    files = [ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', ROOT / 'tools/setup_env.sh', *pages]
    texts = [path.read_text() for path in files]
    named = [found for text in texts for found in re.findall(r'Python (3\.\d+ to 3\.\d+)', text)]
    assert len(named) >= 3 and set(named) == {f'{least} to {newest}'}


def test_the_citation_is_valid_and_has_the_version():
    assert yaml.safe_load(read('CITATION.cff'))['version'] == __version__
    if program := shutil.which('cffconvert'):
        subprocess.run([program, '--validate'], cwd=ROOT, check=True)


@pytest.mark.thorough
def test_mypy_finds_no_error(tmp_path):
    pytest.importorskip('mypy')
    result = run_python('-m', 'mypy', '--cache-dir', tmp_path)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr
