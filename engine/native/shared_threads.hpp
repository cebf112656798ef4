// Access of compiled modules to their shared threads.
#pragma once

#include <pybind11/pybind11.h>

#include "threads.hpp"

namespace baton {

constexpr const char* kRunOnThreads = "run_on_threads";

inline RunOnThreads run_on_threads = nullptr;  // set in modules that have imported it

// Call it while the module is imported. Raises ImportError if the threads' module was not compiled.
inline void import_threads() {
    const auto module = pybind11::module_::import("baton.engine.native.thread_team");
    run_on_threads =
        reinterpret_cast<RunOnThreads>(module.attr(kRunOnThreads).cast<pybind11::capsule>().get_pointer<void>());
}

}  // namespace baton
