"""The README is short, its code runs, and what the documents tell users to type exists.

tests/models/test_toolboxes.py trains by the configs of the README and of its page. Its quick start
is what CI and a new user run.
"""

import inspect
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from conftest import ROOT, registered
from mmengine.registry import MODELS

from mmlaplace.models import BaseAttention
from mmlaplace.models.backbones import hosts

README = ROOT / 'README.md'
START = ROOT / 'docs/get_started.md'
DOCUMENTS = sorted(
    path
    for pattern in ('*.md', 'docs/**/*.md', 'configs/**/*.md', 'ops/*.md')
    for path in ROOT.glob(pattern)
)
# They hand their options on to the toolbox's script, or to pytest.
PASS_ON = ('train.py', 'test.py', 'dist_train.sh', 'dist_test.sh', 'slurm_train.sh',
           'check_upstream.sh', 'run_tests.sh')  # fmt: skip
# Programs of others; of the shell's own, only what sets something up.
OTHERS = (
    'pip',
    'pre-commit',
    'mim',
    'git',
    'cd',
    'source',
    'export',
    'docker',
    'apt-get',
    'cp',
    'ls',
    'curl',
    'tensorboard',
    'aoti_classify',
)


# Scripts of ours; those named test_… are in tests/tools, and one is mmsegmentation's.
SCRIPT = re.compile(
    r'(?<![\w/.-])((?:tools|\.dev_scripts)/(?!test_|dataset_converters/cityscapes)[\w/]+\.(?:py|sh))'
)


def code_blocks(document: Path, language: str) -> list:
    return re.findall(rf'```{language}\n(.*?)```', document.read_text(), flags=re.DOTALL)


def commands(document: Path) -> list:
    """Each command of the bash blocks as words, without comments and variables in front."""
    found = []
    for block in code_blocks(document, 'bash'):
        for line in block.replace('\\\n', ' ').splitlines():
            for command in re.split(r'&&|;', line.split(' #')[0]):
                words = shlex.split(command, comments=True)
                while words and re.match(r'\w+=', words[0]):
                    words = words[1:]
                if words:
                    found.append(words)
    return found


@pytest.mark.parametrize('document', DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_name_scripts_options_and_configs_that_exist(document):
    for words in commands(document):
        program = Path(words[0]).name
        if program not in ('python', 'python3', 'bash'):
            assert program in OTHERS, words
            continue
        if words[1] == '-m':
            assert words[2].split('.')[0] in ('mmlaplace', 'pytest', 'venv', 'pip'), words
            continue
        if words[1] == '-c' or words[1].startswith(('MMDETECTION', 'setup.py')):
            continue
        script = ROOT / words[1]
        assert script.is_file(), words
        options = {word.split('=')[0] for word in words[2:] if word.startswith('--')}
        if script.name not in PASS_ON:
            # Options may be added by a module of the library that the script imports.
            imported = re.findall(r'^from (mmlaplace\.[\w.]+)', script.read_text(), re.MULTILINE)
            paths = (ROOT / f'{name.replace(".", "/")}.py' for name in imported)
            files = [script, *(path for path in paths if path.exists())]
            files += (ROOT / 'mmlaplace/commands').glob('*.py')
            text = ''.join(file.read_text() for file in files)
            assert not [option for option in options if option not in text], words
        for word in words[2:]:
            if word.startswith('configs/') and not set('*{…') & set(word):
                assert (ROOT / word).exists(), words


def test_scripts_that_are_mentioned_exist():
    listed = subprocess.run(
        ['git', 'ls-files', '--cached', '--others', '--exclude-standard'],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    texts = ('.md', '.py', '.sh', '.toml', '.txt', '.yml', '.cpp', '.h', '.cuh', '.in', 'run')
    for name in listed:
        if not name.endswith(texts) or not (ROOT / name).is_file():
            continue
        for script in SCRIPT.findall((ROOT / name).read_text()):
            assert (ROOT / script).is_file(), f'{name}: {script}'


def test_the_readme_is_short_and_its_parts_are_in_order():
    text = README.read_text()
    assert len(text.splitlines()) <= 120
    parts = (
        '# mmlaplace',
        'docs/images/attention_explorer.png',
        'docs/model_zoo.md',
        '## Install',
        'import torch',
        'docs/tutorials/own_config.md',
        '# mmpretrain: ',
        'bash tools/quickstart.sh',
        '| attention | paper | year | hosts |',
        'docs/tutorials/add_attention.md',
        '(docs/faq.md)',
        '(docs/benchmarks.md)',
        '## Status',
        'no pretrained weights',
        '(LICENSE)',
        '```bibtex',
    )
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_the_readmes_first_lines_print_what_it_shows():
    code, shown = code_blocks(README, 'python')[0], code_blocks(README, 'text')[0]
    assert len([line for line in code.splitlines() if line]) == 6
    with redirect_stdout(StringIO()) as printed:
        exec(code, {})
    assert printed.getvalue() == shown


def test_the_page_of_attentions_has_every_attention_and_the_readme_the_hosts():
    text = README.read_text()
    rows = re.findall(r'^\| \[.*?\]\((mmlaplace/models/attentions/\w+\.py)\)', text, re.MULTILINE)
    page = (ROOT / 'docs/api/attentions.md').read_text()
    listed = set()
    for name in registered(BaseAttention):
        file = str(Path(inspect.getfile(MODELS.get(name))).relative_to(ROOT))
        # In one of the page's tables, and only there.
        row = rf'^\| .*`{name}`(?: around softmax)? \|'
        assert len(re.findall(row, page, re.MULTILINE)) == 1, name
        assert rows.count(file) == 1 + (name == 'SOFTAttention') or file not in rows, name
        listed |= {name} if file in rows else set()
    # The README names the others, and all, by their number.
    assert ('Forty attentions' in text) == (len(registered(BaseAttention)) == 40)
    numbers = {'thirty-four': 34, 'thirty-five': 35, 'thirty-six': 36}
    (more,) = re.findall(r'There are \[([\w-]+) more\]', text)
    assert numbers[more] == len(registered(BaseAttention)) - len(listed)
    for host in ('pvt', 'pvt_v2', 'swin', 'vit', 'soft_pyramid', 'laplacian_pyramid'):
        assert hasattr(hosts, host)
    for named in ('its own pyramid', "SOFT's pyramid", 'PVT', 'PVTv2', 'Swin', 'ViT', 'DeiT'):
        assert re.search(rf'\|.*{named}.* \|$', text, re.MULTILINE), named


def test_the_readme_and_its_page_say_how_to_install_what_there_is():
    extras = (ROOT / 'pyproject.toml').read_text().split('optional-dependencies]')[1]
    for document in (README, START):
        for extra in re.findall(r'"\.\[(\w+)\]"', document.read_text()):
            assert re.search(rf'^{extra} = ', extras, flags=re.MULTILINE), extra
    pinned = set(re.findall(r'torch==([\d.]+)', START.read_text()))
    tested = ''.join(
        (ROOT / f'requirements/{name}.txt').read_text() for name in ('onedl', 'openmmlab')
    )
    assert pinned == set(re.findall(r'^torch==([\d.]+)', tested, flags=re.MULTILINE))
    assert set(re.findall(r'torch==([\d.]+)', README.read_text())) < pinned


@pytest.mark.slow
def test_the_readmes_check_runs():
    (command,) = [words for words in commands(README) if 'mmlaplace.check' in words]
    result = subprocess.run(
        [sys.executable, *command[1:]], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stdout
    assert 'All right' in result.stdout
