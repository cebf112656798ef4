// Interface to run work on several threads, and their way to wait.
#pragma once

#include <cstddef>
#include <thread>

namespace baton {

using Work = void (*)(void* argument) noexcept;

// Runs `function(argument)` on at most `num_threads` threads, including the caller; see ThreadTeam.
using RunOnThreads = void (*)(Work function, void* argument, std::size_t num_threads);

constexpr std::size_t kLooks = 1 << 13;  // polls of work that takes microseconds, before the core is yielded

inline void rest() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// A thread that gets this core in the meantime keeps it for milliseconds.
template <typename Holds>
void wait_until(const Holds& holds) {
    for (std::size_t looks = 0; !holds(); ++looks) {
        looks < kLooks ? rest() : std::this_thread::yield();
    }
}

}  // namespace baton
