// The threads that torch computes with.
#pragma once

#include <dlfcn.h>
#include <link.h>

#include <cstring>
#include <string>

namespace baton {

// Runs `function(argument)` on so many threads, the caller's among them.
using RunOnThreads = void (*)(void (*function)(void*), void* argument, unsigned num_threads, unsigned flags);

inline int note_torch(dl_phdr_info* info, std::size_t, void* found) {
    if (!info->dlpi_name || !std::strstr(info->dlpi_name, "libtorch_cpu.so")) return 0;
    *static_cast<std::string*>(found) = info->dlpi_name;
    return 1;
}

// The entry point of the OpenMP runtime that torch is linked with, or null. A runtime or threads of our own would compete
// for the cores with torch's, which wait for their next work by spinning. The compiler is not asked for OpenMP because it
// would link the runtime of its own.
inline RunOnThreads torch_threads() {
    std::string torch;
    dl_iterate_phdr(note_torch, &torch);
    if (torch.empty()) return nullptr;
    void* library = dlopen(torch.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (!library) return nullptr;
    void* entry = dlsym(library, "GOMP_parallel");  // in the libraries that torch depends on, too
    dlclose(library);                               // torch stays loaded: it was before
    return reinterpret_cast<RunOnThreads>(entry);
}

}  // namespace baton
