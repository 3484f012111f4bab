// What the code for CPUs takes from its host: threads, and the choice of the instruction set. The
// host is PyTorch, or ONNX Runtime in the library of ops/onnxruntime, which defines
// MMLAPLACE_ONNXRUNTIME.
#pragma once

#ifdef MMLAPLACE_ONNXRUNTIME
#include "../../onnxruntime/host.h"
#else
#include "../tensor.h"
#endif
