// Threads shared by the compiled modules: one team per calling thread.

#include "thread_team.hpp"

#include <pybind11/pybind11.h>

#include "shared_threads.hpp"

namespace py = pybind11;

namespace baton {
namespace {

void run_team(Work function, void* argument, std::size_t num_threads) {
    thread_local ThreadTeam team;
    team.run(function, argument, num_threads);
}

}  // namespace

PYBIND11_MODULE(thread_team, module) {
    module.doc() = "The threads that the compiled modules share.";
    module.attr("run_on_threads") = py::capsule(reinterpret_cast<void*>(&run_team), kRunOnThreads);
}

}  // namespace baton
