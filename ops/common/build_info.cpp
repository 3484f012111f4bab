// What the library was built for: its torch, its machine, the namespace of its ops. setup.py adds
// the state of the sources.
//
// mmlaplace/ops/_native.py reads these strings from the file before it loads the library. A library
// built for another torch may crash when it is loaded. Of one built for another machine, the loader
// says that there is no such file.
#include "tensor.h"

#define MMLAPLACE_TEXT_(...) #__VA_ARGS__
#define MMLAPLACE_TEXT(...) MMLAPLACE_TEXT_(__VA_ARGS__)
#define MMLAPLACE_TORCH MMLAPLACE_TEXT(TORCH_VERSION_MAJOR) "." MMLAPLACE_TEXT(TORCH_VERSION_MINOR)

extern "C" __attribute__((used, visibility("default"))) const char mmlaplace_build_torch[] =
#ifdef STABLE_TORCH_SHIM
    "mmlaplace built for torch_from=2.10;";  // TORCH_TARGET_VERSION of tensor_stable.h
#else
    "mmlaplace built for torch=" MMLAPLACE_TORCH ";";
#endif

MMLAPLACE_NAMESPACE(mmlaplace);

#if defined(__x86_64__) || defined(__aarch64__)
extern "C" __attribute__((used, visibility("default"))) const char mmlaplace_build_machine[] =
#ifdef __x86_64__
    "mmlaplace built for machine=x86_64;";
#else
    "mmlaplace built for machine=aarch64;";
#endif
#endif
