// Threads that help a calling thread.
//
// A call does not wait for late threads: if their cores are busy, the caller computes alone. (Teams
// of OpenMP wait for all of their threads, which costs milliseconds a call with more busy threads than cores.)
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

// Owns the threads that help one other thread, its only caller. They run on the cores that the caller has when
// they are created.
class ThreadTeam {
public:
    ThreadTeam() = default;
    ThreadTeam(const ThreadTeam&) = delete;
    ThreadTeam& operator=(const ThreadTeam&) = delete;

    // Does not wait for the threads.
    ~ThreadTeam() { shared_->end(); }

    // Calls `function(argument)` here and in other threads that are free: at most `num_threads - 1` times, maybe twice
    // in one thread. Threads that have not started when the call here returns do not start. Returns after all calls.
    void run(Work function, void* argument, std::size_t num_threads) {
        make_helpers(num_threads);
        const std::size_t num_places = std::min(num_threads ? num_threads - 1 : 0, num_helpers_);
        shared_->open(function, argument, static_cast<std::uint32_t>(num_places));
        function(argument);
        shared_->close();
    }

private:
    static constexpr std::size_t kMostHelpers = 1024;

    // State shared by the threads.
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
        static constexpr std::uint32_t kPlace = 1u << 16;  // below it the door counts threads inside, above it places
        static constexpr std::size_t kLooksOfIdle = 1 << 14;  // some 0.3 ms, longer than the time between calls

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

        // Of the current call; read by the threads inside.
        Work function_ = nullptr;
        void* argument_ = nullptr;
        std::atomic<std::uint32_t> door_{0};
        std::atomic<std::uint32_t> num_calls_{0};
        std::atomic<bool> has_ended_{false};
    };

    // Number of forks that led to this process: a team's threads do not survive a fork.
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
            // No more threads can be created: continue with those that exist.
        }
    }

    unsigned num_forks_ = num_forks();
    std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
    std::size_t num_helpers_ = 0;
};

}  // namespace baton
