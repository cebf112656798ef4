// Threads that compute together, and what they wait for.
#pragma once

#include <cstddef>
#include <thread>

namespace baton {

using Work = void (*)(void* argument) noexcept;

// Runs `function(argument)` on at most so many threads, the caller's among them; see ThreadTeam.
using RunOnThreads = void (*)(Work function, void* argument, std::size_t num_threads);

constexpr std::size_t kLooks = 1 << 13;  // at what another thread does in microseconds, before it is offered the core

inline void rest() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// Whoever is given this core meanwhile keeps it for milliseconds.
template <typename Holds>
void wait_until(const Holds& holds) {
    for (std::size_t looks = 0; !holds(); ++looks) {
        looks < kLooks ? rest() : std::this_thread::yield();
    }
}

}  // namespace baton
