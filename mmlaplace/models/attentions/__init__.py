"""Token mixers, one mechanism per file. A new one is a file here and its line below."""

from .additive import AdditiveAttention as AdditiveAttention
from .agent import AgentAttention as AgentAttention
from .base import BaseAttention as BaseAttention
from .base import Projected as Projected
from .base import QKVAttention as QKVAttention
from .ecoformer import EcoFormerAttention as EcoFormerAttention
from .flatten import FLattenAttention as FLattenAttention
from .frame import Frame as Frame
from .inline import InLineAttention as InLineAttention
from .l2vit import L2ViTAttention as L2ViTAttention
from .laplacian import LaplacianAttention as LaplacianAttention
from .large_kernel import LargeKernelAttention as LargeKernelAttention
from .litemla import LiteMLA as LiteMLA
from .mala import MALAAttention as MALAAttention
from .mhla import MHLAAttention as MHLAAttention
from .mlla import MLLAAttention as MLLAAttention
from .nala import NaLaAttention as NaLaAttention
from .pola import PolaAttention as PolaAttention
from .polarized import PolarizedAttention as PolarizedAttention
from .rala import RALAAttention as RALAAttention
from .sana import SANAAttention as SANAAttention
from .separable import SeparableAttention as SeparableAttention
from .soft import SOFTAttention as SOFTAttention
from .softmax import SoftmaxAttention as SoftmaxAttention
from .window import WindowAttention as WindowAttention
from .xca import XCAttention as XCAttention
