"""Linearize a trained model: put another attention in the place of softmax, and let it imitate it.

All weights that fit are kept. Then each new attention alone learns the output of the old one, given
the old one's input. After that the whole backbone learns the old maps, and a classifier the old
logits. The images are those of the config's train_dataloader; labels are used by --loss task alone.
An interrupted run goes on from its last state.

A hybrid keeps some blocks of softmax: those of --keep-blocks, or those whose loss does the most
harm, which is measured block by block (--keep), or as many of these as a budget of time allows
(--budget). The numbers of blocks go through all stages, from 0. With --metric the harm is the loss
of that score of the model's own head, of several blocks at once, on images of val_dataloader.

With --for the backbone goes into a detector or segmentor. The first argument is then the name of
released weights too, timm://NAME or mmlaplace://NAME, and the checkpoint those weights. The neck
and the channels follow from the backbone. The head is random, unless the checkpoint has it.

It writes a config, a checkpoint and a log into the work directory. The config and the checkpoint
are for tools/test.py, and for tools/train.py, by which one can fine-tune them. A config with a
random head is for tools/train.py.

Examples:
  python tools/linearize.py timm://vit_small_patch16_dinov3 --attention AgentAttention \\
      --for mmlaplace::heads/plain/mask-rcnn_simple-pyramid_1x_coco.py --budget 0.6 --image-size 1024
  python tools/linearize.py CONFIG CHECKPOINT --attention FLattenAttention
  python tools/linearize.py CONFIG CHECKPOINT --attention LaplacianAttention \\
      --options num_landmarks=16 --layer-steps 2000 --whole-steps 4000 --lr 5e-4
  python tools/linearize.py CONFIG timm://vit_small_patch14_dinov2 --backbone-only \\
      --attention AgentAttention --budget 0.6 --image-size 1024
  python tools/linearize.py DETECTOR CHECKPOINT --attention AgentAttention --budget 0.6 \\
      --metric coco/bbox_mAP --beam 2
  python tools/linearize.py CONFIG CHECKPOINT --attention AgentAttention:0-3 --attention InLineAttention:4-8 \\
      --options AgentAttention.num_landmarks=49 --loss task
  bash tools/torchrun.sh 8 tools/linearize.py CONFIG CHECKPOINT --attention FLattenAttention --launcher pytorch
"""  # noqa: E501

import hashlib
import shlex
from itertools import islice
from pathlib import Path
from statistics import median

import torch
from mmengine import dist
from mmengine.config import Config, DictAction
from mmengine.registry import DefaultScope
from mmengine.runner import Runner

from mmlaplace.analysis.measuring import interleave, model_job
from mmlaplace.checkpoints import (
    UnsafeCheckpointError,
    load_weights,
    read_state_dict,
    write_weights,
)
from mmlaplace.checkpoints.of_timm import is_of_timm
from mmlaplace.checkpoints.released import is_name
from mmlaplace.commands.command_line import (
    ToolParser,
    check_backbone,
    positive,
    read_config,
    without_hint,
    write_json,
)
from mmlaplace.commands.refusals import first_checks
from mmlaplace.commands.terminal import command
from mmlaplace.commands.toolbox_scripts import end_process_groups
from mmlaplace.engine.first_checks import FirstCheckError, check_data, check_maps, is_on
from mmlaplace.lab.figures import new_figure, save
from mmlaplace.linearizing import (
    ImagesAlone,
    Schedule,
    Scorer,
    TaskSearch,
    data_loader,
    host_of,
    hybrids,
    losses,
    named_host,
    softmax_places,
    swapping,
)
from mmlaplace.linearizing.distilling import distill, image_batches, weights_sha256
from mmlaplace.model_zoo import build_model, import_toolbox
from mmlaplace.models.initialising import initialise
from mmlaplace.other_backbone import on_backbone
from mmlaplace.toolboxes import image_channels
from mmlaplace.writing import whole_file

WINDOWS = {'window_size', 'global_blocks'}


def parse_arguments():
    parser = ToolParser(__doc__)
    parser.add_trained_model('classifier, detector or segmentor with softmax', named=True)
    parser.add_argument(
        '--for',
        dest='head',
        metavar='CONFIG',
        help='a detector or segmentor that gets the backbone: a path, or such as '
        'mmlaplace::heads/retinanet_fpn_1x_coco.py or mmdet::…; CONFIG may then be the name '
        'timm://NAME or mmlaplace://NAME, with its own weights unless CHECKPOINT is given',
    )
    parser.add_argument(
        '--data',
        metavar='CONFIG',
        help='of any toolbox, whose train_dataloader has the images, without labels; default: '
        'that of --for, or else of the model',
    )
    parser.add_argument(
        '--backbone-only',
        action='store_true',
        help='for a checkpoint without a head, such as DINOv2',
    )
    parser.add_argument(
        '--attention',
        required=True,
        metavar='NAME[:BLOCKS]',
        action='append',
        help='the new one, such as FLattenAttention, or AgentAttention:0-3,5; '
        'repeat it for several, and other blocks stay',
    )
    parser.add_argument(
        '--options',
        nargs='+',
        action=DictAction,
        default={},
        metavar='KEY=VALUE',
        help='of the new attention; NAME.KEY=VALUE of one of several',
    )
    parser.add_argument(
        '--inherit',
        choices=swapping.ANEW,
        default='all',
        help='weights that linear blocks take over; what they do not starts anew, to see what '
        'copying is worth; default: %(default)s',
    )
    default = Schedule()
    for name in ('layer_steps', 'whole_steps', 'lr', 'loss_weight'):
        value = getattr(default, name)
        parser.add_argument(
            f'--{name.replace("_", "-")}',
            type=type(value),
            default=value,
            help='default: %(default)s',
        )
    parser.add_argument(
        '--loss',
        choices=losses.LOSSES,
        default=default.loss,
        help='outputs of attentions, or of blocks, before maps and logits; or the '
        'task with labels + loss-weight x attentions',
    )
    parser.add_argument(
        '--accumulate',
        type=positive,
        default=1,
        metavar='BATCHES',
        help='of a step; default: %(default)s',
    )
    parser.add_argument('--amp', action='store_true', help='train in bf16 or fp16')
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument(
        '--keep',
        type=positive,
        metavar='N',
        help='blocks of softmax that stay, by the measured harm',
    )
    kept.add_argument(
        '--keep-blocks',
        type=int,
        nargs='+',
        metavar='NUMBER',
        help='the blocks of softmax that stay',
    )
    kept.add_argument(
        '--budget',
        type=float,
        metavar='SHARE',
        help='largest time of the hybrid, as a share of the time before',
    )
    parser.add_image_size(
        former='--size',
        type=positive,
        metavar='PIXELS',
        help='side of the timed images; default: that of the config',
    )
    parser.add_argument(
        '--search-steps',
        type=int,
        default=50,
        metavar='STEPS',
        help='before a harm is measured; default: %(default)s',
    )
    parser.add_argument(
        '--metric',
        metavar='NAME',
        help='of the val_evaluator, such as coco/bbox_mAP, mIoU or accuracy/top1: blocks are '
        'chosen by this score of the trained head, in place of the change of maps',
    )
    parser.add_argument(
        '--metric-images',
        type=positive,
        default=200,
        metavar='N',
        help='of val_dataloader, on which --metric is measured; default: %(default)s',
    )
    parser.add_argument(
        '--beam',
        type=positive,
        default=1,
        metavar='WIDTH',
        help='sets of blocks that the search by --metric keeps at each step; default: %(default)s',
    )
    parser.add_argument('--seed', type=int, default=0, help='default: %(default)s')
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument(
        '--launcher',
        choices=('none', 'pytorch', 'slurm', 'mpi'),
        default='none',
        help='of several processes',
    )
    parser.add_argument('--work-dir', type=Path, help='default: work_dirs/CONFIG_ATTENTION')
    args = parser.parse_args()
    options = Config()
    options.merge_from_dict(args.options)  # names with dots become dicts
    args.options = options.to_dict()
    args.names = list(dict.fromkeys(each.partition(':')[0] for each in args.attention))
    named = is_name(args.config)
    if named and args.head is None:
        parser.error(
            f'{args.config} is a backbone; --for names the detector or segmentor that gets it, '
            'such as mmlaplace::heads/plain/mask-rcnn_simple-pyramid_1x_coco.py'
        )
    if args.checkpoint is None and not named:
        parser.error(
            f'{args.config} needs a checkpoint with its weights behind it, which only timm://NAME '
            'and mmlaplace://NAME have themselves'
        )
    if args.head and args.loss == 'task':
        parser.error(
            f'--loss task needs a trained head, and that of --for {args.head} is not; train '
            'linearized.py by tools/train.py after this, or take another --loss'
        )
    if args.data and args.loss == 'task':
        parser.error(f'--loss task reads labels, and --data {args.data} gives images alone')
    if args.work_dir is None:
        parts = [stem(each) for each in (args.config, args.head) if each]
        args.work_dir = Path('work_dirs', '_'.join([*parts, *args.names]))
    if min(args.layer_steps, args.whole_steps, args.search_steps) < 0 or args.lr <= 0:
        parser.error(
            f'steps must not be negative and --lr must be positive, got {args.layer_steps}, '
            f'{args.whole_steps}, {args.search_steps} and {args.lr}'
        )
    if args.loss_weight < 0 or (args.loss_weight != default.loss_weight and args.loss != 'task'):
        parser.error(
            f'--loss-weight {args.loss_weight} must not be negative, and is for --loss task alone'
        )
    searched = parser.get_default('search_steps')
    if args.search_steps != searched and args.keep is None and args.budget is None:
        parser.error(f'--search-steps {args.search_steps} is for --keep or --budget; give one too')
    if args.backbone_only and args.loss == 'task':
        parser.error('--loss task needs a head; take another --loss, or no --backbone-only')
    if args.keep_blocks and any(':' in each for each in args.attention):
        parser.error('--attention NAME:BLOCKS says which blocks stay; leave out --keep-blocks')
    if args.image_size and args.keep is None and args.budget is None:
        parser.error(
            f'--image-size {args.image_size} is for --keep or --budget; give one of them too'
        )
    if args.budget is not None:
        with parser.refusing(ValueError):
            hybrids.check_budget(args.budget)
    check_metric(parser, args)
    return parser, args


def check_metric(parser, args):
    """End the tool if there is no search, or no head, for --metric."""
    if args.metric is None:
        for name in ('metric_images', 'beam'):
            value = getattr(args, name)
            if value != parser.get_default(name):
                parser.error(
                    f'--{name.replace("_", "-")} {value} is for --metric; give one, such as '
                    'coco/bbox_mAP'
                )
    elif args.keep is None and args.budget is None:
        parser.error(f'--metric {args.metric} is for --keep or --budget; give one of them too')
    elif args.backbone_only:
        parser.error(f'--metric {args.metric} needs a trained head; leave out --backbone-only')


def stem(name):
    """The last part of the path or name of a config."""
    return name.rpartition('/')[2].removesuffix('.py')


def softmax_model(parser, args):
    """The config of the model with softmax: that of a file, or a head's on a backbone."""
    if args.head is None:
        images = () if args.data else ('train_dataloader',)
        return read_config(args.config, 'default_scope', 'model.backbone', *images)
    with parser.refusing(ImportError, ValueError):
        if is_name(args.config):
            host = named_host(args.config)
        else:
            host = host_of(read_config(args.config, 'model.backbone'))
    head = read_config(args.head, 'default_scope', 'model.backbone')
    with parser.refusing(ImportError, ValueError, FirstCheckError, start=f'{args.head}: '):
        cfg = on_backbone(head, host.backbone, host.normalization)
        check_maps(cfg)
    args.checkpoint = args.checkpoint or host.checkpoint
    return cfg


def image_config(parser, args, cfg):
    """The config that has the images, with a train_dataloader, and what normalises these."""
    name = args.data or args.head or args.config
    data = read_config(args.data) if args.data else cfg
    with parser.refusing(ImportError, ValueError):
        data.train_dataloader = data_loader(data, name)
        data.setdefault('default_scope', cfg.default_scope)
        import_toolbox(data.default_scope)
    if not args.data:
        return data, None
    model = cfg.model.get('data_preprocessor') or cfg.get('data_preprocessor') or {}
    return data, ImagesAlone(model).to(args.device)


def has_head(model, checkpoint):
    """Whether a checkpoint has weights of a model's heads, behind its backbone and neck."""
    if is_of_timm(checkpoint):
        return False
    heads = {name for name, _ in model.named_children()} - {'backbone', 'neck', 'data_preprocessor'}
    return any(name.partition('.')[0] in heads for name in read_state_dict(checkpoint))


def swapped(cfg, old, args, keep=()):
    """The config and the model of a new attention, and the names of the attentions that differ."""
    new_cfg, places = Config(cfg.to_dict()), softmax_places(old.backbone)
    plan = swapping.attention_plan(list(places), args.attention, args.options)
    backbone = swapping.linear_config(cfg.model.backbone.to_dict(), old.backbone, plan, keep=keep)
    init_cfg = backbone.get('init_cfg')
    if isinstance(init_cfg, dict) and init_cfg.get('type') == 'Pretrained':
        del backbone['init_cfg']  # the weights with softmax
    new_cfg.model.backbone = backbone
    free = Config(new_cfg.to_dict())
    if 'frozen_stages' in backbone:
        free.model.backbone.frozen_stages = -1  # or they would not be trained here
    torch.manual_seed(args.seed)
    new = build_model(free)
    initialise(new)
    if args.backbone_only:
        new.head = None
    swaps = {place: i for place, i in places.items() if place in plan and place not in keep}
    return new_cfg, new, swaps


def take_over(new, old, linear, inherit):
    """Copy the weights that fit into a new model. Returns the share of the backbone's."""
    new.load_state_dict(
        {k: v for k, v in old.state_dict().items() if not k.startswith('backbone.')}, strict=False
    )
    return swapping.keep_weights(new.backbone, old.backbone, linear, inherit).share


class SearchOfTask:
    """Plans by --metric, with attentions that have learned, in a trained model with its head.

    What is scored goes beside the harms, into ``scores.json`` of the work directory.
    """

    def __init__(self, args, cfg, old, learned, settings):
        self.model, self.learned = old, learned
        self.path = args.work_dir / 'scores.json'
        self.scorer = Scorer(cfg, args.metric, args.metric_images)
        self.settings = dict(
            settings,
            metric=args.metric,
            images=self.scorer.images,
            search_steps=args.search_steps,
            lr=args.lr,
            amp=args.amp,
            weights_sha256=weights_sha256(old),
        )
        scores = hybrids.of_first_process(hybrids.read_blocks(self.path, self.settings))
        self.scores = scores.setdefault('scores', {})
        self.plan = TaskSearch(self.score, args.beam, self.scores, self.write)
        self.plan.score(frozenset())  # a metric that is not there ends the tool before all harms

    def score(self, linear):
        parts = {place: self.learned[place] for place in linear}
        with hybrids.put_all(self.model.backbone, parts):
            return self.scorer(self.model)

    def write(self):
        content = dict(settings=self.settings, scores=self.scores)
        dist.master_only(write_json)(self.path, content)


def hybrid(args, cfg, old, new, places, batches, settings):
    """As :func:`swapped`, with the blocks of softmax that --keep or --budget asks for."""
    places, backbone = list(places), old.backbone.eval()
    sides = (args.image_size, args.image_size) if args.image_size else backbone.img_size
    channels, device = image_channels(cfg.model.backbone), torch.device(args.device)
    sample = torch.randn(1, channels, *sides, device=device)
    count = hybrids.LEARN + hybrids.MEASURE
    learned, choice = None, {}
    if args.metric:
        learned = {}
        search = SearchOfTask(args, cfg, old, learned, settings)
        choice = dict(planner=search.plan)
    found = hybrids.measure_blocks(
        new.backbone.eval(),
        backbone,
        places,
        lambda: list(map(losses.images_of, islice(batches(0), count))),
        sample,
        args.work_dir / 'blocks.json',
        settings,
        args.search_steps,
        args.lr,
        amp=args.amp,
        budget=args.budget,
        learned=learned,
    )
    made = {}

    def time_of(keep):
        made[tuple(keep)] = swapped(cfg, old, args, keep)
        new = made[tuple(keep)][1].to(device)
        parts = dict(softmax=backbone, hybrid=new.backbone.eval())
        jobs = {name: model_job(part, sample, False) for name, part in parts.items()}
        seconds = {name: median(runs) for name, runs in interleave(jobs, 9, device).items()}
        return hybrids.of_first_process(seconds['hybrid'] / seconds['softmax'])

    plan, measured = hybrids.choose_measured(
        **found, measure=time_of, keep=args.keep, budget=args.budget, **choice
    )
    softmax = softmax_places(old.backbone)
    numbers = [n for n, place in enumerate(softmax) if place not in plan.linear]
    result = dict(
        keep_blocks=numbers, measured_time=measured, size=sides, **plan._asdict(), **found
    )
    if args.metric:
        result.update(metric=args.metric, metric_images=search.scorer.images, scores=search.scores)
    dist.master_only(write_json)(args.work_dir / 'hybrid.json', result)
    dist.master_only(draw_front)(plan, sides, args.metric, args.work_dir / 'hybrid.png')
    say(
        f'softmax stays in the blocks {numbers}; at {sides[0]} x {sides[1]} pixels the time is '
        f"{plan.time:.3f} of the softmax model's by the sum of the blocks, and {measured:.3f} as "
        'measured'
    )
    if args.metric:
        scores = [
            search.scorer.sign * search.plan.score(frozenset(one)) for one in ((), plan.linear)
        ]
        say(
            f'{args.metric} is {scores[0]:.4g} with softmax and {scores[1]:.4g} with this plan, on '
            f'{search.scorer.images} images and before the whole backbone learns'
        )
    return made[tuple(plan.keep)]


@dist.master_only
def say(text):
    """Print, in the first of several processes."""
    print(text)


def draw_front(plan, sides, metric, path):
    """A picture of harm over time: all choices on the way, and the plan."""
    figure, axes = new_figure(1, 1, (5, 3.5))
    axes.plot(*zip(*plan.path), 'o-', color='tab:gray', label='block by block')
    axes.plot(plan.time, plan.harm, '*', color='tab:red', markersize=14, label='chosen')
    axes.set(
        xlabel=f"time at {sides[0]} x {sides[1]} pixels / softmax model's",
        ylabel=f'loss of {metric}' if metric else 'sum of the harms',
    )
    axes.grid(alpha=0.3)
    axes.legend()
    save(figure, path)


def main() -> None:
    parser, args = parse_arguments()
    if args.launcher != 'none' and args.device == 'cpu':
        torch.distributed.init_process_group('gloo')  # as mmengine would ask for a GPU
    elif args.launcher != 'none':
        dist.init_dist(args.launcher)
    out = args.work_dir / 'linearized.pth'
    if out.exists():
        parser.error(f'{out} is there already; remove it, or take another --work-dir')
    cfg = softmax_model(parser, args)
    data, preprocessor = image_config(parser, args, cfg)
    torch.manual_seed(args.seed)
    check_backbone(cfg, args.config)
    text = cfg.pretty_text + (data.pretty_text if args.data else '')
    content = hashlib.sha256(text.encode()).hexdigest()
    old = build_model(cfg)
    settings = dict(
        config_sha256=content,
        attention=args.attention,
        options=args.options,
        seed=args.seed,
        inherit=args.inherit,
    )
    schedule = Schedule(
        **{name: getattr(args, name, value) for name, value in Schedule()._asdict().items()}
    )
    if args.amp and args.loss == 'task' and hasattr(old, 'roi_head'):
        parser.error('the ops of mmcv in a roi_head take no bf16; leave out --amp or --loss task')
    state = args.work_dir / 'state.pth'
    with parser.refusing(TypeError, ValueError, UnsafeCheckpointError):
        places = list(softmax_places(old.backbone))
        keep = swapping.softmax_blocks(places, args.keep_blocks or ())
        new_cfg, new, linear = swapped(cfg, old, args, keep)
        if args.keep is not None:
            hybrids.check_keep(args.keep, len(linear))
    try:
        if args.head and not has_head(old, args.checkpoint):
            args.backbone_only = True
            if args.metric:
                parser.error(
                    f'--metric {args.metric} needs a trained head, and {args.checkpoint} has none '
                    f'of {args.head}; train that detector first, or leave out --metric'
                )
        if args.backbone_only:
            old.head = None
        load_weights(old.backbone if args.backbone_only else old, args.checkpoint)
    except (UnsafeCheckpointError, FileNotFoundError, ImportError, ValueError) as error:
        without_head = not args.backbone_only and 'missing' in str(error) and 'head.' in str(error)
        hint = '; of a file without a head, --backbone-only takes the backbone' * without_head
        parser.error(without_hint(error) + hint)
    share = take_over(new, old, linear, args.inherit)
    # Errors of data end in one sentence, too.
    with first_checks(data, ('train',)), parser.refusing(ValueError, FloatingPointError):
        with DefaultScope.overwrite_default_scope(data.default_scope):
            loader = Runner.build_dataloader(data.train_dataloader, seed=args.seed)
        if args.loss == 'task' and is_on(cfg):  # the others read no labels
            check_data(dict(train=loader.dataset), old, cfg.default_scope)
        batches = image_batches(old, loader, args.loss == 'task', preprocessor)
        new, old = new.to(args.device), old.to(args.device)
        if args.keep or args.budget:
            new_cfg, new, linear = hybrid(args, cfg, old, new, linear, batches, settings)
            share = take_over(new, old, linear, args.inherit)
        takes = 'take' if args.names[1:] else 'takes'
        say(
            f'{" and ".join(args.names)} {takes} {len(linear)} of {len(places)} places of softmax; '
            f"{100 * share:.1f} % of the backbone's parameters are kept"
        )
        left_out = cfg.model.backbone.keys() & WINDOWS - new_cfg.model.backbone.keys()
        if left_out:
            say(
                f'{" and ".join(sorted(left_out))} of the config are left out, as no block with '
                'softmax in windows stays'
            )
        settings.update(
            config=args.config,
            checkpoint=args.checkpoint,
            linear=list(linear),
            **schedule._asdict(),
        )
        if dist.is_distributed():
            torch.manual_seed(args.seed + dist.get_rank())  # or all would drop the same paths
        done = distill(new, old, linear, batches, schedule, state, settings)
    if not dist.is_main_process():
        return end_process_groups()
    weights = new.cpu().state_dict()
    if args.backbone_only:
        weights = {name: value for name, value in weights.items() if name.startswith('backbone.')}
        new_cfg.model.backbone.init_cfg = dict(type='Pretrained', checkpoint=str(out.absolute()))
    else:
        new_cfg.load_from = str(out.absolute())  # for training; a test names the checkpoint
    with whole_file(args.work_dir / 'linearized.py') as temporary:
        new_cfg.dump(temporary)
    write_json(args.work_dir / 'linearized.json', dict(settings=settings, kept=share, **done))
    write_weights(out, weights, dict(linearized_from=args.checkpoint))
    state.unlink(missing_ok=True)
    last = (f'{made["losses"][-1]:.3g} ({phase})' for phase, made in done.items() if made['losses'])
    print(f'last losses: {", ".join(last)}; wrote {out}')
    config = str(args.work_dir / 'linearized.py')
    if args.head:
        print(
            f'{config} is a {new_cfg.model.type} on the hybrid of {new_cfg.model.backbone.type}, '
            f'whose head is {"random" if args.backbone_only else "that of the checkpoint"}'
        )
    tool, model = ('train.py', [config]) if args.backbone_only else ('test.py', [config, str(out)])
    print(command(Path(__file__).absolute().with_name(tool), shlex.join(model)))
    end_process_groups()


if __name__ == '__main__':
    main()
