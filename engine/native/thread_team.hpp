// Threads that compute beside whoever calls them.
//
// A call does not wait for threads that come late: where something else has their cores, the caller computes alone. (Teams
// of OpenMP wait for all of theirs, which costs milliseconds a call as soon as there are more busy threads than cores.)
#pragma once

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <system_error>
#include <thread>

#include "threads.hpp"

namespace baton {

// Owns the threads that help one other thread, which is the only one that calls it. They run on the cores that it has when
// they are made.
class ThreadTeam {
public:
    ThreadTeam() = default;
    ThreadTeam(const ThreadTeam&) = delete;
    ThreadTeam& operator=(const ThreadTeam&) = delete;

    // Nobody waits for the threads.
    ~ThreadTeam() { shared_->end(); }

    // Calls `function(argument)` here and, as they come, in other threads: at most `num_threads - 1` times, perhaps twice
    // in one. Those that have not come when the call here returns do not begin. Returns once all calls have returned.
    void run(Work function, void* argument, std::size_t num_threads) {
        make_helpers(num_threads);
        const std::size_t num_places = std::min(num_threads ? num_threads - 1 : 0, num_helpers_);
        shared_->open(function, argument, static_cast<std::uint32_t>(num_places));
        function(argument);
        shared_->close();
    }

private:
    static constexpr std::size_t kMostHelpers = 1024;

    // What the threads know of each other.
    class Shared {
    public:
        void open(Work function, void* argument, std::uint32_t num_places) {
            function_ = function;
            argument_ = argument;
            door_.store(num_places * kPlace, std::memory_order_release);
            if (num_places) call();
        }

        void close() {
            door_.fetch_and(kPlace - 1, std::memory_order_relaxed);
            wait_until([&] { return door_.load(std::memory_order_acquire) == 0; });
        }

        void end() {
            has_ended_.store(true, std::memory_order_relaxed);
            call();
        }

        void help() {
            for (std::uint32_t seen = 0;;) {
                await_call(seen);
                seen = num_calls_.load(std::memory_order_acquire);
                if (has_ended_.load(std::memory_order_relaxed)) return;
                if (!enter()) continue;
                function_(argument_);
                door_.fetch_sub(1, std::memory_order_release);
            }
        }

    private:
        static constexpr std::uint32_t kPlace = 1u << 16;  // below it the door counts who is within, above it places
        static constexpr std::size_t kLooksOfIdle = 1 << 14;  // some 0.3 ms, which is longer than what lies between calls

        void call() {
            num_calls_.fetch_add(1, std::memory_order_release);
            num_calls_.notify_all();
        }

        bool enter() {
            std::uint32_t door = door_.load(std::memory_order_relaxed);
            while (door >= kPlace) {
                if (door_.compare_exchange_weak(door, door - kPlace + 1, std::memory_order_acquire)) return true;
            }
            return false;
        }

        void await_call(std::uint32_t seen) const {
            for (std::size_t looks = 0; looks < kLooksOfIdle; ++looks) {
                if (num_calls_.load(std::memory_order_relaxed) != seen) return;
                rest();
            }
            num_calls_.wait(seen, std::memory_order_acquire);
        }

        // Of the present call; whoever is within reads them.
        Work function_ = nullptr;
        void* argument_ = nullptr;
        std::atomic<std::uint32_t> door_{0};
        std::atomic<std::uint32_t> num_calls_{0};
        std::atomic<bool> has_ended_{false};
    };

    // How often this process came out of another: the threads of a team stay behind.
    static unsigned num_forks() {
        static std::atomic<unsigned> count{0};
        [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, [] { ++count; });
        return count.load(std::memory_order_relaxed);
    }

    void make_helpers(std::size_t num_threads) {
        if (num_forks() != num_forks_) {
            num_forks_ = num_forks();
            shared_ = std::make_shared<Shared>();
            num_helpers_ = 0;
        }
        try {
            for (; num_helpers_ + 1 < std::min(num_threads, kMostHelpers); ++num_helpers_) {
                std::thread([shared = shared_] { shared->help(); }).detach();
            }
        } catch (const std::system_error&) {
            // There is no room for more: those that there are do it.
        }
    }

    unsigned num_forks_ = num_forks();
    std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
    std::size_t num_helpers_ = 0;
};

}  // namespace baton
