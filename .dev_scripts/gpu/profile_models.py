"""Profile backbones on a GPU: the time of each kernel in a forward and in a training step.

    python .dev_scripts/gpu/profile_models.py laplacianformer-tiny
    python .dev_scripts/gpu/profile_models.py soft-tiny timm:swin_tiny_patch4_window7_224

Models run under autocast to bfloat16. tools/benchmarks/benchmark_backbone.py --list prints names.
"""

import os

os.environ.setdefault('KINETO_LOG_LEVEL', '5')  # to the profiler it is an error to have no GPU

import torch
from kit import DEVICE, REHEARSAL, give_memory_back, wait
from torch.profiler import ProfilerActivity, profile

from mmlaplace.analysis.measuring import model_job
from mmlaplace.commands.command_line import ToolParser
from mmlaplace.lab.side_by_side.backbone_candidates import find

# Side of the images, how many there are, and whether it is a training step.
CASES = ((224, 128, False), (1024, 4, False), (224, 128, True))
if REHEARSAL:
    CASES = ((64, 1, False), (64, 1, True))
PASSES, LINES = 3, 22


def device_time(event) -> float:
    """Microseconds on the GPU, or in a rehearsal on the CPU."""
    return event.self_cpu_time_total if REHEARSAL else event.self_device_time_total


def profile_one(name: str, side: int, images: int, train: bool) -> None:
    model = find(name)(train).to(DEVICE)
    model.train(train)
    batch = torch.randn(images, 3, side, side, device=DEVICE)
    job = model_job(model, batch, train, torch.bfloat16)
    for _ in range(PASSES):
        job()
    wait()
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (DEVICE.type == 'cuda')
    with profile(activities=activities) as profiler:
        for _ in range(PASSES):
            job()
        wait()
    kind = torch.autograd.DeviceType.CPU if REHEARSAL else torch.autograd.DeviceType.CUDA
    events = [event for event in profiler.key_averages() if event.device_type == kind]
    total = sum(map(device_time, events))
    launches = sum(event.count for event in events) // PASSES
    what = 'training step' if train else 'forward'
    print(
        f'== {name}, {side}x{images}, {what}: {total / PASSES / 1e3:.3f} ms in {launches} kernels',
        flush=True,
    )
    for event in sorted(events, key=device_time, reverse=True)[:LINES]:
        ms, share = device_time(event) / PASSES / 1e3, device_time(event) / max(total, 1)
        print(f'  {ms:8.3f} ms {share:6.1%} x{event.count // PASSES:4d} {event.key[:150]}')


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('models', nargs='+', metavar='MODEL')
    args = parser.parse_args()
    for name in args.models:
        for case in CASES:
            profile_one(name, *case)
            give_memory_back()


if __name__ == '__main__':
    main()
