"""What the compiler made of the GPU kernels, held against limits; needs no GPU.

    python .dev_scripts/check_cuda_code.py build/cuda/library/mmlaplace/_C.abi3.so

It reads the resource report and the disassembly that cuobjdump gives of the code for sm_80 and
sm_90, or that of them that the library has. For each kernel it prints registers, threads, shared
memory, the blocks and warps that a multiprocessor has room for, the instructions that keep values
in local memory for want of registers ("spills"), and how many of the instructions OPCODES are in
it. For a kernel of differences it also prints the instructions of the main loop, for each
difference. It ends with status 1, and names the kernel and the figure, if a limit is broken. The
limits are LIMITS below; without a row there, a kernel must only do without local memory.

cuobjdump and nvdisasm come with the CUDA toolkit, and with triton, which torch installs.
"""

import argparse
import importlib.util
import math
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Optional, Tuple

ARCHITECTURES = ('sm_80', 'sm_90')
SHARED = {'sm_80': 164 << 10, 'sm_90': 228 << 10}  # bytes of a multiprocessor
# Additions of floats and of pairs of halves, products of pairs of halves, and of tensor cores.
OPCODES = ('FADD', 'HADD2', 'HFMA2', 'HMMA', 'IMMA')


@dataclass(frozen=True)
class Limit:
    """What a kernel whose short name matches must keep to."""

    kernel: str  # a regular expression of the whole short name
    blocks: int  # that a multiprocessor has room for, at least
    whole: Dict[str, int] = field(default_factory=dict)  # opcodes of the whole kernel, exactly
    # The rest is for kernels of differences.
    differences: int = 0  # in one turn of the main loop
    opcodes: Dict[str, float] = field(default_factory=dict)  # for each difference, exactly
    instructions: float = math.inf  # of any kind for each difference, at most


FLOATS = '(float|Half|BFloat16)'
# Two additions for each difference, one of them with an operand |x|. To compare and to select, as
# code that treats -0 and NaN by itself would, doubles the time.
L1_FORWARD = {'FADD': 2, 'FADD |x|': 1, 'FSETP': 0, 'FSEL': 0}
L2_FORWARD = {'FADD': 1, 'FFMA': 1}
# The difference, a comparison that makes 0 or 1 of it, a bit operation for its sign, and the sum.
# A conversion of an integer and a selection, which run at half rate, would come on top.
L1_GRADIENT = {'FADD': 1, 'FSET': 1, 'LOP3': 1, 'FFMA': 1, 'FSETP': 0, 'FSEL': 0, 'I2FP': 0}
L2_GRADIENT = {'FADD': 1, 'FFMA': 1}


def forward(metric: str, tile: str, blocks: int, differences: int, opcodes: dict) -> Limit:
    kernel = rf'forward_kernel<{metric}, {FLOATS}, float, ForwardTile<{tile}>>'
    return Limit(kernel, blocks, {}, differences, opcodes, 2.2)


def gradient(metric: str, tile: str, differences: int, opcodes: dict, instructions: float) -> Limit:
    kernel = rf'gradient_kernel<{metric}, {FLOATS}, float, {FLOATS}, GradientTile<{tile}>>'
    return Limit(kernel, 5, {}, differences, opcodes, instructions)


def tensor_cores(kernel: str, products: int) -> Tuple[Limit, Limit]:
    """A product is one block of a warp: 2 x 2 fragments by three products of their terms.

    With halves, each of the 8 x 4 pairs of differences of a turn takes two HADD2, and each of the
    pairs of sums another two, which widen it.
    """
    name = rf'nystrom::{kernel}_kernel<%s, 64, {FLOATS}, float, token_tiles::TensorCores<%s>>'
    counts = {'HMMA': 12 * products, 'IMMA': 0}
    return (
        Limit(name % (r'\w+', '.*'), 4, counts),
        Limit(name % ('Laplacian', '.*, true'), 4, {**counts, 'HADD2': 8 * 4 * (2 + 2)}),
    )


def linear(kernel: str, blocks: int, products: int) -> Tuple[Limit, Limit]:
    """A pass of linear_attention, by threads and by tensor cores."""
    name = rf'linear::{kernel}_kernel<64, {FLOATS}, float, linear::%s>'
    return (
        Limit(name % 'FmaUnits', blocks, {'HMMA': 0}),
        Limit(name % 'TensorCores<.*>', blocks, {'HMMA': 12 * products, 'IMMA': 0}),
    )


# The widest tile of halves lacks a few registers on 8.0, outside its main loop.
SPILLS = {'sm_80': (r'forward_kernel<\w+, (Half|BFloat16), float, ForwardTile<4, 16, 32, 4>>', 12)}


# Blocks have 128 threads, but those of the small tile 32. The differences of a turn of the loop are
# queries x keys x channels of a thread in a forward, and 4 columns in a gradient.
LIMITS = (
    forward('Laplacian', '4, 13, 32, 4', 4, 4 * 13 * 4, L1_FORWARD),
    forward('Laplacian', '4, 16, 32, 4', 4, 4 * 16 * 4, L1_FORWARD),
    forward('Laplacian', '4, 8, 8, 4', 16, 4 * 8 * 4, L1_FORWARD),
    forward('Gaussian', '4, 13, 32, 4', 4, 4 * 13 * 4, L2_FORWARD),
    forward('Gaussian', '4, 16, 32, 4', 4, 4 * 16 * 4, L2_FORWARD),
    forward('Gaussian', '4, 8, 8, 4', 16, 4 * 8 * 4, L2_FORWARD),
    gradient('Laplacian', '4, 4, 16', 4 * 4 * 4, L1_GRADIENT, 4.3),
    gradient('Laplacian', '13, 2, 4', 13 * 2 * 4, L1_GRADIENT, 4.3),
    gradient('Gaussian', '4, 4, 16', 4 * 4 * 4, L2_GRADIENT, 2.3),
    gradient('Gaussian', '13, 2, 4', 13 * 2 * 4, L2_GRADIENT, 2.3),
    *tensor_cores('moments', 1),
    *tensor_cores('mix', 2),
    *tensor_cores('output', 1),
    *linear('key_sums', 4, 1),
    *linear('outputs', 4, 1),
    *linear('query_gradients', 3, 3),
    *linear('key_gradients', 3, 2),
    # Their last blocks multiply small matrices, which must not cost the others room.
    Limit(rf'nystrom::(moments|mix)_kernel<\w+, 64, {FLOATS}, float, nystrom::FmaUnits>', 4),
    Limit(r'nystrom::landmark_inverse_kernel<\w+, 7, float>', 8),  # 49 landmarks, 64 threads
    Limit(r'nystrom::prepare_kernel<(float|double)>', 16),
)


@dataclass
class Kernel:
    """One kernel, as the compiler's report and the disassembly have it."""

    name: str
    registers: int
    shared: int  # bytes of a block, with what the system keeps
    local: int  # bytes of a thread in local memory: stack and arrays
    threads: int  # of a block at most, by __launch_bounds__; 0 if that is not said
    spills: int  # instructions that read or write local memory
    main_loop: List[str]  # its instructions, without predicates
    opcodes: Dict[str, int]  # how often the whole kernel has each of OPCODES
    architecture: str

    @property
    def blocks(self) -> int:
        memory = SHARED[self.architecture]
        return blocks_per_processor(self.registers, self.threads, self.shared, memory)

    def count(self, opcode: str) -> int:
        """How many instructions of the main loop are an opcode."""
        name, absolute = opcode.split()[0], opcode.endswith('|x|')
        return sum(
            re.split(r'[ .]', text)[0] == name and (not absolute or '|' in text)
            for text in self.main_loop
        )


def blocks_per_processor(registers: int, threads: int, shared: int, memory: int) -> int:
    """The blocks that a multiprocessor of compute capability 8.0 or 9.0 has room for.

    The rules are those of the occupancy calculator, cuda_occupancy.h: registers are given to whole
    warps, 256 at a time, by each of four partitions with 16,384 of them.
    """
    warps = -(-threads // 32)
    if not warps:
        return 0
    per_warp = -(-registers * 32 // 256) * 256
    by_registers = 16384 // per_warp * 4 // warps
    by_shared = memory // shared if shared else 32
    return min(by_registers, by_shared, 64 // warps, 32)


INSTRUCTION = re.compile(r'^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?\w+ )?(\S.*?)\s*;')


def find_main_loop(instructions: List[Tuple[int, str]]) -> List[str]:
    """The loop with the most floating-point arithmetic, without the loops inside it, if any has."""
    loops = []
    for address, text in instructions:
        branch = re.match(r'BRA\b.*?\b0x([0-9a-f]+)$', text)
        if branch and int(branch.group(1), 16) <= address:
            loops.append(range(int(branch.group(1), 16), address + 1))
    bodies = {loop: [] for loop in loops}
    for address, text in instructions:
        around = [loop for loop in loops if address in loop]
        if around:
            bodies[min(around, key=len)].append(text)

    def arithmetic(body: List[str]) -> int:
        return sum(bool(re.match('[FD](ADD|FMA|MUL)', text)) for text in body)

    best = max(bodies.values(), key=arithmetic, default=[])
    return best if arithmetic(best) else []


def read_report(resources: str, elf: str, sass: str, architecture: str) -> List[Kernel]:
    """The kernels in what cuobjdump prints with -res-usage, -elf and -sass."""
    threads = {
        name: int(count, 16)
        for name, attributes in re.findall(r'^\.nv\.info\.(\S+)\n((?:\t.*\n?)*)', elf, re.MULTILINE)
        for count in re.findall(r'EIATTR_MAX_THREADS\n\t.*\n\tValue:\t0x([0-9a-f]+)', attributes)
    }
    code = {}
    for function in re.split(r'^\s*Function : ', sass, flags=re.MULTILINE)[1:]:
        name, *lines = function.splitlines()
        found = [match for match in map(INSTRUCTION.match, lines) if match]
        code[name.strip()] = [(int(match.group(1), 16), match.group(2)) for match in found]
    kernels = []
    usage = r'Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)'
    for name, *figures in re.findall(usage, resources):
        registers, stack, shared, local = map(int, figures)
        if not code.get(name):
            raise ValueError(f'the disassembly has no code of {name}')
        counts = Counter(re.split(r'[ .]', text)[0] for _, text in code[name])
        kernels.append(
            Kernel(
                name,
                registers,
                shared,
                stack + local,
                threads.get(name, 0),
                counts['LDL'] + counts['STL'],
                find_main_loop(code[name]),
                {opcode: counts[opcode] for opcode in OPCODES},
                architecture,
            )
        )
    return kernels


def shorten(demangled: str) -> str:
    """A kernel's name without its arguments and the namespaces."""
    name = re.sub(r'(mmlaplace|device|c10|\(anonymous namespace\))::', '', demangled)
    name = re.sub(r'^void ', '', name).replace('> >', '>>')
    return re.sub(r'\(.*', '', name)


def find_problems(kernels: List[Kernel], limits: Tuple[Limit, ...] = LIMITS) -> List[str]:
    """What breaks a limit, a sentence each."""
    problems = []
    for kernel in kernels:
        name, spills = SPILLS.get(kernel.architecture, ('', 0))
        allowed = spills if re.fullmatch(name, kernel.name) else 0
        if kernel.spills > allowed or (kernel.local and not allowed):
            problems.append(
                f'{kernel.name}: {kernel.spills} instructions for local memory, and {kernel.local} '
                'bytes of it; it must have none'
            )
    for limit in limits:
        matching = [kernel for kernel in kernels if re.fullmatch(limit.kernel, kernel.name)]
        if not matching:
            problems.append(f'no kernel is named {limit.kernel}; LIMITS must follow the sources')
        for kernel in matching:
            if kernel.blocks < limit.blocks:
                problems.append(
                    f'{kernel.name}: room for {kernel.blocks} blocks of {kernel.threads} threads, '
                    f'with {kernel.registers} registers and {kernel.shared} bytes of shared '
                    f'memory; at least {limit.blocks} are wanted'
                )
            for opcode, wanted in limit.whole.items():
                if kernel.opcodes[opcode] != wanted:
                    problems.append(
                        f'{kernel.name}: {kernel.opcodes[opcode]} {opcode}; wanted: {wanted}'
                    )
            if not limit.differences:
                continue
            for opcode, wanted in limit.opcodes.items():
                found = kernel.count(opcode) / limit.differences
                if found != wanted:
                    problems.append(
                        f'{kernel.name}: {found:.2f} {opcode} for each difference in the main '
                        f'loop; wanted: {wanted}'
                    )
            found = len(kernel.main_loop) / limit.differences
            if found > limit.instructions:
                problems.append(
                    f'{kernel.name}: {found:.2f} instructions for each difference in the main '
                    f'loop; wanted: at most {limit.instructions}'
                )
    return problems


def describe(kernel: Kernel, limits: Tuple[Limit, ...] = LIMITS) -> str:
    """A kernel's row of the table."""
    row = (
        f'{kernel.registers:>9} {kernel.threads or "-":>7} {kernel.shared:>6} '
        f'{kernel.blocks or "-":>6} {kernel.blocks * -(-kernel.threads // 32) or "-":>5} '
        f'{kernel.spills:>6} ' + ' '.join(f'{count:>5}' for count in kernel.opcodes.values())
    )
    for limit in limits:
        if limit.differences and re.fullmatch(limit.kernel, kernel.name):
            count = len(kernel.main_loop)
            opcodes = Counter(re.split(r'[ .]', text)[0] for text in kernel.main_loop)
            shares = ', '.join(
                f'{name} {number / limit.differences:.3g}'
                for name, number in opcodes.most_common()
                if number > 4
            )
            row += f'  {count / limit.differences:.2f} ({shares})'
    return row


def find_cuobjdump() -> Path:
    """The toolkit's, else triton's."""
    places = [shutil.which('cuobjdump')]
    if shutil.which('nvcc'):
        places.append(Path(shutil.which('nvcc')).resolve().parent / 'cuobjdump')
    triton = importlib.util.find_spec('triton')
    if triton is not None and triton.origin:
        places.append(Path(triton.origin).parent / 'backends/nvidia/bin/cuobjdump')
    for place in places:
        if place and Path(place).is_file():
            return Path(place)
    sys.exit(
        'check_cuda_code: there is no cuobjdump: install it with the CUDA toolkit '
        '(package cuda-cuobjdump), or pip install triton, which brings it'
    )


def run(*command: object, text: Optional[str] = None) -> str:
    """What a command prints; it stops here, with the message, if it fails."""
    folder = os.pathsep.join([str(Path(str(command[0])).parent), os.environ['PATH']])
    result = subprocess.run(
        [str(part) for part in command],
        input=text,
        capture_output=True,
        text=True,
        env={**os.environ, 'PATH': folder},  # cuobjdump calls nvdisasm
    )
    if result.returncode:
        sys.exit(f'check_cuda_code: {command[0]} failed: {result.stderr.strip()}')
    return result.stdout


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('library', type=Path, help='a library, object or cubin')
    library = parser.parse_args().library
    cuobjdump = find_cuobjdump()
    listed = run(cuobjdump, '-lelf', library)
    found = [name for name in ARCHITECTURES if re.search(rf'\b{name}\.', listed)]
    if not found:
        sys.exit(f'check_cuda_code: {library} has no code for any of {ARCHITECTURES}')
    problems = []
    for architecture in found:
        kernels = read_kernels(cuobjdump, library, architecture)
        print(f'{architecture}, by {cuobjdump}')
        print(
            f'registers threads shared blocks warps spills {" ".join(f"{n:>5}" for n in OPCODES)}'
            '  instructions for each difference'
        )
        for kernel in kernels:
            print(f'{kernel.name}\n{describe(kernel)}')
        problems += [f'{architecture}, {problem}' for problem in find_problems(kernels)]
        print(f'{len(kernels)} kernels')
    if problems:
        sys.exit('\n'.join(f'check_cuda_code: {problem}' for problem in problems))
    print(f'check_cuda_code: all keep to the limits on {", ".join(found)}')


def read_kernels(cuobjdump: Path, library: Path, architecture: str) -> List[Kernel]:
    reports = [
        run(cuobjdump, '-arch', architecture, what, library)
        for what in ('-res-usage', '-elf', '-sass')
    ]
    kernels = read_report(*reports, architecture)
    names = run(shutil.which('c++filt') or 'c++filt', text='\n'.join(k.name for k in kernels))
    for kernel, name in zip(kernels, names.splitlines()):
        kernel.name = shorten(name)
    return sorted(kernels, key=lambda kernel: kernel.name)


if __name__ == '__main__':
    main()
