"""The commands of the README and the pages run as they stand there, one after the other.

The models are trained for one step, and their checkpoints have the names that the pages know.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import MICRO, ROOT, needs_torch, quiet_init, run_script, toolbox_config, toolbox_model
from PIL import Image
from skimage import data
from test_docs import DOCUMENTS, code_blocks, lines

# A trained model of each task. The quick starts train them, and more.
TRAINED = {
    'classify': (MICRO['laplacianformer'], 'epoch_11'),
    'detect': (MICRO['mask-rcnn'], 'epoch_5'),
    'segment': (MICRO['upernet'], 'iter_400'),
}
ONE_STEP = [
    'train_dataloader.dataset.indices=16',
    'train_dataloader.batch_size=16',
    'train_dataloader.num_workers=0',
    'train_dataloader.persistent_workers=False',
    'val_cfg=None',
    'val_dataloader=None',
    'val_evaluator=None',
]
NOT_HERE = {
    r'(\w+=\S+ )*(pip|mim|hf|git|docker|apt-get|pre-commit|tensorboard|source|cd|cp|ls'
    r'|export) ': 'a program of others',
    r'(\./|\.venv/)': 'of another environment, or of a language that is not here',
    r'bash (tools/(quickstart|setup_env|run_tests)|\.dev_scripts/)': 'makes an environment',
    r'((\w+=\S+ )*bash tools/(dist|slurm)_|bash tools/gpu_check)': 'needs a GPU, or several',
    r'.*(_in1k|_coco|ade20k)\S*\.py': 'needs a data set that is downloaded',
    r'.*(convert_lra\.py|configs/lra/(?!\w+_mini))': "needs Long Range Arena's files",
    r'.*(MMDETECTION|example\.org|WandbVisBackend)': 'needs the network',
    r'.*convert\.py (?!--list)': "needs the authors' weights, which tests/engine imitates",
    r'.*(demo/attention_explorer\.py|127\.0\.0\.1)': 'a server, which tests/demo starts',
    r'.*(--library|--backend native|build_onnxruntime_ops)': "needs ONNX Runtime's headers",
    r'.*(benchmark_(backbone|ops)|linearize\.py|mutation_test'
    r'|make_lra_datasets\.py --tasks|reproduce\.py(?!.*(--list|--dry-run)))': 'takes hours',
    r'.*make_hf_kernel\.py': 'tests/ops makes the package',
    r'.*(configs/lra/|make_lra_datasets)': 'takes minutes; tests/lab/lra does it with less data',
    r'(.*paper_figures\.py (?!softpp-1a)'
    r'|python -m mmlaplace compare (?!.*--contract))': 'tests/lab does it smaller',
    r'.*train_rt_detr\.py': 'takes minutes, and tests/test_hosts.py takes one step',
    r'.*(--format aoti|prepare_image\.py|dry_run\.py)': 'takes minutes, and tests/tools does it',
    r'.*(textures|crowds|fashion|make_mini_datasets\.py$)': 'takes minutes; tests/tools does it',
    r'.*(export\.py my_|run_onnx\.py work_dirs/my_)': 'docs/deploy.md has the same commands',
    r'.*elu_mini': 'needs two files of that page, of which tests/test_docs.py runs one',
    r'python -m mmlaplace(\.check$| config )': 'tests/test_check.py or test_model_list.py runs it',
}


def why_not(variables: str, line: str) -> str:
    """The reason for which a command cannot run here; empty if it can."""
    for name, value in re.findall(r'(\w+)=(\S+); ', variables):
        line = line.replace(f'${name}', value)
    return next((why for start, why in NOT_HERE.items() if re.match(start, line)), '')


RUNNABLE = {
    page: found
    for page in DOCUMENTS
    if page.name != 'CONTRIBUTING.md'
    and (found := [(v, line) for v, line in lines(page) if not why_not(v, line)])
}


@pytest.fixture(scope='session')
def quick_starts(tmp_path_factory, mini_data):
    """A copy of the project with data, trained models and a user's own files."""
    project = tmp_path_factory.mktemp('project')
    for name in ('configs', 'demo', 'docs', 'studies', 'tools', 'mmlaplace', '.dev_scripts'):
        (project / name).symlink_to(ROOT / name)
    (project / 'data').mkdir()
    (project / 'data/mini').symlink_to(mini_data)
    (project / 'photos').mkdir()
    photo = Image.fromarray(data.astronaut()).resize((160, 128))
    for name in ('PHOTO', 'photo.jpg', 'cat.jpg', 'street.jpg', 'photos/one.jpg', 'photos/two.png'):
        photo.save(project / name, 'JPEG')
    attention = code_blocks(ROOT / 'docs/tutorials/add_attention.md', 'python')[0]
    (project / 'elu_attention.py').write_text(attention)
    (project / 'my_attention.py').write_text(attention.replace('EluAttention', 'MyAttention'))
    options = []
    for name, (config, checkpoint) in TRAINED.items():
        command = ['python', 'tools/train.py', f'configs/{config}.py', '--work-dir']
        run(project, *for_a_moment([*command, f'work_dirs/{name}', *options]))
        rename_trained(project / f'work_dirs/{name}', checkpoint)
        classifier = 'model.backbone.init_cfg.checkpoint=work_dirs/classify/epoch_11.pth'
        options = ['--cfg-options', classifier]
    classifier = project / f'work_dirs/classify/{TRAINED["classify"][1]}.pth'
    (project / 'work_dirs/quickstart').symlink_to('classify')
    (project / 'work_dirs/classify/last_checkpoint').write_text(str(classifier))
    (project / 'CLASSIFIER.pth').symlink_to(classifier)
    for name in TRAINED:
        write_small_config(project, name)
    return project


def rename_trained(work_dir: Path, checkpoint: str) -> None:
    """Give the checkpoint of the one step the name that the pages know."""
    next(work_dir.glob('*_1.pth')).rename(work_dir / f'{checkpoint}.pth')


def write_small_config(project: Path, name: str) -> None:
    """The config that a tutorial saves, with the lines of its last part, and small data."""
    page = ROOT / f'docs/tutorials/{name}.md'
    config, *_, small = code_blocks(page, 'python')
    for line in small.splitlines():
        start = line.partition('=')[0]
        config = re.sub(rf'^{re.escape(start)}=.*$', lambda _, line=line: line, config, flags=re.M)
    config = config.replace('data/mine', f'data/mini/{TRAINED[name][0].partition("/")[0]}')
    file = re.search(r'`(my_\w+\.py)`', page.read_text())[1]
    (project / file).write_text(config.replace("'.jpg'", "'.png'"))


def run(project: Path, program: str, script: str, *arguments, **variables) -> None:
    """Run a command in the project. Trainings and tests get a process of their own."""
    if script.startswith('-') or Path(script).name in ('train.py', 'test.py'):
        command, env = [sys.executable, script, *map(str, arguments)], {**os.environ, **variables}
        result = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True)
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(project)
            for name, value in variables.items():
                patch.setenv(name, value)
            result = run_script(project / script, *arguments)
    said = f'{result.stdout}{result.stderr}'[-3000:]
    assert result.returncode == 0, f'{program} {script} {" ".join(map(str, arguments))}\n{said}'


def for_a_moment(command: list) -> list:
    """A command that trains for one step, or tests a few images."""
    script = command[1]
    if script not in ('tools/train.py', 'tools/test.py'):
        return command
    steps = 'max_iters' if re.search('segment(ation/|or)', command[2]) else 'max_epochs'
    training, test = [*ONE_STEP, f'train_cfg.{steps}=1'], ['test_dataloader.dataset.indices=8']
    options = [] if '--cfg-options' in command else ['--cfg-options']
    return [*command, *options, *(test if script == 'tools/test.py' else training)]


def words_of(project: Path, variables: str, line: str) -> list:
    """The words that a shell makes of a command."""
    script = f"{variables} printf '%s\\0' {line}"
    said = subprocess.run(['bash', '-c', script], cwd=project, capture_output=True, check=True)
    return said.stdout.decode().split('\0')[:-1]


def with_own_files(project: Path, words: list) -> list:
    """The commands that a user types in place of one with capitals."""
    script = Path(words[1]).stem
    named = next((word for word in words if word.startswith('configs/')), None)
    if named is not None and 'CHECKPOINT' in words:
        model = toolbox_model(toolbox_config(project / named))
        quiet_init(model)
        torch.save(dict(state_dict=model.state_dict()), project / 'random.pth')
        return [['random.pth' if word == 'CHECKPOINT' else word for word in words]]
    # The tutorials show the other tools for each task.
    tasks = list(TRAINED) if script == 'image_demo' else ['classify']
    if not any(re.match('CONFIG', word) for word in words):
        return [words]
    return [[own(task, word) for word in words] for task in tasks]


def own(task: str, word: str) -> str:
    config, checkpoint = TRAINED[task]
    files = dict(CONFIG=f'configs/{config}.py', CHECKPOINT=f'work_dirs/{task}/{checkpoint}.pth')
    return files.get(word.rstrip('12'), word)


@pytest.mark.training
@pytest.mark.parametrize(
    'page',
    [  # tests/tools has the tools of the other pages
        pytest.param(
            page,
            id=name,
            marks=()
            if re.match('README|docs/get', name)
            else [pytest.mark.thorough, *[needs_torch(2, 6)] * name.endswith('deploy.md')],
        )
        for page in RUNNABLE
        for name in [str(page.relative_to(ROOT))]
    ],
)
def test_the_commands_of_a_page_run(page, quick_starts):
    for variables, line in RUNNABLE[page]:
        words = words_of(quick_starts, variables, line)
        settings = {}
        while re.match(r'\w+=', words[0]):
            name, _, settings[name] = words.pop(0).partition('=')
        for command in with_own_files(quick_starts, words):
            run(quick_starts, *for_a_moment(command), **settings)
            if command[1] == 'tools/train.py' and page.stem in TRAINED:
                work_dir = command[command.index('--work-dir') + 1]
                (checkpoint,) = set(re.findall(rf'{work_dir}/(\w+_\d+)\.pth', page.read_text()))
                rename_trained(quick_starts / work_dir, checkpoint)
