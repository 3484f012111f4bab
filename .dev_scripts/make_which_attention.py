"""Write docs/which_attention.md, docs/probes.md and their picture from the logs.

The logs are those of the probes and of the comparison of attentions.

Its advice is computed: of the attentions that solve the probes of a use, it names the cheapest.

Examples:
  python .dev_scripts/make_which_attention.py
  python .dev_scripts/make_which_attention.py --check   # exit status 1 if a page is not in step
"""

import sys
from pathlib import Path
from typing import Dict, List, NamedTuple, Tuple

from laplacian_recall import filled, laplacian_section
from mmengine.registry import MODELS

from mmlaplace.commands.command_line import ToolParser
from mmlaplace.comparison.attention_report import markdown
from mmlaplace.probes.prediction import correlate, published, trained_here
from mmlaplace.probes.report import (
    MISSING,
    NAMES,
    Table,
    behind,
    draw,
    largest,
    read_costs,
    tables,
)
from mmlaplace.probes.results import read_results
from mmlaplace.probes.study import read_studies
from mmlaplace.probes.tasks import PROBES, build_probe

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / 'docs'
PAGE, PROBES_PAGE = DOCS / 'which_attention.md', DOCS / 'probes.md'
PICTURE = DOCS / 'images/probes.png'
LOG, COMPARED = DOCS / 'logs/probes.jsonl', DOCS / 'logs/compare_attentions.json'
SOLVED = 0.9  # of the way from a guess to a perfect answer
NAMED = 4  # attentions for each use
# Points of top-1 by which means of three seeds may differ, by docs/attention_comparison.md.
SEEDS_DIFFER = {'textures': 8.1, 'Fashion-MNIST': 0.6}
STRONG = 0.5  # a rank correlation
WINDOWS = ('Neighborhood', 'Reformer')  # their windows and buckets are fixed at export


class Use(NamedTuple):
    """A use of attentions.

    Attributes:
        name: Its name.
        columns: Titles of the columns that matter for it.
        costs: The costs that matter for it. The first decides.
        evidence: Links.
        images: Whether top-1 on images counts too.
    """

    name: str
    columns: Tuple[str, ...]
    costs: Tuple[str, ...]
    evidence: str
    images: bool = False


PROBES_LINK, IMAGES_LINK = '[probes](probes.md)', '[images](attention_comparison.md)'
AT_224, AT_1024 = ('ms 224²',), ('ms 1024²', 'MB 1024²')
USES = (
    Use('exact recall of single tokens', ('recall', 'noise'), AT_1024, PROBES_LINK),
    Use('small images', (), AT_224, IMAGES_LINK, images=True),
    Use('detection at 1024²', ('one of many', 'count, 4x map'), AT_1024,
        f'{PROBES_LINK}, [larger maps](scale.md)'),
    Use('dense prediction', ('recall', 'count, 4x map'), AT_1024,
        f'{PROBES_LINK}, [models](dense_prediction.md)'),
    Use('sequences', ('recall', 'one of many'), AT_1024,
        f'{PROBES_LINK}, [Long Range Arena](lra.md)'),
    Use('mobile', ('one of many',), AT_224,
        f'{PROBES_LINK}, {IMAGES_LINK}, [export](deploy.md#every-attention)', images=True),
)  # fmt: skip
PAGE_TEXT = """\
# Which attention should I take?

For people who choose an attention. [The table](#take-this-if) names one for each of six uses.
`python .dev_scripts/make_which_attention.py` writes this page from [the probes'
log](logs/probes.jsonl) and [the log of costs](logs/compare_attentions.json).

![Accuracy of each attention on each probe, its cost, and what it can](images/probes.png)

A probe is a small task that asks one thing of an attention: blue solves it, red guesses, and – was
not run. Top-1 is that of small models [trained here](attention_comparison.md); darker is higher.
Costs are ms of a forward pass of one image and MB of a training pass, in
`LaplacianFormer-micro` on one CPU thread; a darker cell costs more. Every attention takes maps of
any size and [exports to ONNX](deploy.md#every-attention). *Export: partly*: the size of its windows
is fixed. *Any size: partly*: some of its weights are resized if a model of another size loads them.
A mask hides tokens, such as padding.

## Take this if

The table has the cheapest attentions by [the log](logs/compare_attentions.json), each with its
cost. Each of them solves the probes: it is at least 90 % of the way from a guess to a perfect
answer. *Textures* and *Fashion-MNIST*: its top-1 is at most {seeds_differ} points below the best.
Three seeds of one attention may differ from three others by as much.

{advice}

A `type` is the name and `Attention`, such as `SANAAttention`; `LiteMLA` is one as it is. We chose
the probes of each use, and trained no model on its data. The table leaves out attentions that we
did not run.

## What else the probes say

- **Do they predict accuracy on images? {verdict}** [Rank
  correlations](probes.md#does-a-probe-predict-images).
- **`LaplacianFormer` with its 49 landmarks does not recall single tokens.** More landmarks or the
  Gaussian kernel do. [Why, and what to
  change](probes.md#what-the-probes-mean-for-laplacianformer).
"""
PROBES_TEXT = """\
# The probes

For people who want to know what stands behind [the heat map](which_attention.md).
`python .dev_scripts/make_which_attention.py` writes this page from [the log](logs/probes.jsonl).

{probes}

{training}

{missing}

## The largest task

{largest}

## Does a probe predict images?

{prediction}

## What the probes mean for LaplacianFormer

{laplacian}

## Run it again

```bash
python tools/analysis_tools/probe_attentions.py --list
python tools/analysis_tools/probe_attentions.py --out docs/logs/probes.jsonl --seeds 0 1 2  # adds
python .dev_scripts/make_which_attention.py
```
"""


def plain(header: List[str], rows: List[List[str]]) -> str:
    return markdown(header, rows).replace('---:', '---')


def titles_of(table: Table) -> List[str]:
    return [column.title for column in table.columns]


def facts_of(attn_cfg: dict, name: str) -> Dict[str, float]:
    """The degree from 0 to 1 to which an attention has each ability."""
    small, large = (
        MODELS.build(dict(attn_cfg, embed_dims=32, num_heads=2, input_resolution=(side, side)))
        for side in (8, 16)
    )
    shapes = [{key: x.shape for key, x in m.state_dict().items()} for m in (small, large)]
    return {
        'export': 0.5 if name in WINDOWS else 1.0,
        'any size': 1.0 if shapes[0] == shapes[1] else 0.5,
        'mask': float(small.accepts_mask),
    }


def spelled(name: str, table: Table) -> str:
    """The name of an attention with its options as a config has them."""
    options = {k: v for k, v in table.study.attentions[name].items() if k != 'type'}
    return ' with '.join(
        [name.partition(',')[0], *(f'`{option}={value!r}`' for option, value in options.items())]
    )


def advice(
    table: Table, costs: Dict[str, Dict[str, float]], images: Dict[str, Dict[str, float]]
) -> str:
    """For each use, the cheapest attentions that solve its probes."""
    titles, rows = titles_of(table), []
    seen = {  # the attentions that are as good as the best, but for what seeds do
        name
        for name in table.rows
        if all(images[of].get(name, 0) >= max(images[of].values()) - points
               for of, points in SEEDS_DIFFER.items())
    }  # fmt: skip
    for use in USES:
        numbers = [titles.index(title) for title in use.columns]
        able = {
            name: [costs[name][cost] for cost in use.costs]
            for name in table.rows
            if all((table.level(name, n) or 0) >= SOLVED for n in numbers)
            and (not use.images or name in seen)
            and set(use.costs) <= set(costs.get(name, {}))
        }
        cheapest = sorted(able, key=able.__getitem__)[:NAMED]
        named = [
            f'{spelled(name, table)} ({", ".join(f"{c:.0f}" for c in able[name])})'
            for name in cheapest
        ]
        must = '; '.join([*use.columns, *(SEEDS_DIFFER if use.images else ())])
        take = ', '.join(named) or 'none'
        rows.append([use.name, must, ', '.join(use.costs), take, use.evidence])
    return plain(['use', 'must solve', 'cost', 'take', 'evidence'], rows)


def prediction_section(table: Table, images: Dict[str, Dict[str, float]]) -> Tuple[str, str]:
    """The verdict in a word, and rank correlations of the probes with accuracies on images."""
    rows, certain, all_of, strongest = [], [], 0, 0.0
    for number, title in enumerate(titles_of(table)):
        levels = {name: table.level(name, number) for name in table.rows}
        # Smaller differences are those between seeds, and near chance those of the test maps.
        probe = {name: round(v, 1) for name, v in levels.items() if v is not None}
        cells = []
        for target, scores in images.items():
            found = correlate(probe, scores)
            if found is None:
                cells.append(MISSING)
                continue
            all_of += 1
            text = f'{found.rho:.2f} ({found.low:.2f} to {found.high:.2f}), {found.attentions}'
            cells.append(text.replace('-', '−'))
            if found.certain:
                rho = f'{found.rho:.2f}'.replace('-', '−')
                certain.append(f'{title} with {target} ({rho})')
                strongest = max(strongest, abs(found.rho))
        rows.append([title, *cells])
    which = ['; '.join(certain)]
    leave = ': '.join([f'{len(certain)} of {all_of} intervals leave out 0', *filter(None, which)])
    verdict = 'Some do.' if strongest >= STRONG else 'Hardly.' if certain else 'No.'
    intro = (
        "Spearman's rank correlation over attentions, with a 95 % interval by bootstrap, and the "
        'number of attentions. Accuracies of probes are in tenths, as smaller differences mean '
        'nothing. *Textures* and *Fashion-MNIST* were trained here. The others are [published '
        'top-1 on ImageNet](../configs/probes/published_top1.yml).'
    )
    end = (
        f'**{verdict}** {leave}. By chance, {0.05 * all_of:.1f} would. Where a correlation is '
        'negative, attentions that solve the probe have the lower top-1. With six to eleven '
        'attentions, an interval says little. A probe tells what an attention can do, and not how '
        'accurate it is on images.'
    )
    return verdict, f'{filled(intro)}\n\n{plain(["probe", *images], rows)}\n\n{filled(end)}'


def probes_section(table: Table) -> str:
    """A row for each probe, with its task, chance and paper."""
    rows = []
    first = {column.probe['type']: n for n, column in reversed(list(enumerate(table.columns)))}
    for number in sorted(first.values()):
        seen = table.columns[number].probe
        task = ' '.join((PROBES.get(seen['type']).__doc__ or '').split('\n\n')[0].split())
        size = ', '.join(f'{name} {value}' for name, value in seen.items() if name != 'type')
        probe, (seeds, rates) = build_probe(seen), behind(table, number)
        levels = f'{100 * probe.chance:.0f}, {100 * probe.perfect:.0f}'
        name = table.columns[number].title
        rows.append([name, task, size, levels, f'`{probe.knob}`', probe.paper, seeds, rates])
    header = ['probe', 'task', 'here', 'chance, perfect, %', 'option', 'paper', 'seeds',
              'rates']  # fmt: skip
    return plain(header, rows)


def training_section(table: Table) -> str:
    """How the models were trained, and how sure the figures are."""
    study = table.study
    return (
        f'A model has {study.model["depth"]} blocks with {study.model["embed_dims"]} channels and '
        f'{study.model["num_heads"]} heads, and learns for at most {study.schedule["steps"]} steps '
        f'of {study.schedule["batch_size"]} maps\nof 8 x 16 tokens. So a low accuracy can also '
        'mean that an attention learns slowly. Attentions have\ntheir default options. In *offset* '
        'they get rotary positions and a 3 x 3 convolution too, if they\nhave these options.\n\n'
        '**How sure.** *Seeds* counts the seeds. *Rates* counts the learning rates of the cells '
        'that are not\nsolved; the best rate of the first seed counts. The plan is 3 of each. A '
        'run learns a task or does\nnot, so a cell is the median of its seeds. Trust a difference '
        'between blue and red, and none between\ntwo similar colours.'
    )


def largest_section(table: Table) -> str:
    """The attentions by the largest task of a type that they reach."""
    rows = []
    for kind, unit in (('recall', 'pairs'), ('one_of_many', 'candidates')):
        reached = largest(table, kind)
        least, *_ = (column.probe[unit] for column in table.columns if column.probe['type'] == kind)
        for value in sorted({value or 0 for value in reached.values()}, reverse=True):
            names = [name for name in reached if (reached[name] or 0) == value]
            size = f'{value} {unit}' if value else f'fewer than {least} {unit}'
            rows.append([f'{NAMES[kind]}, {size}', '; '.join(names)])
    rates = {behind(table, number)[1] for number in range(len(table.columns))} - {MISSING}
    of_rates = 'the best of three rates' if rates == {'3'} else 'mostly one rate'
    intro = (
        'The most pairs, or candidates, of which an attention answers 0.9 right. A larger task was '
        f'tried after all smaller ones, with one seed and {of_rates}. Missing attentions were not '
        'run to their end. A task with fewer pairs teaches fewer answers a step.'
    )
    return f'{filled(intro)}\n\n{plain(["largest task", "attentions"], rows)}'


def missing_section(found: Dict[str, Table]) -> str:
    """The attentions and probes without results."""
    table, parts = found['attentions'], []
    for number, column in enumerate(table.columns):
        names = [name for name, row in table.rows.items() if row[number] is None]
        if names and column.scale == '1':
            which = ', '.join(names) if len(names) <= 3 else f'{len(names)} attentions'
            parts.append(f'{column.title}: {which}')
    lines = ['An attention without any run is not in the picture.']
    if parts:
        lines.append(f'Cells without a run: {"; ".join(parts)}.')
    slow = found['landmarks'].rows.get('Skyformer, 49 pooled', [None])[0]
    if slow is not None and slow.steps < table.study.schedule['steps']:
        lines.append(
            f'A run of Skyformer takes more than two minutes: its recall is of step '
            f'{slow.steps:.0f}.'
        )
    return filled(' '.join(lines))


def on_images() -> Dict[str, Dict[str, float]]:
    """Top-1 of models that were trained here, by data set and attention."""
    here = trained_here(COMPARED)
    return {'textures': here['textures'], 'Fashion-MNIST': here['fashion']}


def pages(
    found: Dict[str, Table],
    costs: Dict[str, Dict[str, float]],
    here: Dict[str, Dict[str, float]],
) -> Dict[Path, str]:
    """Both pages whole, with the accuracies of models that were trained here."""
    main = found['attentions']
    verdict, prediction = prediction_section(main, {**here, **published()})
    return {
        PAGE: PAGE_TEXT.format(
            seeds_differ=' and '.join(f'{points:g}' for points in SEEDS_DIFFER.values()),
            advice=advice(main, costs, here),
            verdict=verdict,
        ),
        PROBES_PAGE: PROBES_TEXT.format(
            probes=probes_section(main),
            training=training_section(main),
            missing=missing_section(found),
            largest=largest_section(found['largest']),
            prediction=prediction,
            laplacian=laplacian_section(found),
        ),
    }


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('--check', action='store_true', help='only say whether they are in step')
    args = parser.parse_args()
    found, costs = tables(read_results(LOG), read_studies()), read_costs(COMPARED)
    here = on_images()
    texts = pages(found, costs, here)
    if args.check:
        late = [path.name for path, text in texts.items()
                if not (path.is_file() and path.read_text() == text)]  # fmt: skip
        if late:
            sys.exit(f'{late} are not in step; run python .dev_scripts/{Path(__file__).name}')
        return
    for path, text in texts.items():
        path.write_text(text)
    table = found['attentions']
    facts = {name: facts_of(table.study.attentions[name], name) for name in table.rows}
    draw(table, PICTURE, here, costs, facts)
    print(f'wrote {PAGE.name}, {PROBES_PAGE.name} and {PICTURE.name} in {DOCS.name}')


if __name__ == '__main__':
    main()
