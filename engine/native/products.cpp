// Products of rows in bfloat16 with weights in floats, bfloat16 or bytes, on a CPU.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "products/low_rank.hpp"
#include "products/work.hpp"
#include "shared_threads.hpp"

namespace py = pybind11;

namespace baton {
namespace {

using Address = std::uintptr_t;

void require(bool holds, const char* otherwise) {
    if (!holds) throw py::value_error(otherwise);
}

std::vector<std::string> names() {
    std::vector<std::string> result;
    for (const ProductFunctions& each : product_functions()) result.emplace_back(each.name);
    return result;
}

ProductFunctions functions_named(const std::string& name) {
    for (const ProductFunctions& each : product_functions()) {
        if (each.name == name) return each;
    }
    throw py::value_error("this processor does not have that instruction set");
}

std::uint16_t* halves(Address address) { return reinterpret_cast<std::uint16_t*>(address); }

// Runs `function()` on several threads, which share the work.
template <typename Function>
void on_threads(std::size_t num_threads, const Function& function) {
    if (num_threads < 2) return function();
    run_on_threads([](void* argument) noexcept { (*static_cast<const Function*>(argument))(); },
                   const_cast<Function*>(&function), num_threads);
}

// One weight in panels; the caller must keep its memory alive.
class Product {
public:
    // inputs_of_unit: 1 for floats, 2 for bfloat16, 4 for bytes, which have a scale and an offset per output of the
    // panels.
    Product(const std::string& instructions, Address panels, std::size_t num_outputs, std::size_t num_inputs,
            std::size_t inputs_of_unit, Address scales, Address offsets)
        : functions_(functions_named(instructions)),
          weight_{reinterpret_cast<const Unit*>(panels), num_outputs, num_inputs, inputs_of_unit,
                  reinterpret_cast<const float*>(scales), reinterpret_cast<const std::int32_t*>(offsets)} {
        require(inputs_of_unit == 1 || inputs_of_unit == 2 || inputs_of_unit == 4, "a unit has one input, two or four");
        require(weight_.is_bytes() == (scales != 0) && weight_.is_bytes() == (offsets != 0),
                "bytes have scales and offsets, and nothing else has");
        require(num_inputs > 0 && num_outputs > 0 && num_inputs % inputs_of_unit == 0, "inputs fill their units");
    }

    // rows: [num_rows, num_inputs]; bias: [num_outputs], or 0; both of bfloat16. result: [num_rows, num_outputs], in floats
    // if the weight is in floats, otherwise in bfloat16.
    void run(Address rows, Address bias, Address result, std::size_t num_rows, std::size_t num_threads) const {
        const py::gil_scoped_release others_may_run;
        RowsWork inputs(functions_, halves(rows), num_rows, weight_);
        const Task task{weight_, halves(bias), inputs.row(0), inputs.scale(0), halves(result), num_rows};
        ProductWork product(functions_.plain, num_plain_steps(weight_), {task}, num_threads);
        on_threads(std::min(num_threads, product.num_shares()), [&] {
            inputs.work();
            product.work();
        });
    }

    const Weight& weight() const { return weight_; }
    const ProductFunctions& functions() const { return functions_; }

private:
    const ProductFunctions functions_;
    const Weight weight_;
};

// `down(silu(gate(x)) * up(x))` for each slot's rows.
class GatedProducts {
public:
    GatedProducts(std::vector<const Product*> gate_up, std::vector<const Product*> down)
        : gate_up_(std::move(gate_up)), down_(std::move(down)) {
        require(!gate_up_.empty() && gate_up_.size() == down_.size(), "a slot has two weights");
        const Weight &first = gate_up_[0]->weight(), &second = down_[0]->weight();
        require(first.num_outputs == 2 * second.num_inputs && first.num_inputs == second.num_outputs,
                "gates and ups are twice as many as the inputs of what follows");
        require(second.num_inputs % kColumns == 0, "gates and ups are multiples of 16");
        require(!first.is_floats(), "gates and ups are bfloat16 or bytes");
        for (std::size_t slot = 0; slot < gate_up_.size(); ++slot) {
            require(is_alike(gate_up_[slot]->weight(), first) && is_alike(down_[slot]->weight(), second) &&
                        first.inputs_of_unit == second.inputs_of_unit,
                    "all slots' weights have the same sizes, and are of the same kind");
            require(gate_up_[slot]->functions().plain == gate_up_[0]->functions().plain &&
                        down_[slot]->functions().plain == gate_up_[0]->functions().plain,
                    "all slots' products are of the same instruction set");
        }
    }

    // `rows`, `result`: [sum(sizes), hidden] of bfloat16.
    void run(const std::vector<std::size_t>& sizes, Address rows, Address result, std::size_t num_threads) const {
        require(sizes.size() == gate_up_.size(), "each slot has a size");
        const py::gil_scoped_release others_may_run;
        const std::size_t num_rows = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
        const std::size_t hidden = gate_up_[0]->weight().num_inputs, inner = down_[0]->weight().num_inputs;
        const std::unique_ptr<std::uint16_t[]> between(new std::uint16_t[num_rows * inner]);
        const ProductFunctions& functions = gate_up_[0]->functions();
        RowsWork inputs(functions, halves(rows), num_rows, gate_up_[0]->weight());
        RowsWork inputs_of_down(functions, between.get(), num_rows, down_[0]->weight());
        std::vector<Task> first, second;
        std::size_t row = 0;
        for (std::size_t slot = 0; slot < sizes.size(); row += sizes[slot++]) {
            if (!sizes[slot]) continue;
            first.push_back({gate_up_[slot]->weight(), nullptr, inputs.row(row), inputs.scale(row),
                             between.get() + row * inner, sizes[slot]});
            second.push_back({down_[slot]->weight(), nullptr, inputs_of_down.row(row), inputs_of_down.scale(row),
                              halves(result) + row * hidden, sizes[slot]});
        }
        const std::size_t num_gated = num_gated_steps(gate_up_[0]->weight());
        ProductWork gated(functions.gated, num_gated, std::move(first), num_threads);
        ProductWork down(functions.plain, num_plain_steps(down_[0]->weight()), std::move(second), num_threads);
        on_threads(num_threads, [&] {
            inputs.work();
            gated.work();
            inputs_of_down.work();
            down.work();
        });
    }

private:
    static bool is_alike(const Weight& a, const Weight& b) {
        return a.num_outputs == b.num_outputs && a.num_inputs == b.num_inputs && a.inputs_of_unit == b.inputs_of_unit;
    }

    const std::vector<const Product*> gate_up_, down_;
};

// What an adapter adds to one layer's output.
class LowRankProducts {
public:
    // parts: `a`, and for each of its outputs `b` and the first column of the layer's output.
    explicit LowRankProducts(
        const std::vector<std::pair<const Product*, std::vector<std::pair<const Product*, std::size_t>>>>& parts)
        : functions_(functions_of(parts)) {
        for (const auto& [a, outputs] : parts) {
            LowRankPart part{a->weight(), {}};
            for (const auto& [b, first_column] : outputs) {
                require(b->weight().num_inputs == a->weight().num_outputs, "`b` multiplies the results of `a`");
                require(a->weight().inputs_of_unit == 2 && b->weight().inputs_of_unit == 2, "weights are in bfloat16");
                require(b->functions().plain == functions_.plain && a->functions().plain == functions_.plain,
                        "all products are of the same instruction set");
                part.outputs.push_back({b->weight(), first_column});
                num_columns_ = std::max(num_columns_, first_column + b->weight().num_outputs);
            }
            parts_.push_back(std::move(part));
            require(parts_.back().a.num_inputs == parts_[0].a.num_inputs, "all parts have the layer's input");
        }
    }

    const std::vector<LowRankPart>& parts() const { return parts_; }
    const ProductFunctions& functions() const { return functions_; }
    std::size_t num_inputs() const { return parts_[0].a.num_inputs; }
    std::size_t num_columns() const { return num_columns_; }

private:
    template <typename Parts>
    static const ProductFunctions& functions_of(const Parts& parts) {
        require(!parts.empty(), "an adapter changes some columns");
        return parts[0].first->functions();
    }

    const ProductFunctions functions_;
    std::vector<LowRankPart> parts_;
    std::size_t num_columns_ = 0;
};

// runs: products, first row and number of rows, none of which overlap. rows: [num_rows, num_inputs]; result: [num_rows,
// num_columns]; both of bfloat16.
void add_low_rank(const std::vector<std::tuple<const LowRankProducts*, std::size_t, std::size_t>>& runs, Address rows,
                  Address result, std::size_t num_rows, std::size_t num_inputs, std::size_t num_columns,
                  std::size_t num_threads) {
    if (runs.empty()) return;
    std::vector<LowRankRun> each;
    for (const auto& [products, first_row, count] : runs) {
        require(products->num_inputs() == num_inputs && products->num_columns() <= num_columns,
                "the products are of this layer");
        require(first_row <= num_rows && count <= num_rows - first_row, "runs are of rows that there are");
        each.push_back({&products->parts(), first_row, count});
    }
    const py::gil_scoped_release others_may_run;
    LowRankWork work(std::get<0>(runs[0])->functions(), each, halves(rows), halves(result), num_columns);
    on_threads(std::min(num_threads, work.num_turns()), [&] { work.work(); });
}

}  // namespace

PYBIND11_MODULE(products, module) {
    module.doc() = "Products of rows in bfloat16 with weights in floats, bfloat16 or bytes, on a CPU.";
    import_threads();
    module.def("instruction_sets", &names);
    py::class_<Product>(module, "Product")
        .def(py::init<const std::string&, Address, std::size_t, std::size_t, std::size_t, Address, Address>(),
             py::arg("instructions"), py::arg("panels"), py::arg("num_outputs"), py::arg("num_inputs"),
             py::arg("inputs_of_unit"), py::arg("scales") = 0, py::arg("offsets") = 0)
        .def("run", &Product::run);
    py::class_<GatedProducts>(module, "GatedProducts")
        .def(py::init<std::vector<const Product*>, std::vector<const Product*>>(), py::arg("gate_up"), py::arg("down"),
             py::keep_alive<1, 2>(), py::keep_alive<1, 3>())
        .def("run", &GatedProducts::run);
    using Outputs = std::vector<std::pair<const Product*, std::size_t>>;
    py::class_<LowRankProducts>(module, "LowRankProducts")
        .def(py::init<const std::vector<std::pair<const Product*, Outputs>>&>(), py::arg("parts"));
    module.def("add_low_rank", &add_low_rank);
}

}  // namespace baton
