// Row operations between a decoder layer's matrix products, on a CPU.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "shared_threads.hpp"
#include "ops/choice.hpp"
#include "ops/instruction_sets.hpp"

namespace py = pybind11;

namespace baton {
namespace {

using Address = std::uintptr_t;

constexpr std::size_t kElementsOfThreads = 1 << 14;  // below it one thread is as fast
constexpr std::size_t kElementsAtOnce = 1 << 12;
constexpr std::size_t kTokensAtOnce = 16;  // tokens routed at once

void require(bool holds, const char* otherwise) {
    if (!holds) throw py::value_error(otherwise);
}

template <typename T>
T* at(Address address, std::size_t row, std::size_t stride) {
    return reinterpret_cast<T*>(address) + row * stride;
}

template <typename Function>
struct SharedRows {
    const Function& function;
    std::size_t num_rows;
    std::size_t rows_at_once;
    std::atomic<std::size_t> next{0};
};

template <typename Function>
void some_rows(void* argument) noexcept {
    auto& shared = *static_cast<SharedRows<Function>*>(argument);
    for (std::size_t first; (first = shared.next.fetch_add(shared.rows_at_once)) < shared.num_rows;) {
        const std::size_t end = std::min(first + shared.rows_at_once, shared.num_rows);
        for (std::size_t row = first; row < end; ++row) shared.function(row);
    }
}

// Calls `function(row)` for all rows, on several threads if that is worth it.
template <typename Function>
void for_rows(std::size_t num_rows, std::size_t width, std::size_t num_threads, const Function& function) {
    if (num_rows * width < kElementsOfThreads || num_threads < 2) {
        for (std::size_t row = 0; row < num_rows; ++row) function(row);
        return;
    }
    const py::gil_scoped_release others_may_run;
    SharedRows<Function> shared{function, num_rows, std::max<std::size_t>(1, kElementsAtOnce / width)};
    run_on_threads(some_rows<Function>, &shared, num_threads);
}

// Strides are in elements, and those within a row are 1.
template <typename T>
class LayerOps {
public:
    explicit LayerOps(const std::string& instructions) : rows_(row_functions<T>(instructions)) {
        const std::vector<std::string> names = instruction_sets();
        require(std::find(names.begin(), names.end(), instructions) != names.end(),
                "this processor does not have that instruction set");
    }

    // `offset`: added to the weight.
    void norm(Address x, std::size_t stride, Address weight, float offset, Address result, std::size_t num_rows,
              std::size_t width, float eps, std::size_t num_threads) const {
        for_rows(num_rows, width, num_threads, [=](std::size_t row) {
            rows_.norm(at<T>(x, row, stride), {at<T>(weight, 0, 0), offset}, width, eps, at<T>(result, row, width));
        });
    }

    void add_norm(Address x, Address addend, Address weight, float offset, Address result, std::size_t num_rows,
                  std::size_t width, float eps, std::size_t num_threads) const {
        for_rows(num_rows, width, num_threads, [=](std::size_t row) {
            rows_.add_norm(at<T>(x, row, width), at<T>(addend, row, width), {at<T>(weight, 0, 0), offset}, width, eps,
                           at<T>(result, row, width));
        });
    }

    void gate_and_mul(Address gate_up, Address result, std::size_t num_rows, std::size_t width, std::size_t activation,
                      std::size_t num_threads) const {
        require(activation < kNumActivations, "there is no such activation");
        for_rows(num_rows, width, num_threads, [=](std::size_t row) {
            const T* gate = at<T>(gate_up, row, 2 * width);
            rows_.gate[activation](gate, gate + width, width, at<T>(result, row, width));
        });
    }

    // `scales`: output, one per row.
    void quantise(Address x, std::size_t stride, Address result, Address scales, std::size_t num_rows,
                  std::size_t width, std::size_t num_threads) const {
        for_rows(num_rows, width, num_threads, [=](std::size_t row) {
            *at<float>(scales, row, 1) = rows_.quantise(at<T>(x, row, stride), width, at<std::uint8_t>(result, row, width));
        });
    }

    // `bias`: a row, or 0.
    void scale(Address x, Address scales, Address bias, std::size_t num_rows, std::size_t width,
               std::size_t num_threads) const {
        for_rows(num_rows, width, num_threads, [=](std::size_t row) {
            rows_.scale(at<T>(x, row, width), *at<float>(scales, row, 1), at<T>(bias, 0, 0), width);
        });
    }

    // `places`: row index of each entry, or 0 for all rows in order; `weights`: [num_tokens, num_chosen].
    void weighted_sum(Address rows, Address places, Address weights, Address result, std::size_t num_rows,
                      std::size_t num_tokens, std::size_t num_chosen, std::size_t width, std::size_t num_threads) const {
        const auto* place = reinterpret_cast<const std::int64_t*>(places);
        const std::size_t num_entries = num_tokens * num_chosen;
        require(place ? std::all_of(place, place + num_entries,
                                    [=](std::int64_t each) {
                                        return each >= 0 && static_cast<std::size_t>(each) < num_rows;
                                    })
                      : num_entries <= num_rows,
                "a place is beyond the rows");
        for_rows(num_tokens, num_chosen * width, num_threads, [=](std::size_t token) {
            const std::size_t first = token * num_chosen;
            rows_.weighted_sum(at<T>(rows, place ? 0 : first, width), width, place ? place + first : nullptr,
                               at<float>(weights, first, 1), num_chosen, at<T>(result, token, width));
        });
    }

    // `weight`: a row per head, or 0, to which `offset` is added; `table`: a row per position, cosines first.
    void rotate(Address x, std::size_t token_stride, std::size_t head_stride, Address weight, float offset, Address table,
                std::size_t num_positions, Address positions, std::size_t num_tokens, std::size_t num_heads,
                std::size_t width, bool is_interleaved, float eps, std::size_t num_threads) const {
        require(width % 2 == 0 && width <= 2 * kMaxHalf, "a head has pairs, 512 at most");
        const auto* position = reinterpret_cast<const std::int64_t*>(positions);
        require(std::all_of(position, position + num_tokens,
                            [=](std::int64_t each) {
                                return each >= 0 && static_cast<std::size_t>(each) < num_positions;
                            }),
                "a position is beyond the table");
        for_rows(num_tokens, num_heads * width, num_threads, [=](std::size_t token) {
            const float* cos = at<float>(table, static_cast<std::size_t>(position[token]), width);
            for (std::size_t head = 0; head < num_heads; ++head) {
                const T* head_weight = weight ? at<T>(weight, head, width) : nullptr;
                rows_.rotate(at<T>(x, token, token_stride) + head * head_stride, {head_weight, offset}, eps, cos, cos + width / 2,
                             width / 2, is_interleaved);
            }
        });
    }

private:
    const RowFunctions<T> rows_;
};

// Copies rows sorted by slot, in the entries' order within a slot, and writes to `places` the row of the result
// that each entry has. Slots are padded to a multiple of `tile` rows by repeating the last one. `tokens`: row of x
// for each entry, or 0 if all tokens have equally many entries. Returns the number of rows per slot.
std::vector<std::size_t> sort_rows(Address x, std::size_t num_tokens, std::size_t row_bytes, Address tokens, Address slots,
                                   std::size_t num_entries, std::size_t num_slots, std::size_t tile, Address rows,
                                   Address places, std::size_t num_threads) {
    const auto* slot = reinterpret_cast<const std::int64_t*>(slots);
    const auto* token = reinterpret_cast<const std::int64_t*>(tokens);
    auto* place = reinterpret_cast<std::int64_t*>(places);
    require(tokens || num_tokens == 0 || num_entries % num_tokens == 0, "tokens have not equally many entries");
    std::vector<std::size_t> sizes(num_slots), next(num_slots);
    for (std::size_t i = 0; i < num_entries; ++i) {
        require(slot[i] >= 0 && static_cast<std::size_t>(slot[i]) < num_slots, "there is no such slot");
        require(!token || (token[i] >= 0 && static_cast<std::size_t>(token[i]) < num_tokens), "there is no such token");
        ++sizes[static_cast<std::size_t>(slot[i])];
    }
    std::size_t first = 0;
    for (std::size_t i = 0; i < num_slots; ++i) {
        next[i] = first;
        first += sizes[i] = (sizes[i] + tile - 1) / tile * tile;
    }
    const std::size_t entries_of_token = num_tokens ? num_entries / num_tokens : 1;
    const auto* from = reinterpret_cast<const char*>(x);
    auto* to = reinterpret_cast<char*>(rows);
    for (std::size_t i = 0; i < num_entries; ++i) {
        place[i] = static_cast<std::int64_t>(next[static_cast<std::size_t>(slot[i])]++);
    }
    for_rows(num_entries, row_bytes / sizeof(float), num_threads, [=](std::size_t i) {
        const std::size_t source = token ? static_cast<std::size_t>(token[i]) : i / entries_of_token;
        std::memcpy(to + static_cast<std::size_t>(place[i]) * row_bytes, from + source * row_bytes, row_bytes);
    });
    first = 0;
    for (std::size_t i = 0; i < num_slots; ++i) {
        for (first += sizes[i]; next[i] < first; ++next[i]) {
            std::memcpy(to + next[i] * row_bytes, to + (next[i] - 1) * row_bytes, row_bytes);
        }
    }
    return sizes;
}

// logits: [num_rows, num_experts]; bias: [num_experts], for routing only, or 0; weights, experts: [num_rows, num_chosen].
void choose_experts(Address logits, Address bias, Address weights, Address experts, std::size_t num_rows,
                    const ChoiceRule& rule, bool is_sigmoid, std::size_t num_threads) {
    static const auto score = row_functions<float>(instruction_sets()[0]).score;
    require(rule.is_possible(), "so many experts cannot be chosen");
    for_rows((num_rows + kTokensAtOnce - 1) / kTokensAtOnce, kTokensAtOnce * rule.num_experts, num_threads, [&](std::size_t part) {
        ExpertChooser chooser(rule);
        std::vector<float> scores(rule.num_experts);
        for (std::size_t row = part * kTokensAtOnce; row < std::min((part + 1) * kTokensAtOnce, num_rows); ++row) {
            score(at<float>(logits, row, rule.num_experts), rule.num_experts, is_sigmoid, scores.data());
            chooser.choose(scores.data(), reinterpret_cast<const float*>(bias), at<float>(weights, row, rule.num_chosen),
                           at<std::int64_t>(experts, row, rule.num_chosen));
        }
    });
}

template <typename T>
void define(py::module_& module, const char* name) {
    using Ops = LayerOps<T>;
    py::class_<Ops>(module, name)
        .def(py::init<const std::string&>(), py::arg("instructions"))
        .def("norm", &Ops::norm)
        .def("add_norm", &Ops::add_norm)
        .def("gate_and_mul", &Ops::gate_and_mul)
        .def("quantise", &Ops::quantise)
        .def("scale", &Ops::scale)
        .def("weighted_sum", &Ops::weighted_sum)
        .def("rotate", &Ops::rotate);
}

}  // namespace

PYBIND11_MODULE(layer_ops, module) {
    module.doc() = "What a decoder layer does to each row between its matrix products, on a CPU.";
    import_threads();
    module.def("instruction_sets", &instruction_sets);
    module.def("sort_rows", &sort_rows);
    py::class_<ChoiceRule>(module, "ChoiceRule")
        .def(py::init<std::size_t, std::size_t, std::size_t, std::size_t, std::size_t, bool, float>(), py::kw_only(),
             py::arg("num_experts"), py::arg("num_chosen"), py::arg("num_groups"), py::arg("num_best_groups"),
             py::arg("num_group_scores"), py::arg("is_normed"), py::arg("factor"));
    module.def("choose_experts", &choose_experts);
    define<float>(module, "Float32Ops");
    define<Bfloat16>(module, "Bfloat16Ops");
}

}  // namespace baton
