// Thread teams that run one call after the other, in several callers at once. Each turn of a call must be taken once, the
// function must run on at most the requested number of threads, and on none once the call has returned. With the argument
// "fork" forked processes go on calling.

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "thread_team.hpp"

using namespace baton;

namespace {

constexpr std::size_t kCallers = 3;
constexpr std::size_t kCalls = 3000;
constexpr std::size_t kForks = 40;

struct Call {
    explicit Call(std::size_t num_turns) : taken(num_turns) {}

    std::vector<int> taken;  // each written by one thread only
    std::atomic<std::size_t> next{0}, num_within{0}, num_entered{0};
};

void take_turns(void* argument) noexcept {
    Call& call = *static_cast<Call*>(argument);
    call.num_entered.fetch_add(1);
    call.num_within.fetch_add(1);
    for (std::size_t turn; (turn = call.next.fetch_add(1)) < call.taken.size();) ++call.taken[turn];
    call.num_within.fetch_sub(1);
}

std::size_t num_wrong(ThreadTeam& team, std::size_t num_turns, std::size_t num_threads) {
    Call call(num_turns);
    team.run(take_turns, &call, num_threads);
    std::size_t wrong = call.num_within != 0 || call.num_entered > std::max<std::size_t>(1, num_threads);
    for (const int count : call.taken) wrong += count != 1;
    return wrong;
}

std::size_t num_wrong(std::size_t caller) {
    auto team = std::make_unique<ThreadTeam>();
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < kCalls; ++i) {
        if (i % 1000 == 999) team = std::make_unique<ThreadTeam>();
        if (i % 500 == 250) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // the threads fall asleep
        wrong += num_wrong(*team, i % 97, (i + caller) % 6);
    }
    return wrong;
}

bool can_fork() {
    for (std::size_t i = 0; i < kForks; ++i) {
        ThreadTeam team;
        std::size_t wrong = num_wrong(team, 50, 5);
        std::this_thread::sleep_for(std::chrono::milliseconds(i % 4));
        wrong += num_wrong(team, 50, 5);
        const pid_t child = fork();
        if (child == 0) {
            alarm(30);  // instead of a hang
            for (std::size_t k = 0; k < 20; ++k) wrong += num_wrong(team, 50, 5);
            _exit(wrong != 0);
        }
        int status = 0;
        if (waitpid(child, &status, 0) != child || status != 0 || wrong) return false;
    }
    return true;
}

}  // namespace

int main(int argc, char**) {
    if (argc > 1) {
        const bool holds = can_fork();
        std::printf(holds ? "all forks\n" : "a fork failed\n");
        return !holds;
    }
    std::atomic<std::size_t> wrong{0};
    std::vector<std::thread> callers;
    for (std::size_t i = 0; i < kCallers; ++i) callers.emplace_back([&wrong, i] { wrong += num_wrong(i); });
    for (std::thread& each : callers) each.join();
    wrong ? std::printf("%zu wrong\n", wrong.load()) : std::printf("all calls\n");
    return wrong != 0;
}
