"""The study of searches for softmax blocks: what it runs on small data, and what its page says."""

import sys

import pytest
from conftest import load_tool
from PIL import Image


@pytest.fixture(scope='module')
def study():
    return load_tool('studies/study_block_search.py')


def run_of(way, seed, small, kept=(0, 1), keep=2, attention='AgentAttention'):
    names = dict(task='textures', attention=attention, variant=way, keep=keep, seed=seed)
    return dict(settings=names, swapped=9.0, score=dict(small=small, large=50.0), kept=list(kept))


SOFTMAX = dict(
    settings=dict(task='textures', variant='softmax', steps=1), score=dict(small=60.0, large=50.0)
)


def test_the_table_pairs_the_seeds_and_tells_where_both_ways_choose_alike(study):
    results = [run_of('harm', seed, 50.0 + seed) for seed in range(3)]
    results += [run_of('task', seed, 53.0 + 2 * seed, (0, 2)) for seed in range(3)]
    results += [run_of(way, seed, 40.0, keep=1) for way in ('harm', 'task') for seed in range(3)]
    lines = study.search_table(results).splitlines()
    # 3, 4 and 5 more: a deviation of 1, and Student's t of two degrees of freedom is 4.303.
    assert '| Agent, 2 kept | +4.0 ± 2.5; +0.0 ± 0.0 | not run | not run | not run |' in lines
    assert '| Agent, 1 kept | the same blocks | not run | not run | not run |' in lines
    assert any(line.startswith('| Laplacian, 2 kept, beam of 3 | not run') for line in lines)


def test_labels_have_a_row_for_each_weight(study, tmp_path):
    results = [SOFTMAX]
    for way in ('harm', 'labels, λ = 50'):
        results += [
            run_of(way, seed, 50.0, keep=0, attention='FLattenAttention') for seed in range(3)
        ]
    lines = study.label_table(results).splitlines()
    scores = '50.0 ± 0.0; 50.0 ± 0.0'
    assert '| softmax | 60.0; 50.0 | not run | not run | not run |' in lines
    assert f'| labels, λ = 50 | {scores} | not run | not run | not run |' in lines
    assert f'| maps and logits, no labels | {scores} | not run | not run | not run |' in lines
    assert '| labels, λ = 500 | not run | not run | not run | not run |' in lines
    results += [run_of(way, seed, 50.0) for way in ('harm', 'task') for seed in range(3)]
    times = {'small': {'64': {'softmax': 4.0, 'AgentAttention 0': 1.0}}}
    study.draw(results, times, tmp_path / 'search.png')
    with Image.open(tmp_path / 'search.png') as picture:
        assert picture.width <= 900


def write_textures(folder):
    """Images of two classes, told by their colour."""
    for split, count, side in (('train', 8, 64), ('val', 10, 64), ('val_128', 10, 128)):
        for name, colour in (('blue', (0, 0, 200)), ('red', (200, 0, 0))):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                shade = tuple(part + number for part in colour)
                path = folder / split / name / f'{number}.png'
                Image.new('RGB', (side, side), shade).save(path)


@pytest.mark.training
def test_a_search_by_the_task_chooses_once_on_images_of_its_own(study, tmp_path, monkeypatch):
    module = sys.modules['hybrids.study']
    monkeypatch.setattr(module, 'TRUNK_STEPS', {'textures': 1})
    monkeypatch.setattr(module, 'HARM_STEPS', 1)
    monkeypatch.setattr(module, 'STEPS', dict(layer_steps=1, whole_steps=1))
    write_textures(tmp_path / 'textures')
    data = module.READERS['textures'](tmp_path / 'textures')
    images = [{image.numpy().tobytes() for image in part} for part, _ in (data.small, data.search)]
    assert all(images) and not images[0] & images[1]
    seen, real = [], module.score

    def score(model, images, wanted):
        seen.append(images is runs.data('textures').search[0])
        kinds = [type(block.attn).__name__ for block in model.backbone.stages[0].blocks]
        return 90.0 - 5 * kinds.count('AgentAttention') + 9 * (kinds[3] != 'AgentAttention')

    log, shown = tmp_path / 'log.jsonl', []
    runs = study.Study(log, tmp_path, tmp_path / 'weights', shown.append)
    runs.trunk('textures')
    monkeypatch.setattr(module, 'score', score)
    plan = [[('AgentAttention', 'task', 1), ('AgentAttention', 'task, beam 3', 1)]]
    runs.run_all(['textures'], plan)
    searches = [one for one in shown if str(one['settings']['variant']).startswith('search')]
    assert [one['settings']['variant'] for one in searches] == ['search, beam 1', 'search, beam 3']
    greedy, wide = (len(one['scores']) for one in searches)
    assert sum(seen) == greedy + wide and wide > greedy == 21  # none, then 6, 5, 4, 3 and 2
    hybrids = [one for one in shown if 'seed' in one['settings']]
    assert len(hybrids) == 6 and all(one['kept'] == [3] for one in hybrids)
    monkeypatch.setattr(module, 'score', real)
    plan = [[('AgentAttention', f'{study.LABELS}{weight}', 0) for weight in (0, 500)]]
    runs.run_all(['textures'], plan)
    losses = {
        result['settings']['variant']: result['losses']['whole'][0]
        for result in runs.results.values()
        if result['settings'].get('seed') == 0 and result['settings']['keep'] == 0
    }
    assert losses['labels, λ = 500'] > 2 * losses['labels, λ = 0'] > 0
