// What build_info.cpp says, for the CUDA sources: toolkit and architectures.
#define MMLAPLACE_TEXT_(...) #__VA_ARGS__
#define MMLAPLACE_TEXT(...) MMLAPLACE_TEXT_(__VA_ARGS__)

extern "C" __attribute__((used, visibility("default"))) const char mmlaplace_build_cuda[] =
    "mmlaplace built for cuda=" MMLAPLACE_TEXT(__CUDACC_VER_MAJOR__)
    "." MMLAPLACE_TEXT(__CUDACC_VER_MINOR__) ";"
    "mmlaplace built for arches=" MMLAPLACE_TEXT(__CUDA_ARCH_LIST__) ";";
