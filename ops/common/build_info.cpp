// What the library was built for. mmlaplace/ops/_native.py reads it from the file before it loads
// the library: loading one built for another torch may crash, and of one built for another machine
// the loader says that there is no such file. setup.py adds the state of the sources.
#include <torch/version.h>

#define MMLAPLACE_TEXT_(...) #__VA_ARGS__
#define MMLAPLACE_TEXT(...) MMLAPLACE_TEXT_(__VA_ARGS__)

extern "C" __attribute__((used, visibility("default"))) const char mmlaplace_build_torch[] =
    "mmlaplace built for torch=" MMLAPLACE_TEXT(TORCH_VERSION_MAJOR) "." MMLAPLACE_TEXT(
        TORCH_VERSION_MINOR) ";";

#if defined(__x86_64__) || defined(__aarch64__)
extern "C" __attribute__((used, visibility("default"))) const char mmlaplace_build_machine[] =
#ifdef __x86_64__
    "mmlaplace built for machine=x86_64;";
#else
    "mmlaplace built for machine=aarch64;";
#endif
#endif
