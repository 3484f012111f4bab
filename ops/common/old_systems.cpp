// Lets a library that is compiled on a new Linux run on older ones, back to manylinux_2_28. See
// also cpu/cpu_dispatch.h.
#include <sstream>

#if defined(__linux__) && defined(__GLIBCXX__)
// The libraries of GCC before version 9 do not have these constructors, which headers of torch
// call.
template std::basic_ostringstream<char>::basic_ostringstream();
template std::basic_stringstream<char>::basic_stringstream();

#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>

// Headers of GCC 12 read this variable of glibc 2.32. Here it says that there may be more threads.
extern "C" __attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
#endif
#endif
