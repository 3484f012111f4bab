"""Write docs/which_attention.md, docs/probes.md and their picture from the logs.

A section of docs/attention_comparison.md is made, too.

The logs are those of the probes and of the comparison of attentions.

Its advice is computed: of the attentions that solve the probes of a use, it names the cheapest.

Examples:
  python .dev_scripts/make_which_attention.py
  python .dev_scripts/make_which_attention.py --check   # exit status 1 if a page is not in step
"""

import sys
from pathlib import Path
from typing import Dict, List, NamedTuple, Tuple

from fashion_options import fashion_section, with_section
from laplacian_recall import laplacian_section
from mmengine.registry import MODELS
from probe_sections import (
    filled,
    larger_section,
    largest_section,
    missing_section,
    percent,
    pilot_section,
    plain,
    probes_section,
    titles_of,
    training_section,
)

from mmlaplace.commands.command_line import ToolParser
from mmlaplace.lab.probes.prediction import TrainedHere, correlate, published, trained_here
from mmlaplace.lab.probes.report import (
    MISSING,
    Table,
    behind_the_best,
    draw,
    read_costs,
    tables,
)
from mmlaplace.lab.probes.results import read_results
from mmlaplace.lab.probes.study import read_studies

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / 'docs'
PAGE, PROBES_PAGE = DOCS / 'which_attention.md', DOCS / 'probes.md'
COMPARISON = DOCS / 'attention_comparison.md'  # of which this writes one section
PICTURE = DOCS / 'images/probes.png'
LOG, COMPARED = DOCS / 'logs/probes.jsonl', DOCS / 'logs/compare_attentions.json'
SOLVED = 0.9  # of the way from a guess to a perfect answer
NAMED = 4  # attentions for each use
FEW = 0.1  # of the answers
IMAGES = {'textures': 'textures', 'fashion': 'Fashion-MNIST'}  # names of studies on the page
STRONG = 0.5  # a rank correlation
UNSURE = '†'  # not with each seed
WINDOWS = ('Neighborhood', 'Reformer')  # their windows and buckets are fixed at export


class Use(NamedTuple):
    """A use of attentions.

    Attributes:
        name: Its name.
        columns: Titles of the columns that matter for it.
        costs: The costs that matter for it. The first decides.
        evidence: Links.
        images: Whether top-1 on images counts too.
        export: Whether it must export to ONNX with windows of any size.
    """

    name: str
    columns: Tuple[str, ...]
    costs: Tuple[str, ...]
    evidence: str
    images: bool = False
    export: bool = False


PROBES_LINK, IMAGES_LINK = '[probes](probes.md)', '[images](attention_comparison.md)'
AT_224, AT_1024 = ('ms 224²',), ('ms 1024²', 'MB 1024²')
USES = (
    Use('exact recall of single tokens', ('recall', 'noise'), AT_1024, PROBES_LINK),
    Use('small images', (), AT_224, IMAGES_LINK, images=True),
    Use('detection at 1024²', ('one of many', 'count, 4x map'), AT_1024, PROBES_LINK),
    Use('dense prediction', ('recall', 'count, 4x map'), AT_1024, PROBES_LINK),
    Use('sequences', ('recall', 'one of many'), AT_1024,
        f'{PROBES_LINK}; others on [Long Range Arena](lra.md)'),
    Use('mobile', (), AT_224, f'{IMAGES_LINK}, [export](deploy.md#every-attention)', images=True,
        export=True),
)  # fmt: skip
PAGE_TEXT = """\
# Which attention should I take?

For people who choose an attention. [The table](#take-this-if) names some for each of six uses.
`python .dev_scripts/make_which_attention.py` writes this page from [the probes'
log](logs/probes.jsonl) and [the log of costs](logs/compare_attentions.json).

![Accuracy of each attention on each probe, its cost, and what it can](images/probes.png)

A probe is a small task that asks one thing of an attention: blue solves it, red guesses, – was not
run, and seeds of cells with a star disagree. Top-1 is the mean of three small models [trained
here](attention_comparison.md) with 16 landmarks; darker is closer to the best, by the points that
seeds differ. Costs are ms of a forward pass of one image and MB of a training pass, in
`LaplacianFormer-micro` on one CPU thread; a darker cell costs more. Probes and costs have each
attention's default options, such as 49 landmarks. Every attention takes maps of any size and
[exports to ONNX](deploy.md#every-attention). *Export: partly*: the size of its windows is fixed.
*Any size: partly*: some of its weights are resized if a model of another size loads them. A mask
hides tokens, such as padding.

## Take this if

The table has the cheapest attentions by [the log](logs/compare_attentions.json), each with its
cost. Each of them solves the probes: the median of its seeds is at least 90 % of the way from a
guess to a perfect answer. With † not every seed is, and these come last. *Textures* and
*Fashion-MNIST*: its top-1 is at most {seeds_differ} points below the best. Three seeds of one
attention may differ from three others by as much.

{advice}

{limits}

A `type` is the name and `Attention`, such as `SANAAttention`; `LiteMLA` is one as it is. We chose
the probes of each use, and trained no model on its data. The table leaves out attentions that we
did not run.

## What else the probes say

- **Do they predict accuracy on images? {verdict}** [Rank
  correlations](probes.md#does-a-probe-predict-images).
- **`LaplacianFormer` with its 49 landmarks hardly recalls single tokens**, and learns it slowly.
  More landmarks or the Gaussian kernel do. [Why, and what to
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

## Larger maps, near and far, and more tokens

{larger}

## Does a probe predict images?

{prediction}

## What the probes mean for LaplacianFormer

{laplacian}

## The pilot

{pilot}

## Run it again

```bash
python tools/analysis_tools/probe_attentions.py --list
python tools/analysis_tools/probe_attentions.py --out docs/logs/probes.jsonl --seeds 0 1 2  # adds
python .dev_scripts/make_which_attention.py
```
"""


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
    table: Table,
    costs: Dict[str, Dict[str, float]],
    images: Dict[str, TrainedHere],
    facts: Dict[str, Dict[str, float]],
) -> str:
    """For each use, the cheapest attentions that solve its probes, first those with each seed."""
    titles, rows = titles_of(table), []
    seen = {  # the attentions that are as good as the best, but for what seeds do
        name
        for name in table.rows
        if all(name in made.top1 and behind_the_best(made, name) <= 1 for made in images.values())
    }
    for use in USES:
        numbers = [titles.index(title) for title in use.columns]
        able = {
            name: [costs[name][cost] for cost in use.costs]
            for name in table.rows
            if all((table.level(name, n) or 0) >= SOLVED for n in numbers)
            and (not use.images or name in seen)
            and (not use.export or facts[name]['export'] == 1)
            and set(use.costs) <= set(costs.get(name, {}))
        }
        unsure = {
            name for name in able if not all(table.solved_by_all(name, n, SOLVED) for n in numbers)
        }
        cheapest = sorted(able, key=lambda name: (name in unsure, able[name]))[:NAMED]
        named = [
            f'{spelled(name, table)}{UNSURE * (name in unsure)} '
            f'({", ".join(f"{c:.0f}" for c in able[name])})'
            for name in cheapest
        ]
        must = '; '.join([*use.columns, *(images if use.images else ()), *['export'] * use.export])
        take = ', '.join(named) or 'none'
        rows.append([use.name, must, ', '.join(use.costs), take, use.evidence])
    return plain(['use', 'must solve', 'cost', 'take', 'evidence'], rows)


def limits_section(found: Dict[str, Table]) -> str:
    """What attentions recall on a larger map."""

    def listed(study: str) -> str:
        table = found[study]
        recalls = {name: table.accuracy(name, 0) or 0 for name in table.rows}
        best_first = sorted(recalls, key=recalls.__getitem__, reverse=True)
        able = [f'{name} {percent(recalls[name])}' for name in best_first if recalls[name] >= FEW]
        others = max((recall for recall in recalls.values() if recall < FEW), default=None)
        return '; '.join([*able, *([f'others at most {percent(others)}'] * (others is not None))])

    return filled(
        '**Recall has a limit.** The probes store 16 pairs on 128 tokens. With 16 pairs on [512 '
        'tokens](probes.md#larger-maps-near-and-far-and-more-tokens), with one seed, '
        f'{len(found["large"].rows)} attentions have this % of the answers right: '
        f'{listed("tokens_512")}. With 64 pairs: {listed("large")}. With 64 on 2,048 tokens, in '
        f'runs of two minutes at most: {listed("larger")}. Longer training may raise these. But a '
        'sum of fixed size, as linear attentions have it, holds only so many pairs.'
    )


def prediction_section(table: Table, images: Dict[str, Dict[str, float]]) -> Tuple[str, str]:
    """The verdict in a word, and rank correlations of the probes with accuracies on images."""
    rows, certain, all_of, strongest = [], [], 0, 0.0
    for number, title in enumerate(titles_of(table)):
        levels = {name: table.level(name, number) for name in table.rows}
        probe = {name: level for name, level in levels.items() if level is not None}
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
    by_chance = 0.05 * all_of
    verdict = 'Some do.' if strongest >= STRONG else 'Hardly.'
    if len(certain) <= by_chance:
        verdict = 'No.'
    intro = (
        "Spearman's rank correlation over attentions, with a 95 % interval by bootstrap, and the "
        'number of attentions. *Textures* and *Fashion-MNIST* were trained here. The others are '
        '[published top-1 on ImageNet](../configs/probes/published_top1.yml).'
    )
    end = (
        f'**{verdict}** {leave}. By chance, {by_chance:.1f} would. Where a correlation is '
        'negative, attentions that solve the probe have the lower top-1. With six to eleven '
        'attentions, an interval says little. A probe tells what an attention can do, and not how '
        'accurate it is on images.'
    )
    return verdict, f'{filled(intro)}\n\n{plain(["probe", *images], rows)}\n\n{filled(end)}'


def on_images() -> Dict[str, TrainedHere]:
    """Accuracies of models that were trained here, by data set."""
    here = trained_here(COMPARED)
    return {title: here[study] for study, title in IMAGES.items()}


def pages(
    results: List[dict],
    costs: Dict[str, Dict[str, float]],
    here: Dict[str, TrainedHere],
    facts: Dict[str, Dict[str, float]],
) -> Dict[Path, str]:
    """Both pages whole.

    Args:
        results: Runs of probes.
        costs: By attention.
        here: Accuracies of models that were trained here, by data set.
        facts: Degrees of abilities by attention.
    """
    found = tables(results, read_studies())
    main = found['attentions']
    top1 = {title: made.top1 for title, made in here.items()}
    verdict, prediction = prediction_section(main, {**top1, **published()})
    return {
        PAGE: PAGE_TEXT.format(
            seeds_differ=' and '.join(f'{made.seeds_differ:.1f}' for made in here.values()),
            advice=advice(main, costs, here, facts),
            limits=limits_section(found),
            verdict=verdict,
        ),
        PROBES_PAGE: PROBES_TEXT.format(
            probes=probes_section(main),
            training=training_section(results, main),
            missing=missing_section(found),
            largest=largest_section(found['largest']),
            larger=larger_section(found),
            prediction=prediction,
            laplacian=laplacian_section(found),
            pilot=pilot_section(found),
        ),
        COMPARISON: with_section(COMPARISON, fashion_section(COMPARED)),
    }


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('--check', action='store_true', help='only say whether they are in step')
    args = parser.parse_args()
    results, costs, here = read_results(LOG), read_costs(COMPARED), on_images()
    table = tables(results, read_studies())['attentions']
    facts = {name: facts_of(cfg, name) for name, cfg in table.study.attentions.items()}
    texts = pages(results, costs, here, facts)
    if args.check:
        late = [path.name for path, text in texts.items()
                if not (path.is_file() and path.read_text() == text)]  # fmt: skip
        if late:
            sys.exit(f'{late} are not in step; run python .dev_scripts/{Path(__file__).name}')
        return
    for path, text in texts.items():
        path.write_text(text)
    draw(table, PICTURE, here, costs, facts)
    print(f'wrote {", ".join(path.name for path in [*texts, PICTURE])} in {DOCS.name}')


if __name__ == '__main__':
    main()
