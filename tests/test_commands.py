"""Readers of the pages run the commands as they stand there, one after the other.

The models are trained for one step, and their checkpoints have the names that the pages know.
"""

import re
import shlex
import subprocess
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, Tuple

import pytest
import torch
from conftest import (
    MICRO,
    ROOT,
    imports_forgotten,
    needs_torch,
    quiet_init,
    run_module,
    run_python,
    run_script,
    toolbox_config,
    toolbox_model,
)
from PIL import Image
from skimage import data
from test_docs import DOCUMENTS, code_blocks, commands, lines

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


class Scenario(NamedTuple):
    """What a reader does: the page, and the commands of it that run here; ``*`` is any end."""

    page: str
    commands: Tuple[str, ...]


READERS = {
    'lists models': Scenario('docs/get_started.md', ('python -m mmlaplace list *',)),
    'lists released weights': Scenario(
        'docs/released_weights.md', ('python -m mmlaplace list --weights *',)
    ),
    'lists files that can be converted': Scenario(
        'docs/checkpoints.md', ('python tools/model_converters/convert.py --list',)
    ),
    'plans a study': Scenario(
        'docs/reproduce.md',
        (
            'python studies/reproduce.py --list*',
            'python studies/reproduce.py softpp_table_9 --dry-run',
        ),
    ),
}
READERS_WITH_A_MODEL = {
    'writes an attention': Scenario(
        'docs/tutorials/add_attention.md',
        (
            'python -m mmlaplace compare elu_attention.py:EluAttention --contract',
            'python tools/dataset_converters/make_mini_datasets.py *',
        ),
    ),
    'compares an attention': Scenario(
        'docs/compare.md', ('python -m mmlaplace compare my_attention.py:MyAttention --contract',)
    ),
    'trains a classifier': Scenario(
        'docs/tutorials/classify.md',
        (
            'python tools/train.py my_classifier.py *',
            'python tools/test.py my_classifier.py *',
            'python tools/visualization/vis_predictions.py *',
        ),
    ),
    'trains a detector': Scenario(
        'docs/tutorials/detect.md',
        (
            'python tools/train.py my_detector.py *',
            'python tools/test.py my_detector.py *',
            'python tools/visualization/vis_predictions.py *',
            'python tools/dataset_converters/make_mini_datasets.py *',
        ),
    ),
    'trains a segmentor': Scenario(
        'docs/tutorials/segment.md',
        (
            'python tools/train.py my_segmentor.py *',
            'python tools/test.py my_segmentor.py *',
            'python tools/visualization/vis_predictions.py *',
            'python tools/dataset_converters/make_mini_datasets.py *',
        ),
    ),
    'watches a training': Scenario(
        'docs/train_it_yourself.md',
        (
            'python tools/test.py CONFIG CHECKPOINT --show-dir *',
            'python tools/dataset_converters/make_stand_in_datasets.py',
            'python tools/train.py CONFIG *',
        ),
    ),
    'starts from trained weights': Scenario('docs/faq.md', ('python tools/train.py CONFIG *',)),
    'looks inside': Scenario(
        'docs/tutorials/look_inside.md',
        ('python tools/visualization/vis_*', 'python demo/image_demo.py photo*'),
    ),
    'counts operations': Scenario(
        'docs/benchmarks.md', ('python tools/analysis_tools/get_flops.py CONFIG *',)
    ),
    'exports': Scenario(
        'docs/deploy.md',
        (
            'python tools/deployment/export.py CONFIG CHECKPOINT --format onnx --dynamic *',
            'python tools/deployment/run_onnx.py model.onnx cat.jpg',
            'python tools/deployment/run_onnx.py model.onnx street.jpg *',
            'python tools/deployment/quantize.py *',
        ),
    ),
}
# Why no reader of a scenario calls these.
NOT_HERE = {
    'attention_explorer.py': 'a server, which tests/demo starts',
    'benchmark_backbone.py': 'takes hours',
    'benchmark_ops.py': 'takes hours',
    'benchmark_runtimes.py': 'takes hours; tests/tools/test_runtimes.py has a small model',
    'build_onnxruntime_ops.py': "needs ONNX Runtime's headers",
    'build_openvino_ops.py': 'compiles for minutes; tests/tools/test_openvino_ops.py does',
    'cut_tiles.py': 'needs large images; tests/tools/test_tiles.py has small ones',
    'convert_lra.py': "needs Long Range Arena's files",
    'dist_train.sh': 'needs several GPUs',
    'dry_run.py': 'takes minutes; tests/tools does it',
    'gpu_check.sh': 'needs a GPU',
    'large_image_demo.py': 'needs a large image; tests/tools/test_tiles.py has a small one',
    'linearize.py': 'takes hours; tests/models does it with less data',
    'make_lra_datasets.py': 'takes minutes; tests/lab/lra does it with less data',
    'prepare_image.py': 'needs a compiled model; tests/deployment does it',
    'quickstart.sh': 'makes an environment',
    'run_tests.sh': 'makes an environment',
    'slurm_train.sh': 'needs several GPUs',
    'train_rt_detr.py': 'takes minutes; tests/test_hosts.py takes one step',
}


def commands_of(scenario: Scenario) -> list:
    """The commands of a scenario, whole, each after the variables that the page sets."""
    page = lines(ROOT / scenario.page)
    for command in scenario.commands:
        assert any(fnmatch(line, command) for _, line in page), f'{scenario.page}: no {command}'
    return [
        (variables, line)
        for variables, line in page
        if any(fnmatch(line, command) for command in scenario.commands)
    ]


@pytest.fixture(scope='session')
def quick_starts(tmp_path_factory, mini_data):
    """A copy of the project with data, trained models and a user's own files."""
    project = tmp_path_factory.mktemp('project')
    for name in ('configs', 'demo', 'docs', 'studies', 'tools', 'mmlaplace', '.dev_scripts'):
        (project / name).symlink_to(ROOT / name)
    (project / 'data/mini').mkdir(parents=True)
    for made in filter(Path.is_dir, mini_data.iterdir()):
        (project / f'data/mini/{made.name}').symlink_to(made)
    (project / 'data/mini/crowds').symlink_to(mini_data / 'classification')  # the same folders
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
        name_as_on_the_page(project / f'work_dirs/{name}', checkpoint)
        classifier = 'model.backbone.init_cfg.checkpoint=work_dirs/classify/epoch_11.pth'
        options = ['--cfg-options', classifier]
    classifier = project / f'work_dirs/classify/{TRAINED["classify"][1]}.pth'
    (project / 'work_dirs/quickstart').symlink_to('classify')
    (project / 'work_dirs/classify/last_checkpoint').write_text(str(classifier))
    (project / 'CLASSIFIER.pth').symlink_to(classifier)
    for name in TRAINED:
        write_small_config(project, name)
    return project


def name_as_on_the_page(work_dir: Path, checkpoint: str) -> None:
    """Give the checkpoint of the one step the name that the pages know, too."""
    trained = next(work_dir.glob('*_1.pth'))
    if trained.stem != checkpoint:
        (work_dir / f'{checkpoint}.pth').symlink_to(trained.name)


def write_small_config(project: Path, name: str) -> None:
    """The config that the last part of a tutorial writes, for small data."""
    page = lines(ROOT / f'docs/tutorials/{name}.md')
    (line,) = (line for _, line in page if f'own {name} data/mini' in line)
    run(project, *shlex.split(line))


def run(project: Path, program: str, script: str, *arguments) -> None:
    """Run a command in the project. Trainings and tests get a process of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        if script == '-m':
            result = run_module(*arguments)
        elif Path(script).name in ('train.py', 'test.py'):
            result = run_python(script, *arguments, cwd=project)
        else:
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


@pytest.mark.parametrize('reader', READERS)
def test_a_reader_without_a_model(reader):
    for _, line in commands_of(READERS[reader]):
        run(ROOT, *shlex.split(line))


@pytest.mark.training
@pytest.mark.thorough  # tests/tools has the tools
@pytest.mark.parametrize(
    'reader',
    [
        pytest.param(n, marks=needs_torch(2, 6)) if n == 'exports' else n
        for n in READERS_WITH_A_MODEL
    ],
)
def test_a_reader_with_a_trained_model(reader, quick_starts):
    scenario = READERS_WITH_A_MODEL[reader]
    task = Path(scenario.page).stem
    for variables, line in commands_of(scenario):
        for command in with_own_files(quick_starts, words_of(quick_starts, variables, line)):
            of_openvino = Path(command[1]).name == 'quantize.py' and command[2].endswith('.xml')
            if of_openvino and find_spec('nncf') is None:  # which the tests do not bring
                continue
            with imports_forgotten(quick_starts):
                run(quick_starts, *for_a_moment(command))
            if command[1] == 'tools/train.py' and task in TRAINED:
                work_dir = command[command.index('--work-dir') + 1]
                text = (ROOT / scenario.page).read_text()
                for checkpoint in set(re.findall(rf'{work_dir}/(\w+_\d+)\.pth', text)):
                    name_as_on_the_page(quick_starts / work_dir, checkpoint)


def test_each_tool_that_a_page_calls_is_in_a_scenario_or_cannot_run_here():
    scenarios = (*READERS.values(), *READERS_WITH_A_MODEL.values())
    called = {line.split()[1] for scenario in scenarios for _, line in commands_of(scenario)}
    on_pages = {words[1] for page in DOCUMENTS for words in commands(page) if len(words) > 1}
    tools = {word for word in on_pages if word.startswith(('tools/', 'demo/'))}
    assert {Path(tool).name for tool in tools - called} == set(NOT_HERE)
