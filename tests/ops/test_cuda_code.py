"""The check of the compiled GPU kernels: how it reads cuobjdump's reports, and its limits."""

import re
from dataclasses import replace

import pytest
from conftest import load_tool

# Recorded: nvcc 13.0 and cuobjdump 12.8, of `for (c = 0; c < dims; c += 2)` over
# `sum += fabsf(q[c] - k[c]); sum += fabsf(q[c + 1] - k[c + 1]);` after a loop that writes zeros,
# with __launch_bounds__(128). Lines and spaces are left out.
NAME = '_Z8distancePfPKfS1_i'
RESOURCES = f' Function {NAME}:\n  REG:16 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:556'
ELF = (
    f'.nv.info.{NAME}\n\tAttribute:\tEIATTR_MAX_THREADS\n\tFormat:\tEIFMT_SVAL\n\tValue:\t0x80 0x1'
)
SASS = f"""
\t\tFunction : {NAME}
        /*0530*/                   VIADD R5, R5, 0xffffffff ; /* 0xffffffff05057836 */
                                                            /* 0x000fe20000000000 */
        /*05a0*/               @P0 BRA 0x530 ; /* 0xfffffffc00e00947 */
        /*0610*/                   IMAD.MOV.U32 R2, RZ, RZ, R10 ; /* 0x000000ffff027224 */
        /*06d0*/                   FADD R6, -R6, R9 ; /* 0x0000000906067221 */
        /*06f0*/                   FADD R6, |R6|, R7 ; /* 0x0000000706067221 */
        /*0700*/                   FADD R11, -R8, R11 ; /* 0x0000000b080b7221 */
        /*0720*/                   FADD R7, R6, |R11| ; /* 0x4000000b06077221 */
        /*0730*/              @!P0 BRA 0x610 ; /* 0xfffffffc00b48947 */
        /*0780*/                   EXIT ; /* 0x000000000000794d */
"""
tool = load_tool('.dev_scripts/check_cuda_code.py')
LIMIT = tool.Limit(
    NAME, blocks=16, whole={'FADD': 4, 'HMMA': 0}, differences=2,
    opcodes={'FADD': 2, 'FADD |x|': 1, 'FSETP': 0}, instructions=4.5,
)  # fmt: skip


@pytest.mark.parametrize(('change', 'problem'), [
    ({}, None),
    (dict(spills=3), '3 instructions for local memory'),
    (dict(registers=40), 'room for 12 blocks of 128 threads, with 40 registers'),
    (dict(main_loop=['FADD R1, R1, R2'] * 4), r'0\.00 FADD \|x\| for each difference'),
    (dict(opcodes={'FADD': 4, 'HMMA': 12}), r'12 HMMA; wanted: 0'),
    (dict(main_loop=['FSEL R1, R1, P1'] * 10), r'5\.00 instructions .*; wanted: at most 4\.5'),
    (dict(name='another'), f'no kernel is named {NAME}'),
])  # fmt: skip
def test_a_kernel_is_read_from_the_three_reports_and_a_regression_is_named(change, problem):
    (kernel,) = tool.read_report(RESOURCES, ELF, SASS, 'sm_90')
    row = tool.describe(kernel, (LIMIT,)).split()[:12]  # registers, threads, shared memory ...
    assert row == ['16', '128', '0', '16', '64', '0', '4', '0', '0', '0', '0', '3.00']
    problems = tool.find_problems([replace(kernel, **change)], (LIMIT,))
    assert any(re.search(problem, line) for line in problems) if problem else problems == []


def test_a_report_without_the_code_of_a_kernel_is_an_error():
    with pytest.raises(ValueError, match=f'no code of {NAME}'):
        tool.read_report(RESOURCES, ELF, 'code for sm_90', 'sm_90')
