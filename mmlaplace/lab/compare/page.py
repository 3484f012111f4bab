"""The page of a comparison, in Markdown and HTML."""

import base64
import html
import re
import statistics
from pathlib import Path
from typing import Iterator, List, NamedTuple

from ...writing import markdown_table, write_whole
from ..probes.report import draw, text_of
from ..probes.study import REACHED
from ..probes.tasks import PROBES
from ..side_by_side.attention_report import cost_table, left_out, markdown, spread
from ..side_by_side.seed_differences import by_attention, differences, half_width
from .configs import BETWEEN, RECIPES
from .contract import FAILED, Finding
from .frames import Candidate
from .pictures import draw_costs, draw_images
from .plan import BACKBONES, Plan
from .points import POINTS
from .runs import Found

STYLE = (
    'body{font:16px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;'
    'color:#222}table{border-collapse:collapse;display:block;overflow-x:auto;margin:1em 0}'
    'th,td{border:1px solid #ccc;padding:.25em .6em;text-align:left}th{background:#f3f3f3}'
    'img{max-width:100%}code{background:#f3f3f3;padding:0 .2em}'
)


class Page(NamedTuple):
    """What a page is written from.

    Attributes:
        candidates: The attentions. The first is the user's.
        findings: The contract of the user's attention.
        plan: The plan.
        left_out: What the budget left out.
        found: What the runs have found.
        own_frames: Whether each attention has the frame of its paper.
        machine: The machine, in words.
        command: The command.
        configs: The configs, which are in a folder beside the page.
        device: Where all was run. Default: ``'cpu'``.
    """

    candidates: List[Candidate]
    findings: List[Finding]
    plan: Plan
    left_out: List[str]
    found: Found
    own_frames: bool
    machine: str
    command: str
    configs: List[Path]
    device: str = 'cpu'


def write_page(page: Page, folder: Path) -> List[Path]:
    """Write README.md, page.html and the pictures, and return their paths."""
    yours = page.candidates[0].label
    found = page.found
    pictures = []
    if found.tasks.rows:
        pictures.append(folder / 'tasks.png')
        draw(found.tasks, pictures[-1], title='small tasks, accuracy (%)')
    if found.costs:
        pictures.append(folder / 'costs.png')
        draw_costs(found.costs, yours, pictures[-1])
    if found.images:
        pictures.append(folder / 'images.png')
        draw_images(found.images, yours, pictures[-1])
    text = '\n\n'.join(sections(page)) + '\n'
    write_whole(folder / 'README.md', text)
    write_whole(folder / 'page.html', to_html(text, folder))
    return [folder / 'README.md', folder / 'page.html', *pictures]


def to_html(text: str, folder: Path) -> str:
    """A page of HTML that has its pictures inside."""
    from markdown_it import MarkdownIt  # of rich

    body = MarkdownIt('commonmark').enable('table').render(text)

    def inside(match: 're.Match') -> str:
        data = base64.b64encode((folder / match[1]).read_bytes()).decode()
        return f'src="data:image/png;base64,{data}"'

    body = re.sub(r'src="([\w.]+\.png)"', inside, body)
    title = html.escape(text.splitlines()[0].lstrip('# '))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width">'
        f'<style>{STYLE}</style></head>\n<body>\n{body}</body></html>\n'
    )


def sections(page: Page) -> Iterator[str]:
    """The parts of the page."""
    yours, *others = [one.label for one in page.candidates]
    yield f'# {yours} beside {", ".join(others)}'
    yield f'`{page.command}`\n\n{page.machine}'
    yield '\n'.join(f'- {line}' for line in page.plan.contents())
    yield '## At a glance'
    yield glance(page)
    yield '## The layers around the attention'
    yield from frame_section(page)
    yield f'## Contract of {yours}'
    yield contract_table(page.findings)
    yield from task_section(page)
    yield from cost_section(page)
    yield from image_section(page)
    absent = [f'By `--budget`: {text}' for text in page.left_out]
    absent += [
        f'{part}: {count} runs have no result; the same command continues with them'
        for part, count in page.found.missing.items()
        if count
    ]
    if absent:
        yield '## Left out'
        yield '\n'.join(f'- {line}' for line in absent)
    yield '## Train it at full size'
    yield (
        f'The configs have {page.candidates[0].cfg["type"]} with the options of this comparison. '
        'Nothing of them has been trained.'
    )
    rows = [
        [f'[{path.name}](configs/{path.name})', recipe.where]
        for path, recipe in zip(page.configs, (*RECIPES, *BETWEEN))
    ]
    yield text_table(['config', 'the attention is'], rows)
    yield f'```bash\npython tools/train.py {page.configs[0]}\n```'


def glance(page: Page) -> str:
    """A table with a row for each attention, and how to read it."""
    plan, found = page.plan, page.found
    reached = max(
        (row['side'] for cost in found.costs.values() for row in cost['forward']['rows']), default=0
    )
    header = ['attention', f'small tasks solved, of {len(found.tasks.columns)}']
    header += [f'ms at {reached}²', f'MB of training at {reached}²']
    header += [f'top-1 in {BACKBONES[host]}' for host in found.images]
    rows = []
    for number, one in enumerate(page.candidates):
        cells = [f'**{one.label}**' if number == 0 else one.label, '–']
        if one.label in found.tasks.rows:
            solved = sum(
                found.tasks.solved_by_all(one.label, n, REACHED)
                for n in range(len(found.tasks.columns))
            )
            cells[1] = str(solved)
        for key, name, scale in (('seconds', 'forward', 1e3), ('MB', 'forward and backward', 1)):
            cost = found.costs.get(one.label, {}).get(name, dict(rows=[]))
            value = [row[key] * scale for row in cost['rows'] if row['side'] == reached]
            cells.append(f'{value[0]:.0f}' if value else '–')
        for results in found.images.values():
            runs = by_attention(results).get(one.label, [])
            column = next(iter(results[0]['top1']))
            mean = statistics.mean(run['top1'][column] for run in runs) if runs else None
            cells.append('–' if mean is None else f'{mean:.1f}')
        rows.append(cells)
    seeds = f'{plan.seeds} seeds' if plan.seeds > 1 else 'one seed'
    return markdown(header, rows) + (
        f'\n\nSmall tasks and trainings have {seeds}. A task is solved if each seed reaches '
        f'{100 * REACHED:.0f} % of the way from a guess to a perfect answer. Whether small '
        'models on small images predict accuracy on ImageNet is not known. – is not measured.'
    )


def frame_section(page: Page) -> Iterator[str]:
    """Which layers are around the attentions, and why."""
    if page.own_frames:
        yield (
            '`--own-frames`: each attention has the layers of its paper around it, such as a gate, '
            'a convolution or rotary positions. So a difference between two rows may come from '
            'these layers, and not from the attention.'
        )
        return
    yield (
        'All attentions have the same layers around them, so that a difference between two rows '
        'comes from the attention: linears for queries, keys and values, a 3 × 3 depthwise '
        'convolution of the values, no gate, no rotary positions, and a last linear. The backbone '
        'around them, with its norms and positions, is the same too. `--own-frames` gives each '
        'attention the layers of its paper instead.'
    )
    rows = []
    for one in page.candidates:
        changed = ', '.join(f'`{field}={value!r}`' for field, value in one.changed.items())
        if len(one.kept) > 8:
            kept = 'all: it is built from layers of its own, so compare it with care'
        else:
            kept = ', '.join(f'`{field}`' for field in one.kept) or 'nothing'
        rows.append([one.label, changed or 'nothing', kept])
    yield text_table(['attention', 'changed from its own', 'keeps of its own'], rows)


def text_table(header: List[str], rows: List[List[str]]) -> str:
    """A table of texts, which are aligned at the left."""
    return markdown_table(header, [[cell.replace('|', '\\|') for cell in row] for row in rows])


def contract_table(findings: List[Finding]) -> str:
    """A table with a row for each point."""
    rows = []
    for finding in findings:
        state = f'**{finding.state}**' if finding.state == FAILED else finding.state
        seen = [finding.text] if finding.text else []
        if finding.line:
            seen.append(f'`{finding.line}`')
        rows.append([finding.point, POINTS[finding.point].asks, state, ' '.join(seen)])
    return text_table(['point', 'asks', 'result', 'seen'], rows)


def task_section(page: Page) -> Iterator[str]:
    """The small tasks."""
    table = page.found.tasks
    if not table.rows:
        return
    yield '## Small tasks'
    yield (
        'A model of two blocks with 32 channels learns each task on maps of 8 × 16 tokens, for at '
        f'most {page.plan.steps} steps. A task that is not solved may be learnt by '
        'longer training. A star marks seeds that disagree.'
    )
    lines = []
    for name in page.plan.tasks:
        task = ' '.join((PROBES.get(name).__doc__ or '').split('\n\n')[0].split())
        lines.append(f'- **{name.replace("_", " ")}**: {task}')
    yield '\n'.join(lines)
    yield '![Accuracy of each attention in each task](tasks.png)'
    yield text_of(table)


def cost_section(page: Page) -> Iterator[str]:
    """Time and memory."""
    costs = page.found.costs
    if not costs:
        return
    yield '## Time and memory'
    place = 'one thread' if page.device == 'cpu' else 'the GPU'
    yield (
        f'One image in PVT-micro, on {place}. Each attention sees the whole map. Memory is the '
        'peak of the tensors. Differences of a tenth mean little. The exponent is that of the time '
        'over the number of pixels.'
    )
    yield '![Time and memory over the size of the image](costs.png)'
    yield 'Time in ms:'
    yield cost_table(costs, list(page.plan.sizes), 'seconds', 1e3)
    yield 'Memory in MB:'
    yield cost_table(costs, list(page.plan.sizes), 'MB', 1)
    busy = [label for label, share in page.found.shares.items() if share < 0.8]
    if busy and page.device == 'cpu':
        yield (
            f'**Trust no time of {", ".join(busy)}**: the machine was busy, and this '
            'program had less than 80 % of a core.'
        )
    if lines := list(left_out(costs)):
        yield '\n'.join(f'- {line.removeprefix("- ")}' for line in lines)


def image_section(page: Page) -> Iterator[str]:
    """The trainings on images."""
    if not page.found.images:
        return
    yours = page.candidates[0].label
    yield '## Small images'
    text = (
        f'{page.plan.epochs} epochs on 3,600 patches of fifteen photographs of scikit-image, '
        'such as a cat, coins and gravel, 64 × 64 pixels. The '
        'class is the photograph. The test has 900 patches of other parts of the photographs, in '
        'three sizes. Attentions with landmarks have 16.'
    )
    if 'swin' in page.found.images:
        text += ' In Swin, the attention is in the first two stages.'
    yield text
    yield '![Top-1 of each attention in each backbone; a dot is a seed](images.png)'
    for host, results in page.found.images.items():
        yield f'### In {BACKBONES[host]}'
        yield image_table(results, yours)
    if page.plan.seeds > 1:
        yield (
            f'*Difference* is that of the first column from {yours}, over pairs of equal seeds, '
            'with its 95 % interval. An interval with 0 shows no difference.'
        )
    else:
        yield 'With one seed, ten points can be chance.'


def image_table(results: List[dict], yours: str) -> str:
    """Top-1 by attention, with the differences from the user's."""
    columns = list(results[0]['top1'])
    by_label = differences(results, yours)
    rows = []
    for label, runs in by_attention(results).items():
        cells = [f'**{label}**' if label == yours else label]
        cells += [spread([run['top1'][column] for run in runs]) for column in columns]
        pairs = by_label.get(label)
        if pairs is None:
            cells.append('')
        else:
            cells.append(f'{statistics.mean(pairs):+.1f} ± {half_width(pairs):.1f}')
        cells += [f'{runs[0]["parameters"] / 1e3:.0f}', f'{runs[0]["macs"] / 1e6:.0f}']
        rows.append(cells)
    return markdown(['attention', *columns, 'difference', 'K params', 'M MACs'], rows)
