"""Spawned processes, and those of a fork server, know what importing mmlaplace registers."""

import multiprocessing
import textwrap

import pytest
from conftest import ROOT, run_python

METHODS = [each for each in multiprocessing.get_all_start_methods() if each != 'fork']

# A module that a script imports, of a data set that does not name mmlaplace. It loads images as the
# toolboxes' transforms do, by the name of a backend, and builds a model by the name of a class.
DATA = """
import mmengine.fileio
from mmengine.registry import MODELS
from torch.utils.data import Dataset

class Images(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        found = mmengine.fileio.backends.registry_utils.backends['whole'].__name__
        return found, MODELS.get('LaplacianFormer').__name__

class Arguments:
    '''Looks for a backend as soon as a process reads it.'''

    def __setstate__(self, state):
        self.seen = Images()[0]

    def __getstate__(self):
        return dict(any=1)

def see(arguments, queue):
    queue.put(arguments.seen)
"""
SCRIPT = """
import multiprocessing, sys
from data_of_spawned import Arguments, Images, see

if __name__ == '__main__':
    import mmlaplace

    own = multiprocessing.get_context(sys.argv[1])
    queue = own.Queue()
    process = own.Process(target=see, args=(Arguments(), queue), name='named')
    process.start()
    process.join()  # with so little in the queue it waits for nobody
    assert process.exitcode == 0
    print('process', *queue.get(timeout=60), process.name, process.daemon)
    if sys.argv[1] == 'spawn':
        from torch.utils.data import DataLoader

        multiprocessing.set_start_method('spawn', force=True)  # as mmengine does
        (one,) = DataLoader(Images(), batch_size=2, num_workers=1)
        print('worker', one[0][0], one[1][1])
"""


@pytest.mark.sampled(2, 2)
@pytest.mark.parametrize('method', METHODS)
def test_new_processes_know_what_is_registered(method, tmp_path):
    (tmp_path / 'data_of_spawned.py').write_text(DATA)
    script = tmp_path / 'script.py'
    script.write_text(SCRIPT)
    result = run_python(script, method, PYTHONPATH=str(ROOT))
    known = 'WholeFileBackend LaplacianFormer'
    lines = [f'process {known} named False', *[f'worker {known}'] * (method == 'spawn')]
    assert result.stdout.splitlines() == lines, result.stderr[-3000:]


@pytest.mark.thorough  # processes of workers are above
@pytest.mark.training
def test_our_tool_trains_with_spawned_workers(tmp_path, noise_images):
    pytest.importorskip('mmpretrain')
    noise_images(tmp_path / 'train', 48)
    base = 'configs/classification/laplacianformer/laplacianformer-micro_1xb32_mini.py'
    config = tmp_path / 'config.py'
    data = f"dict(type='CustomDataset', data_root='', data_prefix={str(tmp_path / 'train')!r})"
    config.write_text(
        textwrap.dedent(
            f"""
            _base_ = {str(ROOT / base)!r}
            data = {data}
            train_dataloader = dict(batch_size=2, dataset=data, num_workers=1)
            val_dataloader = dict(batch_size=2, dataset=data, num_workers=1)
            train_cfg = dict(max_epochs=1)
            model = dict(head=dict(num_classes=2, topk=(1,)))
            val_evaluator = dict(topk=(1,))
            custom_hooks = []
            """
        )
    )
    spawned = ('--cfg-options', 'env_cfg.mp_cfg.mp_start_method=spawn', 'first_checks=False')
    result = run_python(
        ROOT / 'tools/train.py',
        config,
        '--work-dir',
        tmp_path / 'run',
        *spawned,
        cwd=tmp_path,
        PYTHONPATH=str(ROOT),
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert 'Trained: ' in result.stdout
