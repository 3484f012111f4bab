"""The check of the compiled GPU kernels: how it reads cuobjdump's reports, and its limits."""

import re
from dataclasses import replace

import pytest
from conftest import load_tool

# Recorded: nvcc 13.0 and cuobjdump 12.8, of `for (c = 0; c < dims; c += 2)` over
# `sum += fabsf(q[c] - k[c]); sum += fabsf(q[c + 1] - k[c + 1]);` after a loop that writes zeros,
# with __launch_bounds__(128). Lines and spaces are left out.
NAME = '_Z8distancePfPKfS1_i'
RESOURCES = f"""
Resource usage:
 Function {NAME}:
  REG:16 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:556 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
ELF = f"""
.nv.info.{NAME}
\t<0x10>
\tAttribute:\tEIATTR_MAX_THREADS
\tFormat:\tEIFMT_SVAL
\tValue:\t0x80 0x1 0x1 

"""  # noqa: W291
SASS = f"""
\tcode for sm_90
\t\tFunction : {NAME}
\t.headerflags\t@"EF_CUDA_SM90 EF_CUDA_VIRTUAL_SM(EF_CUDA_SM90)"
        /*0530*/                   VIADD R5, R5, 0xffffffff ; /* 0xffffffff05057836 */
                                                            /* 0x000fe20000000000 */
        /*0570*/                   ISETP.NE.AND P0, PT, R5, RZ, PT ; /* 0x000000ff0500720c */
        /*05a0*/               @P0 BRA 0x530 ; /* 0xfffffffc00e00947 */
        /*0610*/                   IMAD.MOV.U32 R2, RZ, RZ, R10 ; /* 0x000000ffff027224 */
        /*06a0*/                   ISETP.LE.AND P0, PT, R0, UR4, PT ; /* 0x0000000400007c0c */
        /*06d0*/                   FADD R6, -R6, R9 ; /* 0x0000000906067221 */
        /*06f0*/                   FADD R6, |R6|, R7 ; /* 0x0000000706067221 */
        /*0700*/                   FADD R11, -R8, R11 ; /* 0x0000000b080b7221 */
        /*0720*/                   FADD R7, R6, |R11| ; /* 0x4000000b06077221 */
        /*0730*/              @!P0 BRA 0x610 ; /* 0xfffffffc00b48947 */
        /*0780*/                   EXIT ; /* 0x000000000000794d */
        /*0790*/                   BRA 0x790; /* 0xfffffffc00fc7947 */
"""


tool = load_tool('.dev_scripts/check_cuda_code.py')
LIMIT = tool.Limit(
    NAME, blocks=16, whole={'FADD': 4, 'HMMA': 0}, differences=2,
    opcodes={'FADD': 2, 'FADD |x|': 1, 'FSETP': 0}, instructions=4.5,
)  # fmt: skip


@pytest.fixture
def kernel():
    (kernel,) = tool.read_report(RESOURCES, ELF, SASS, 'sm_90')
    return kernel


def test_a_kernel_is_read_from_the_three_reports(kernel):
    assert (kernel.name, kernel.registers, kernel.threads) == (NAME, 16, 128)
    assert (kernel.shared, kernel.local, kernel.spills) == (0, 0, 0)
    assert kernel.main_loop[0].startswith('IMAD.MOV') and kernel.main_loop[-1] == 'BRA 0x610'
    counts = {'FADD': 4, 'FADD |x|': 2, 'ISETP': 1, 'FSETP': 0}
    assert {name: kernel.count(name) for name in counts} == counts
    assert tool.find_problems([kernel], (LIMIT,)) == []
    row = tool.describe(kernel, (LIMIT,)).split()[:12]
    assert row == ['16', '128', '0', '16', '64', '0', '4', '0', '0', '0', '0', '3.50']
    with pytest.raises(ValueError, match=f'no code of {NAME}'):
        tool.read_report(RESOURCES, ELF, 'code for sm_90\n', 'sm_90')


@pytest.mark.parametrize(('change', 'problem'), [
    (dict(spills=3), '3 instructions for local memory'),
    (dict(registers=40), 'room for 12 blocks of 128 threads, with 40 registers'),
    (dict(main_loop=['FADD R1, R1, R2'] * 4), r'0\.00 FADD \|x\| for each difference'),
    (dict(opcodes={'FADD': 4, 'HMMA': 12}), r'12 HMMA; wanted: 0'),
    (dict(main_loop=['FSEL R1, R1, -R1, P1'] * 10), r'5\.00 instructions .*; wanted: at most 4\.5'),
    (dict(name='another'), f'no kernel is named {NAME}'),
])  # fmt: skip
def test_a_regression_is_named(kernel, change, problem):
    problems = tool.find_problems([replace(kernel, **change)], (LIMIT,))
    assert any(re.search(problem, line) for line in problems), problems
