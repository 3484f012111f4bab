"""One training of a model on a probe."""

import math
import time
from collections import deque
from typing import Any, Deque, Dict, NamedTuple, Optional

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from .model import ProbeModel
from .tasks import UNASKED, Batch, Probe

TEST_SEED = 1 << 20  # far from the seeds of training
TEST_MAPS = 256  # at each scale
TEST_TOKENS = 1 << 13  # of a batch
SOLVED = 0.998  # a run ends when this share of the answers of the last 30 batches is right
WINDOW = 30


class Schedule(NamedTuple):
    """How a model is trained.

    Attributes:
        steps: Steps of the one-cycle schedule. Default: 1500.
        batch_size: Maps in a step. Default: 32.
        seconds: The run ends after so much time of the processor. Default: 120.
    """

    steps: int = 1500
    batch_size: int = 32
    seconds: float = 120.0


def train_probe(
    probe: Probe,
    attn_cfg: dict,
    lr: float,
    seed: int = 0,
    schedule: Optional[Schedule] = None,
    device: str = 'cpu',
    **model: Any,
) -> Dict[str, Any]:
    """Train a model on fresh maps of a probe, and test it.

    All attentions see the same maps for a seed. The optimizer is AdamW with a one-cycle schedule
    and gradients clipped to a norm of 1. A run ends early once the probe is solved.

    Args:
        probe: The task.
        attn_cfg: Config of the attention, without sizes.
        lr: Largest learning rate.
        seed: Seed of the weights and of the maps. Default: 0.
        schedule: Steps, batch size and limit of time. Default: None, those of
            :class:`Schedule`.
        device: Where the model is trained, on the same maps. Default: ``'cpu'``.
        **model: Further arguments of :class:`ProbeModel`.

    Returns:
        The accuracy by the scale of the test map, the last loss (None if it is not finite), the
        steps and the seconds of the processor.
    """
    schedule = schedule or Schedule()
    torch.manual_seed(seed)
    network = ProbeModel(probe, attn_cfg, **model).to(device)
    maps = torch.Generator().manual_seed(seed)
    fused = hasattr(torch, 'get_autocast_dtype')  # torch >= 2.4, which has it for a CPU
    optimizer = torch.optim.AdamW(network.parameters(), lr, weight_decay=0.01, fused=fused)
    rates = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, lr, total_steps=schedule.steps, pct_start=0.1
    )
    right: Deque[float] = deque(maxlen=WINDOW)
    start, steps, loss = time.process_time(), 0, math.inf
    while steps < schedule.steps:
        steps += 1
        batch = probe.batch(schedule.batch_size, maps).to(device)
        logits, wanted = network(batch), asked(batch)
        objective = F.cross_entropy(logits, wanted)
        optimizer.zero_grad()
        objective.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        rates.step()
        loss = objective.item()
        right.append((logits.argmax(1) == wanted).float().mean().item())
        late = time.process_time() - start > schedule.seconds
        solved = len(right) == WINDOW and sum(right) / WINDOW >= SOLVED
        if late or solved or not math.isfinite(loss):
            break
    seconds = time.process_time() - start
    return dict(
        accuracy={str(scale): test(network, probe, scale, device) for scale in probe.scales},
        loss=round(loss, 4) if math.isfinite(loss) else None,
        steps=steps,
        seconds=round(seconds, 1),
    )


def asked(batch: Batch) -> Tensor:
    """The classes of the tokens that must answer."""
    return batch.answers[batch.answers != UNASKED]


@torch.no_grad()
def test(network: nn.Module, probe: Probe, scale: int = 1, device: str = 'cpu') -> float:
    """Accuracy on maps of ``scale`` times the tokens, rounded to four digits."""
    network.eval()
    maps = torch.Generator().manual_seed(TEST_SEED)
    height, width = probe.hw_shape
    size = min(max(TEST_TOKENS // (height * width * scale), 1), TEST_MAPS)
    right = []
    for _ in range(0, TEST_MAPS, size):
        batch = probe.batch(size, maps, scale).to(device)
        right.append(network(batch).argmax(1) == asked(batch))
    network.train()
    return round(torch.cat(right).float().mean().item(), 4)
