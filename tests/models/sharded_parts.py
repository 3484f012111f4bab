"""In each of two processes: a backbone with sharded layers, whose batches have other parts in each.

Prints the ways of sharding with which maps and gradients are those of the backbone alone.
"""

import copy
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.distributed.fsdp.wrap
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import mmlaplace.models
from mmlaplace.models import set_valid_shapes
from mmlaplace.models.layers.block import StageLayers

# Of three sizes, of two, without padding, and of one size that fills no batch.
BATCHES = [[(32, 32), (64, 32), (64, 64)], [(64, 64), (64, 64)], [(32, 32), (64, 64)], [(32, 64)]]


def batch(shapes):
    images = torch.randn(len(shapes), 3, 64, 64, dtype=torch.float64)
    set_valid_shapes(images, shapes)
    return images


def shard(model, way):
    if way == 'fully_shard':
        mesh = init_device_mesh('cpu', (2,))
        for part in reversed(list(model.modules())):
            if isinstance(part, (nn.Linear, nn.LayerNorm, StageLayers)):
                dist.fsdp.fully_shard(part, mesh=mesh)
        return dist.fsdp.fully_shard(model, mesh=mesh)
    wrap = dist.fsdp.wrap.ModuleWrapPolicy({StageLayers})
    return dist.fsdp.FullyShardedDataParallel(
        model, auto_wrap_policy=wrap, use_orig_params=True, device_id=torch.device('cpu')
    )


def main() -> None:
    dist.init_process_group('gloo')
    rank = dist.get_rank()
    torch.manual_seed(0)
    plain = mmlaplace.models.LaplacianFormer('micro', img_size=64, mask_padding=True).double()
    with torch.no_grad():
        for parameter in plain.parameters():  # or sums over a norm's channels were zero
            parameter += 0.1 * torch.randn_like(parameter)
    sharded = shard(copy.deepcopy(plain), sys.argv[1])
    for step in range(0, len(BATCHES), 2):
        both = [batch(shapes) for shapes in BATCHES[step : step + 2]]
        for images in both:  # FSDP has the mean of the processes
            (sum(out.square().mean() for out in plain(images)) / 2).backward()
        outs = sharded(both[rank])
        torch.testing.assert_close(outs, plain(both[rank]))
        sum(out.square().mean() for out in outs).backward()
    gathered = nullcontext()
    if sys.argv[1] != 'fully_shard':
        gathered = dist.fsdp.FullyShardedDataParallel.summon_full_params(sharded, with_grads=True)
    with gathered:
        for own, other in zip(plain.parameters(), sharded.parameters()):
            grad = other.grad
            grad = grad.full_tensor() if sys.argv[1] == 'fully_shard' else grad
            torch.testing.assert_close(grad, own.grad)
    sys.stdout.write(f'{sys.argv[1]} of {rank} is right\n')
    dist.destroy_process_group()


main()
