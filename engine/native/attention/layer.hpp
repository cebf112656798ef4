// Attention of a step's layers, one after the other, over one plan and one division for each span.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "division.hpp"
#include "instruction_sets.hpp"
#include "plan.hpp"
#include "scratch.hpp"
#include "tensors.hpp"
#include "../threads.hpp"

namespace baton {

// Owns the current step's plan and the threads' scratch memory. Not thread-safe.
class LayerAttention {
public:
    LayerAttention(const AttentionShape& shape, const InstructionSet& instructions, RunOnThreads run_on_threads)
        : shape_(shape), kernel_(instructions.kernel(shape)),
          store_(shape.is_int4 ? kernel_.store_int4 : kernel_.store), run_on_threads_(run_on_threads) {}

    const AttentionShape& shape() const { return shape_; }
    const Plan& plan() const { return plan_; }

    void set_plan(Plan plan, std::size_t num_threads) {
        plan_ = std::move(plan);
        num_threads_ = num_threads;
        divisions_.clear();
        while (scratch_.size() < num_threads_) scratch_.emplace_back(shape_);
    }

    // Writes the new tokens' keys and values to their slots. `values` is unused for latent attention.
    void write(const Rows& keys, const Rows& values, const Cache& cache) {
        Writing writing{*this, keys, values, cache, {0}};
        const std::size_t num_bytes = plan_.slots.size() * shape_.num_kv_heads * shape_.key_width * shape_.element_bytes();
        run(write_some, &writing, num_bytes < kBytesOfThreads ? 1 : num_threads_);
    }

    // `sinks`: a logit by head, or null.
    void attend(const Rows& queries, const Rows& results, const Cache& cache, Span span = {}, const float* sinks = nullptr) {
        const Division& division = division_of(span);
        for (std::size_t tile = 0; tile < division.tiles.size(); ++tile) {
            items_left_[tile].store(division.tiles[tile].num_items, std::memory_order_relaxed);
        }
        const Task task{shape_, plan_.sequences.data(), plan_.blocks.data(),          queries, results,
                        cache,  partial_states_.data(), partial_values_.as<float>(), span,    sinks};
        Attending attending{*this, division, task, {0}, {0}};
        run(attend_some, &attending, division.num_threads);
    }

private:
    static constexpr std::size_t kBytesOfThreads = 1 << 17;  // below it one thread is as fast
    static constexpr std::size_t kTokensAtOnce = 16;

    struct SpanDivision {
        Span span;
        Division division;
    };

    struct Writing {
        const LayerAttention& layer;
        const Rows& keys;
        const Rows& values;
        const Cache& cache;
        std::atomic<std::size_t> next;
    };

    struct Attending {
        LayerAttention& layer;
        const Division& division;
        const Task& task;
        std::atomic<std::size_t> next;
        std::atomic<std::size_t> num_threads;
    };

    const Division& division_of(Span span) {
        for (const SpanDivision& each : divisions_) {
            if (each.span == span) return each.division;
        }
        divisions_.push_back({span, {plan_, shape_, span, num_threads_}});
        const Division& division = divisions_.back().division;
        if (division.num_partials > partial_states_.size()) {
            partial_states_.resize(division.num_partials);
            partial_values_ = AlignedMemory(4 * division.num_partials * shape_.value_stride());
        }
        if (division.tiles.size() > num_items_left_) {
            num_items_left_ = division.tiles.size();
            items_left_ = std::make_unique<std::atomic<std::size_t>[]>(num_items_left_);
        }
        return division;
    }

    void run(Work function, void* argument, std::size_t num_threads) const {
        if (num_threads > 1) {
            run_on_threads_(function, argument, num_threads);
        } else {
            function(argument);
        }
    }

    static void write_some(void* argument) noexcept {
        Writing& writing = *static_cast<Writing*>(argument);
        const std::size_t num_tokens = writing.layer.plan_.slots.size();
        for (std::size_t first; (first = writing.next.fetch_add(kTokensAtOnce)) < num_tokens;) {
            for (std::size_t token = first; token < std::min(first + kTokensAtOnce, num_tokens); ++token) {
                writing.layer.write_token(writing, token);
            }
        }
    }

    void write_token(const Writing& writing, std::size_t token) const {
        const auto slot = static_cast<std::size_t>(plan_.slots[token]);
        for (std::size_t head = 0; head < shape_.num_kv_heads; ++head) {
            char* key = writing.cache.keys(slot / shape_.block_size, head) +
                        static_cast<std::ptrdiff_t>(slot % shape_.block_size) * writing.cache.token_stride;
            store_(writing.keys.at(token, head), shape_.key_width, key);
            if (writing.cache.value_offset) {
                store_(writing.values.at(token, head), shape_.key_width, key + writing.cache.value_offset);
            }
        }
    }

    static void attend_some(void* argument) noexcept {
        Attending& attending = *static_cast<Attending*>(argument);
        LayerAttention& layer = attending.layer;
        const Division& division = attending.division;
        Scratch& scratch = layer.scratch_[attending.num_threads.fetch_add(1)];
        for (std::size_t next; (next = attending.next.fetch_add(1)) < division.items.size();) {
            const Item& item = division.items[next];
            const Tile& tile = division.tiles[item.tile];
            layer.kernel_.attend(attending.task, tile, item, scratch);
            // The last thread at a divided tile merges the results that the others wrote.
            if (tile.num_items > 1 && layer.items_left_[item.tile].fetch_sub(1, std::memory_order_acq_rel) == 1) {
                layer.kernel_.combine(attending.task, tile, scratch);
            }
        }
    }

    const AttentionShape shape_;
    const Kernel kernel_;
    void (*const store_)(const char* row, std::size_t width, char* to);
    const RunOnThreads run_on_threads_;
    Plan plan_;
    std::size_t num_threads_ = 1;
    std::vector<SpanDivision> divisions_;  // of the plan, for the spans that were needed so far
    std::vector<Scratch> scratch_;  // one per thread
    std::unique_ptr<std::atomic<std::size_t>[]> items_left_;  // of each tile of the current division
    std::size_t num_items_left_ = 0;
    std::vector<RowState> partial_states_;
    AlignedMemory partial_values_;
};

}  // namespace baton
