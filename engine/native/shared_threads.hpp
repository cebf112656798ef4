// How compiled modules come to the threads that they share.
#pragma once

#include <pybind11/pybind11.h>

#include "threads.hpp"

namespace baton {

constexpr const char* kRunOnThreads = "run_on_threads";

inline RunOnThreads run_on_threads = nullptr;  // in a module that has imported them

// For a module while it is imported. Raises ImportError where the threads' module was not compiled.
inline void import_threads() {
    const auto module = pybind11::module_::import("baton.engine.native.thread_team");
    run_on_threads =
        reinterpret_cast<RunOnThreads>(module.attr(kRunOnThreads).cast<pybind11::capsule>().get_pointer<void>());
}

}  // namespace baton
