// What a decoder layer does to each row between its matrix products, on a CPU.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>

#include "attention/threads.hpp"
#include "ops/instruction_sets.hpp"

namespace py = pybind11;

namespace baton {
namespace {

using Address = std::uintptr_t;

constexpr std::size_t kElementsOfThreads = 1 << 14;  // below it one thread is as fast
constexpr std::size_t kElementsAtOnce = 1 << 12;

void require(bool holds, const char* otherwise) {
    if (!holds) throw py::value_error(otherwise);
}

template <typename T>
T* at(Address address, std::size_t row, std::size_t stride) {
    return reinterpret_cast<T*>(address) + row * stride;
}

// Runs `function(row)` for all rows, on several threads where that is worth it.
class RowLoop {
public:
    template <typename Function>
    void run(std::size_t num_rows, std::size_t width, std::size_t num_threads, const Function& function) const {
        if (num_rows * width < kElementsOfThreads || num_threads < 2 || !run_on_threads_) {
            for (std::size_t row = 0; row < num_rows; ++row) function(row);
            return;
        }
        const py::gil_scoped_release others_may_run;
        Shared<Function> shared{function, num_rows, std::max<std::size_t>(1, kElementsAtOnce / width), {0}};
        run_on_threads_(some_rows<Function>, &shared, static_cast<unsigned>(num_threads), 0);
    }

private:
    template <typename Function>
    struct Shared {
        const Function& function;
        std::size_t num_rows;
        std::size_t rows_at_once;
        std::atomic<std::size_t> next;
    };

    template <typename Function>
    static void some_rows(void* argument) {
        auto& shared = *static_cast<Shared<Function>*>(argument);
        for (std::size_t first; (first = shared.next.fetch_add(shared.rows_at_once)) < shared.num_rows;) {
            const std::size_t end = std::min(first + shared.rows_at_once, shared.num_rows);
            for (std::size_t row = first; row < end; ++row) shared.function(row);
        }
    }

    const RunOnThreads run_on_threads_ = torch_threads();
};

// Strides are in elements, and those within a row are 1.
template <typename T>
class LayerOps {
public:
    explicit LayerOps(const std::string& instructions) : rows_(row_functions<T>(instructions)) {
        const std::vector<std::string> names = instruction_sets();
        require(std::find(names.begin(), names.end(), instructions) != names.end(),
                "this processor does not have that instruction set");
    }

    void norm(Address x, std::size_t stride, Address weight, Address result, std::size_t num_rows, std::size_t width,
              float eps, std::size_t num_threads) const {
        loop_.run(num_rows, width, num_threads, [=](std::size_t row) {
            rows_.norm(at<T>(x, row, stride), at<T>(weight, 0, 0), width, eps, at<T>(result, row, width));
        });
    }

    void add_norm(Address x, Address addend, Address weight, Address result, std::size_t num_rows, std::size_t width,
                  float eps, std::size_t num_threads) const {
        loop_.run(num_rows, width, num_threads, [=](std::size_t row) {
            rows_.add_norm(at<T>(x, row, width), at<T>(addend, row, width), at<T>(weight, 0, 0), width, eps,
                           at<T>(result, row, width));
        });
    }

    void silu_and_mul(Address gate_up, Address result, std::size_t num_rows, std::size_t width,
                      std::size_t num_threads) const {
        loop_.run(num_rows, width, num_threads, [=](std::size_t row) {
            const T* gate = at<T>(gate_up, row, 2 * width);
            rows_.silu(gate, gate + width, width, at<T>(result, row, width));
        });
    }

    // `scales`: one for each row, written.
    void quantise(Address x, std::size_t stride, Address result, Address scales, std::size_t num_rows,
                  std::size_t width, std::size_t num_threads) const {
        loop_.run(num_rows, width, num_threads, [=](std::size_t row) {
            *at<float>(scales, row, 1) = rows_.quantise(at<T>(x, row, stride), width, at<std::uint8_t>(result, row, width));
        });
    }

    // `bias`: a row, or 0.
    void scale(Address x, Address scales, Address bias, std::size_t num_rows, std::size_t width,
               std::size_t num_threads) const {
        loop_.run(num_rows, width, num_threads, [=](std::size_t row) {
            rows_.scale(at<T>(x, row, width), *at<float>(scales, row, 1), at<T>(bias, 0, 0), width);
        });
    }

    // `weight`: a row for each head, or 0; `table`: a row for each position, cosines first.
    void rotate(Address x, std::size_t token_stride, std::size_t head_stride, Address weight, Address table,
                std::size_t num_positions, Address positions, std::size_t num_tokens, std::size_t num_heads,
                std::size_t width, bool is_interleaved, float eps, std::size_t num_threads) const {
        require(width % 2 == 0 && width <= 2 * kMaxHalf, "a head has pairs, 512 at most");
        const auto* position = reinterpret_cast<const std::int64_t*>(positions);
        require(std::all_of(position, position + num_tokens,
                            [=](std::int64_t each) {
                                return each >= 0 && static_cast<std::size_t>(each) < num_positions;
                            }),
                "a position is beyond the table");
        loop_.run(num_tokens, num_heads * width, num_threads, [=](std::size_t token) {
            const float* cos = at<float>(table, static_cast<std::size_t>(position[token]), width);
            for (std::size_t head = 0; head < num_heads; ++head) {
                const T* head_weight = weight ? at<T>(weight, head, width) : nullptr;
                rows_.rotate(at<T>(x, token, token_stride) + head * head_stride, head_weight, eps, cos, cos + width / 2,
                             width / 2, is_interleaved);
            }
        });
    }

private:
    const RowFunctions<T> rows_;
    const RowLoop loop_;
};

template <typename T>
void define(py::module_& module, const char* name) {
    using Ops = LayerOps<T>;
    py::class_<Ops>(module, name)
        .def(py::init<const std::string&>(), py::arg("instructions"))
        .def("norm", &Ops::norm)
        .def("add_norm", &Ops::add_norm)
        .def("silu_and_mul", &Ops::silu_and_mul)
        .def("quantise", &Ops::quantise)
        .def("scale", &Ops::scale)
        .def("rotate", &Ops::rotate);
}

}  // namespace

PYBIND11_MODULE(layer_ops, module) {
    module.doc() = "What a decoder layer does to each row between its matrix products, on a CPU.";
    module.def("instruction_sets", &instruction_sets);
    define<float>(module, "Float32Ops");
    define<Bfloat16>(module, "Bfloat16Ops");
}

}  // namespace baton
