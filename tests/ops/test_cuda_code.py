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


def test_a_kernel_is_read_from_the_three_reports_and_regressions_are_named():
    (kernel,) = tool.read_report(RESOURCES, ELF, SASS, 'sm_90')
    opcodes = {'FADD': 2, 'FADD |x|': 1, 'FSETP': 0}
    limits = (tool.Limit(NAME, 16, {'FADD': 4, 'HMMA': 0}, 2, opcodes, instructions=4.5),)
    row = tool.describe(kernel, limits).split()[:12]  # registers, threads, shared memory ...
    assert row == ['16', '128', '0', '16', '64', '0', '4', '0', '0', '0', '0', '3.00']
    assert tool.find_problems([kernel], limits) == []
    worse = replace(kernel, spills=3, registers=40, opcodes={'FADD': 4, 'HMMA': 12}, main_loop=[])
    said = '3 instr.*room for 12 blocks.*12 HMMA; wanted: 0.*0.00 FADD for .*0.00 FADD .x. for each'
    assert re.search(said, ' '.join(tool.find_problems([worse], limits)))
    (missing,) = tool.find_problems([replace(kernel, name='another')], limits)
    assert f'no kernel is named {NAME}' in missing
    with pytest.raises(ValueError, match=f'no code of {NAME}'):
        tool.read_report(RESOURCES, ELF, 'code for sm_90', 'sm_90')
