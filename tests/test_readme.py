"""The README's code runs, and what the documents tell users to type exists."""

import re
import shlex
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from conftest import ROOT

README = ROOT / 'README.md'
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
    'pip pre-commit mim git cd source export docker apt-get cp ls curl tensorboard aoti_classify'
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
            assert program in OTHERS.split(), words
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


def test_the_readmes_first_lines_print_what_it_shows():
    code, shown = code_blocks(README, 'python')[0], code_blocks(README, 'text')[0]
    assert len([line for line in code.splitlines() if line]) == 6
    with redirect_stdout(StringIO()) as printed:
        exec(code, {})
    assert printed.getvalue() == shown
