"""Attentions, one mechanism per file.

``python .dev_scripts/make_pages.py`` writes the lines below, one for each registered class. Those
of base classes are written by hand.
"""

from .additive import AdditiveAttention as AdditiveAttention
from .agent import AgentAttention as AgentAttention
from .base import BaseAttention as BaseAttention
from .base import Dims as Dims
from .base import Projected as Projected
from .base import QKVAttention as QKVAttention
from .based import BasedAttention as BasedAttention
from .castling import CastlingAttention as CastlingAttention
from .circulant import CirculantAttention as CirculantAttention
from .cosformer import CosformerAttention as CosformerAttention
from .cross_shaped import CrossShapedAttention as CrossShapedAttention
from .ecoformer import EcoFormerAttention as EcoFormerAttention
from .efficient import EfficientLinearAttention as EfficientLinearAttention
from .elfatt import ELFATTAttention as ELFATTAttention
from .favit import FaViTAttention as FaViTAttention
from .flatten import FLattenAttention as FLattenAttention
from .flow import FlowAttention as FlowAttention
from .frame import Frame as Frame
from .hedgehog import HedgehogAttention as HedgehogAttention
from .hydra import HydraAttention as HydraAttention
from .inline import InLineAttention as InLineAttention
from .kernel import KernelAttention as KernelAttention
from .l2vit import L2ViTAttention as L2ViTAttention
from .laplacian import LaplacianAttention as LaplacianAttention
from .large_kernel import LargeKernelAttention as LargeKernelAttention
from .linear import LinearAttention as LinearAttention
from .linformer import LinformerAttention as LinformerAttention
from .litemla import LiteMLA as LiteMLA
from .mala import MALAAttention as MALAAttention
from .mhla import MHLAAttention as MHLAAttention
from .mita import MiTAAttention as MiTAAttention
from .mlla import MLLAAttention as MLLAAttention
from .nala import NaLaAttention as NaLaAttention
from .neighborhood import NeighborhoodAttention as NeighborhoodAttention
from .nystromformer import NystromformerAttention as NystromformerAttention
from .performer import PerformerAttention as PerformerAttention
from .pola import PolaAttention as PolaAttention
from .pola_pp import PolaPPAttention as PolaPPAttention
from .polarized import PolarizedAttention as PolarizedAttention
from .rala import RALAAttention as RALAAttention
from .reformer import ReformerAttention as ReformerAttention
from .sana import SANAAttention as SANAAttention
from .scaled_cosine import ScaledCosineAttention as ScaledCosineAttention
from .separable import SeparableAttention as SeparableAttention
from .skyformer import SkyformerAttention as SkyformerAttention
from .slab import SLABAttention as SLABAttention
from .soft import SOFTAttention as SOFTAttention
from .softmax import SoftmaxAttention as SoftmaxAttention
from .taylorshift import TaylorShiftAttention as TaylorShiftAttention
from .ttt import TTTAttention as TTTAttention
from .window import WindowAttention as WindowAttention
from .xca import XCAttention as XCAttention
