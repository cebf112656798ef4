// Attention over the paged KV cache, on a CPU.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "attention/layer.hpp"
#include "shared_threads.hpp"

namespace py = pybind11;

namespace baton {
namespace {

void require(bool holds, const char* otherwise) {
    if (!holds) throw py::value_error(otherwise);
}

Rows make_rows(std::uintptr_t data, std::ptrdiff_t token_stride, std::ptrdiff_t head_stride) {
    return {reinterpret_cast<char*>(data), token_stride, head_stride};
}

Cache make_cache(std::uintptr_t data, std::size_t num_blocks, std::size_t heads_per_part, std::ptrdiff_t block_stride,
                 std::ptrdiff_t part_stride, std::ptrdiff_t value_offset, std::ptrdiff_t head_stride,
                 std::ptrdiff_t token_stride) {
    require(heads_per_part > 0, "a part has one head or more");
    return {reinterpret_cast<char*>(data), num_blocks, heads_per_part, block_stride,
            part_stride, value_offset, head_stride, token_stride};
}

AttentionShape make_shape(double scale, std::size_t block_size, std::size_t num_heads, std::size_t num_kv_heads,
                          std::size_t key_width, std::size_t value_width, bool is_bfloat16, bool is_quantised,
                          bool is_int4, double soft_cap) {
    require(num_kv_heads > 0 && num_heads > 0 && num_heads % num_kv_heads == 0,
            "the heads are a whole number for each KV head, one or more");
    require(key_width > 0 && key_width <= kMaxWidth, "a key has between 1 and 4096 elements");
    require(value_width > 0 && value_width <= key_width, "a value has one element or more, and no more than a key");
    require(!is_int4 || (is_quantised && key_width % 2 == 0),
            "a row of 4 bits is quantised and has an even number of elements");
    require(block_size > 0 && block_size <= std::numeric_limits<std::uint32_t>::max(), "a block has one token or more");
    require(soft_cap >= 0, "a soft cap is positive, or 0 for none");
    return {num_heads,   num_kv_heads, key_width, value_width, block_size, is_bfloat16, static_cast<float>(scale * kLog2E),
            is_quantised, is_int4, static_cast<float>(soft_cap * kLog2E)};
}

// `width` 0: the whole context.
Span make_span(std::size_t width, bool is_chunked) {
    return width ? Span{width, is_chunked} : Span{};
}

const InstructionSet& instruction_set(const std::string& name) {
    const InstructionSet* found = find_instruction_set(name.c_str());
    if (!found) throw py::value_error("this processor does not have the instruction set '" + name + "'");
    return *found;
}

// Interface for Python. Calls are serialised.
class PagedAttention {
public:
    PagedAttention(double scale, std::size_t block_size, std::size_t num_heads, std::size_t num_kv_heads,
                   std::size_t key_width, std::size_t value_width, bool is_bfloat16, bool is_quantised, bool is_int4,
                   double soft_cap, const std::string& instructions)
        : layer_(make_shape(scale, block_size, num_heads, num_kv_heads, key_width, value_width, is_bfloat16, is_quantised,
                            is_int4, soft_cap),
                 instruction_set(instructions), run_on_threads) {}

    // `block_tables`: [num_seqs, max_blocks] and `slots`: [num_tokens], both int64 and contiguous.
    void plan(const std::vector<std::size_t>& query_lens, const std::vector<std::size_t>& context_lens,
              std::uintptr_t block_tables, std::size_t max_blocks, std::uintptr_t slots, std::size_t num_slots,
              std::size_t num_threads) {
        require(query_lens.size() == context_lens.size(), "each sequence has a query length and a context length");
        require(num_threads > 0, "there is one thread or more");
        Plan plan;
        for (std::size_t i = 0; i < query_lens.size(); ++i) {
            add_sequence(plan, query_lens[i], context_lens[i],
                         reinterpret_cast<const std::int64_t*>(block_tables) + i * max_blocks, max_blocks);
        }
        const auto* slot = reinterpret_cast<const std::int64_t*>(slots);
        plan.slots.assign(slot, slot + num_slots);
        for (const std::int64_t each : plan.slots) {
            require(each >= 0, "a slot is negative");
            plan.max_slot = std::max(plan.max_slot, each);
        }
        const std::size_t num_tokens =
            plan.sequences.empty() ? 0 : plan.sequences.back().first_token + plan.sequences.back().query_len;
        require(num_tokens == num_slots, "each new token has a slot");
        const std::lock_guard<std::mutex> guard(one_at_a_time_);
        layer_.set_plan(std::move(plan), num_threads);
    }

    void forward(const Rows& queries, const Rows& keys, const Rows& values, const Cache& cache, const Rows& results,
                 std::size_t num_tokens, const Span& span, std::uintptr_t sinks) {
        const py::gil_scoped_release others_may_run;
        const std::lock_guard<std::mutex> guard(one_at_a_time_);
        check(cache, num_tokens);
        if (keys.data) layer_.write(keys, values, cache);  // otherwise an earlier layer has written them
        layer_.attend(queries, results, cache, span, reinterpret_cast<const float*>(sinks));
    }

private:
    void add_sequence(Plan& plan, std::size_t query_len, std::size_t context_len, const std::int64_t* table,
                      std::size_t max_blocks) const {
        require(query_len > 0 && query_len <= context_len, "a sequence has one new token or more, within its context");
        const std::size_t block_size = layer_.shape().block_size;
        const std::size_t num_blocks = (context_len - 1) / block_size + 1;
        require(num_blocks <= max_blocks, "a block table is shorter than the context");
        const std::size_t first_token =
            plan.sequences.empty() ? 0 : plan.sequences.back().first_token + plan.sequences.back().query_len;
        plan.sequences.push_back({first_token, query_len, context_len, plan.blocks.size()});
        for (std::size_t i = 0; i < num_blocks; ++i) {
            require(table[i] >= 0 && table[i] <= std::numeric_limits<std::int32_t>::max(), "a block id is negative or huge");
            plan.blocks.push_back(static_cast<std::int32_t>(table[i]));
            plan.max_block = std::max(plan.max_block, table[i]);
        }
    }

    void check(const Cache& cache, std::size_t num_tokens) const {
        const Plan& plan = layer_.plan();
        require(plan.slots.size() == num_tokens, "the batch is not the one that was planned for");
        require(static_cast<std::size_t>(plan.max_block) < cache.num_blocks, "a block table names a block beyond the pool");
        require(static_cast<std::size_t>(plan.max_slot) / layer_.shape().block_size < cache.num_blocks,
                "a slot is beyond the pool");
    }

    std::mutex one_at_a_time_;
    LayerAttention layer_;
};

std::vector<std::string> instruction_sets() {
    std::vector<std::string> names;
    for (const InstructionSet& each : kInstructionSets) {
        if (each.is_here()) names.emplace_back(each.name);
    }
    return names;
}

}  // namespace

PYBIND11_MODULE(paged_attention, module) {
    module.doc() = "Attention over the paged KV cache, on a CPU.";
    module.def("instruction_sets", &instruction_sets);
    import_threads();
    py::class_<Rows>(module, "Rows")
        .def(py::init(&make_rows), py::arg("data"), py::arg("token_stride"), py::arg("head_stride"));
    py::class_<Cache>(module, "Cache")
        .def(py::init(&make_cache), py::arg("data"), py::arg("num_blocks"), py::arg("heads_per_part"),
             py::arg("block_stride"), py::arg("part_stride"), py::arg("value_offset"), py::arg("head_stride"),
             py::arg("token_stride"));
    py::class_<Span>(module, "Span")
        .def(py::init(&make_span), py::kw_only(), py::arg("width"), py::arg("is_chunked"));
    py::class_<PagedAttention>(module, "PagedAttention")
        .def(py::init<double, std::size_t, std::size_t, std::size_t, std::size_t, std::size_t, bool, bool, bool, double,
                      const std::string&>(),
             py::kw_only(), py::arg("scale"), py::arg("block_size"), py::arg("num_heads"), py::arg("num_kv_heads"),
             py::arg("key_width"), py::arg("value_width"), py::arg("is_bfloat16"), py::arg("is_quantised") = false,
             py::arg("is_int4") = false, py::arg("soft_cap") = 0.0, py::arg("instructions"))
        .def("plan", &PagedAttention::plan, py::kw_only(), py::arg("query_lens"), py::arg("context_lens"),
             py::arg("block_tables"), py::arg("max_blocks"), py::arg("slots"), py::arg("num_slots"),
             py::arg("num_threads"))
        .def("forward", &PagedAttention::forward, py::arg("queries"), py::arg("keys"), py::arg("values"),
             py::arg("cache"), py::arg("results"), py::arg("num_tokens"), py::arg("span"), py::arg("sinks"));
}

}  // namespace baton
