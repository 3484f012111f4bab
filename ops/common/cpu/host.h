// The host of the code for CPUs: PyTorch, ONNX Runtime or OpenVINO, which has the threads and tells
// the instruction set. The builds of the libraries for runtimes define MMLAPLACE_ONNXRUNTIME or
// MMLAPLACE_OPENVINO.
#pragma once

#if defined(MMLAPLACE_ONNXRUNTIME)
#include "../../onnxruntime/host.h"
#elif defined(MMLAPLACE_OPENVINO)
#include "../../openvino/host.h"
#else
#include "../tensor.h"
#endif
