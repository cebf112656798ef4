// Products of rows with weights of small integers in groups, on a CPU.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "grouped/instruction_sets.hpp"
#include "shared_threads.hpp"

namespace py = pybind11;

namespace baton {
namespace {

using Address = std::uintptr_t;

constexpr std::size_t kDecodedBytes = 1 << 18;  // of decoded outputs: they stay in a core's cache
constexpr std::size_t kMaxOutputs = 16;         // decoded at once
constexpr std::size_t kTokensAtOnce = 64;

void require(bool holds, const char* otherwise) {
    if (!holds) throw py::value_error(otherwise);
}

Numbers numbers(const py::object& from) {
    if (from.is_none()) return {};
    const auto parts = from.cast<std::vector<std::uintptr_t>>();  // address, kind, numbers per row
    require(parts.size() == 3 && parts[1] <= static_cast<std::uintptr_t>(Kind::kE4m3) && parts[2] > 0,
            "numbers have an address, a kind and a count");
    return {reinterpret_cast<const void*>(parts[0]), static_cast<Kind>(parts[1]), parts[2]};
}

void store(float number, std::uint16_t* to) {  // to the nearest, ties to even
    std::uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    *to = number != number ? 0x7FC0 : static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

void store(float number, float* to) { *to = number; }

float load(const std::uint16_t* from) { return float_of_bits(static_cast<std::uint32_t>(*from) << 16); }
float load(const float* from) { return *from; }

// One weight in groups; the caller must keep its memory alive.
class GroupedProduct {
public:
    GroupedProduct(const std::string& instructions, Address low, Address high, int bits, bool is_e2m1,
                   std::size_t num_outputs, std::size_t num_inputs, const py::object& scales,
                   const py::object& outer_scales, const py::object& zeros, const py::object& minima,
                   const py::object& outer_minima, Address order)
        : functions_(grouped_functions(instructions)),
          weight_{reinterpret_cast<const std::uint8_t*>(low), reinterpret_cast<const std::uint8_t*>(high), bits, is_e2m1,
                  num_outputs, num_inputs, numbers(scales), numbers(outer_scales), numbers(zeros), numbers(minima),
                  numbers(outer_minima)},
          order_(reinterpret_cast<const std::int32_t*>(order)) {
        const std::vector<std::string> names = instruction_sets();
        require(std::find(names.begin(), names.end(), instructions) != names.end(),
                "this processor does not have that instruction set");
        require(num_outputs > 0 && num_inputs > 0 && num_inputs % kBlock == 0, "inputs are multiples of 32");
        require(bits == 4 || bits == 5 || bits == 6 || bits == 8, "codes have 4, 5, 6 or 8 bits");
        require((bits == 5 || bits == 6) == (high != 0) && low != 0, "only codes of 5 and 6 bits have upper bits");
        require(!is_e2m1 || bits == 4, "E2M1 has 4 bits");
        require(weight_.scales.address != nullptr, "groups have scales");
        for (const Numbers* each : {&weight_.scales, &weight_.zeros, &weight_.minima}) {
            require(!each->address || weight_.num_spans() % each->per_row == 0, "groups are multiples of 16 inputs");
        }
        check_outer(weight_.outer_scales, weight_.scales);
        check_outer(weight_.outer_minima, weight_.minima);
    }

    // rows: [num_rows, num_inputs]; bias: [num_outputs], or 0; result: [num_rows, num_outputs]; all of bfloat16, or of
    // floats.
    void run(Address rows, Address bias, Address result, std::size_t num_rows, bool is_bfloat16,
             std::size_t num_threads) const {
        const py::gil_scoped_release others_may_run;
        if (is_bfloat16) {
            work<std::uint16_t>(rows, bias, result, num_rows, num_threads);
        } else {
            work<float>(rows, bias, result, num_rows, num_threads);
        }
    }

    // Writes the weight's rows as floats [num_outputs, num_inputs], to compare them.
    void decode(Address result) const {
        std::vector<float> numbers(3 * weight_.num_spans()), row(weight_.num_inputs);
        auto* to = reinterpret_cast<float*>(result);
        for (std::size_t output = 0; output < weight_.num_outputs; ++output, to += weight_.num_inputs) {
            functions_.decode(weight_, output, numbers.data(), row.data());
            for (std::size_t i = 0; i < weight_.num_inputs; ++i) to[input_at(i)] = row[i];
        }
    }

private:
    static void check_outer(const Numbers& outer, const Numbers& inner) {
        require(!outer.address || (inner.address && inner.per_row % outer.per_row == 0), "groups of groups are whole");
    }

    // The input whose weight is decoded to a place.
    std::size_t input_at(std::size_t place) const {
        std::size_t input = place;
        if (weight_.bits != 8) {
            const std::size_t within = place % kBlock;
            input = place - within + (within < kLanes ? 2 * within : 2 * (within - kLanes) + 1);
        }
        return order_ ? static_cast<std::size_t>(order_[input]) : input;
    }

    template <typename T>
    struct Call {
        const GroupedProduct& product;
        const float* tokens;
        const T* bias;
        T* result;
        std::size_t num_rows, outputs_at_once;
        std::atomic<std::size_t> next{0};
    };

    template <typename T>
    void work(Address rows, Address bias, Address result, std::size_t num_rows, std::size_t num_threads) const {
        const std::size_t width = weight_.num_inputs;
        std::vector<std::size_t> inputs(width);
        for (std::size_t i = 0; i < width; ++i) inputs[i] = input_at(i);
        const std::unique_ptr<float[]> tokens(new float[num_rows * width]);
        const T* from = reinterpret_cast<const T*>(rows);
        for (std::size_t row = 0; row < num_rows; ++row) {
            for (std::size_t i = 0; i < width; ++i) tokens[row * width + i] = load(from + row * width + inputs[i]);
        }
        const std::size_t fitting = kDecodedBytes / (width * sizeof(float)) / 4 * 4;
        Call<T> call{*this, tokens.get(), reinterpret_cast<const T*>(bias), reinterpret_cast<T*>(result), num_rows,
                     std::clamp<std::size_t>(fitting, 4, kMaxOutputs)};
        if (num_threads < 2) return some_outputs<T>(&call);
        run_on_threads(some_outputs<T>, &call, num_threads);
    }

    template <typename T>
    static void some_outputs(void* argument) noexcept {
        auto& call = *static_cast<Call<T>*>(argument);
        const GroupedWeight& weight = call.product.weight_;
        const GroupedFunctions& functions = call.product.functions_;
        const std::size_t width = weight.num_inputs;
        std::unique_ptr<float[]> buffer(new float[3 * weight.num_spans() + call.outputs_at_once * width]);
        float sums[kMaxOutputs * kTokensAtOnce];
        float* decoded = buffer.get() + 3 * weight.num_spans();
        for (std::size_t first; (first = call.next.fetch_add(call.outputs_at_once)) < weight.num_outputs;) {
            const std::size_t count = std::min(call.outputs_at_once, weight.num_outputs - first);
            for (std::size_t i = 0; i < count; ++i) functions.decode(weight, first + i, buffer.get(), decoded + i * width);
            for (std::size_t row = 0; row < call.num_rows; row += kTokensAtOnce) {
                const std::size_t some = std::min(kTokensAtOnce, call.num_rows - row);
                functions.dot(decoded, count, call.tokens + row * width, some, width, sums);
                for (std::size_t t = 0; t < some; ++t) {
                    T* to = call.result + (row + t) * weight.num_outputs + first;
                    for (std::size_t i = 0; i < count; ++i) {
                        const float sum = sums[i * some + t];
                        store(call.bias ? sum + load(call.bias + first + i) : sum, to + i);
                    }
                }
            }
        }
    }

    const GroupedFunctions functions_;
    const GroupedWeight weight_;
    const std::int32_t* const order_;
};

}  // namespace

PYBIND11_MODULE(grouped_products, module) {
    module.doc() = "Products of rows with weights of small integers in groups, on a CPU.";
    import_threads();
    module.def("instruction_sets", &instruction_sets);
    py::class_<GroupedProduct>(module, "GroupedProduct")
        .def(py::init<const std::string&, Address, Address, int, bool, std::size_t, std::size_t, const py::object&,
                      const py::object&, const py::object&, const py::object&, const py::object&, Address>(),
             py::arg("instructions"), py::arg("low"), py::arg("high"), py::arg("bits"), py::arg("is_e2m1"),
             py::arg("num_outputs"), py::arg("num_inputs"), py::arg("scales"), py::arg("outer_scales"),
             py::arg("zeros"), py::arg("minima"), py::arg("outer_minima"), py::arg("order"))
        .def("run", &GroupedProduct::run)
        .def("decode", &GroupedProduct::decode);
}

}  // namespace baton
