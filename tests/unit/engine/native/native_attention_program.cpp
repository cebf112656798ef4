// Attention kernels on memory of exactly the size that they may touch, so that sanitizers detect accesses beyond it. Every
// supported instruction set is compared with sums in double precision. With the argument "beyond" a block table names a
// block after the last one, which must be detected.

#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "attention/layer.hpp"

using namespace baton;

namespace {

constexpr unsigned kThreads = 3;
constexpr int kTrials = 60;

void run_on_threads(Work function, void* argument, std::size_t num_threads) {
    std::vector<std::thread> threads;
    for (std::size_t i = 1; i < num_threads; ++i) threads.emplace_back(function, argument);
    function(argument);
    for (std::thread& thread : threads) thread.join();
}

// Owns [rows, width] elements of 4, 2 or 1 bytes: small numbers that are exact in each type. Rows of int8 have a scale, as
// have those of int4, whose bytes hold two codes each.
struct Matrix {
    Matrix(std::size_t num_rows, std::size_t width, std::size_t bytes, std::mt19937& random, bool is_int4 = false)
        : width(is_int4 ? width / 2 : width), bytes(bytes),
          row_bytes(this->width * bytes + (bytes == 1 ? kScaleBytes : 0)), data(new char[num_rows * row_bytes]),
          is_int4(is_int4) {
        for (std::size_t row = 0; row < num_rows; ++row) {
            for (std::size_t i = 0; i < this->width; ++i) set(row, i, static_cast<int>(random() % 33) - 16);
            const float scale = static_cast<float>(1 + row % 3) / 16;
            if (bytes == 1) std::memcpy(place(row, this->width), &scale, sizeof scale);
        }
    }

    float at(std::size_t row, std::size_t column) const {
        if (is_int4) {
            const int codes = static_cast<std::uint8_t>(*place(row, column % width));
            return scale_of(row) * static_cast<float>((column < width ? codes & 15 : codes >> 4) - 8);
        }
        if (bytes == 1) return scale_of(row) * static_cast<float>(static_cast<std::int8_t>(*place(row, column)));
        std::uint32_t bits = 0;
        char* upper = reinterpret_cast<char*>(&bits) + sizeof bits - bytes;
        std::memcpy(upper, place(row, column), bytes);
        float value;
        std::memcpy(&value, &bits, sizeof value);
        return value;
    }

    Rows rows(std::size_t num_heads) const {
        const auto stride = static_cast<std::ptrdiff_t>(row_bytes);
        return {data.get(), static_cast<std::ptrdiff_t>(num_heads) * stride, stride};
    }

    const std::size_t width, bytes, row_bytes;
    const std::unique_ptr<char[]> data;
    const bool is_int4;

private:
    char* place(std::size_t row, std::size_t column) const { return data.get() + row * row_bytes + column * bytes; }

    float scale_of(std::size_t row) const {
        float scale;
        std::memcpy(&scale, place(row, width), sizeof scale);
        return scale;
    }

    void set(std::size_t row, std::size_t column, int eighths) {
        const float value = static_cast<float>(eighths) / 8;
        std::uint32_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        const auto upper = static_cast<std::uint16_t>(bits >> 16);
        const auto whole = static_cast<std::int8_t>(eighths);
        const void* from = bytes == 4 ? static_cast<const void*>(&bits) : bytes == 2 ? static_cast<const void*>(&upper) : &whole;
        std::memcpy(place(row, column), from, bytes);
    }
};

std::size_t pick(std::mt19937& random, std::initializer_list<std::size_t> from) {
    return from.begin()[random() % from.size()];
}

AttentionShape random_shape(std::mt19937& random, bool is_bfloat16, bool is_quantised, bool is_int4) {
    const bool is_latent = random() % 4 == 0;
    const std::size_t num_kv_heads = is_latent ? 1 : pick(random, {1, 2, 3});
    const std::size_t key_width = is_int4 ? pick(random, {2, 8, 30, 64, 80, 128, 200, 576})
                                          : pick(random, {1, 7, 8, 31, 64, 80, 128, 200, 576});
    return {num_kv_heads * pick(random, {1, 2, 3, 8, 16}), num_kv_heads, key_width,
            is_latent ? (key_width + 1) / 2 : key_width, pick(random, {1, 8, 16, 64}), is_bfloat16, 0.1f, is_quantised,
            is_int4, random() % 3 ? 0.0f : 1.5f};
}

Span random_span(std::mt19937& random) {
    if (random() % 2) return {};
    return {pick(random, {1, 5, 16, 100, 256, 300, 1000}), random() % 3 == 0};
}

// Owns a step of a few sequences. Every sequence's blocks are in order in the pool: [blocks, keys and values, heads, tokens].
struct Step {
    Step(const AttentionShape& shape, std::mt19937& random, bool is_beyond) : shape(shape) {
        const std::size_t num_sequences = 1 + random() % 3;
        for (std::size_t i = 0; i < num_sequences; ++i) {
            const std::size_t query_len = random() % 2 ? 1 : 1 + random() % 40;
            const std::size_t context_len = query_len + (random() % 3 ? random() % 700 : 0);
            plan.sequences.push_back({num_tokens, query_len, context_len, plan.blocks.size()});
            for (std::size_t token = context_len - query_len; token < context_len; ++token) {
                plan.slots.push_back(static_cast<std::int64_t>(num_blocks * shape.block_size + token));
            }
            for (std::size_t token = 0; token < context_len; token += shape.block_size) {
                plan.blocks.push_back(static_cast<std::int32_t>(num_blocks++));
            }
            num_tokens += query_len;
        }
        if (is_beyond) plan.blocks[0] = static_cast<std::int32_t>(num_blocks);
    }

    bool is_latent() const { return shape.value_width < shape.key_width; }
    std::size_t pool_rows() const {
        return num_blocks * (is_latent() ? 1 : 2) * shape.num_kv_heads * shape.block_size;
    }

    Cache cache(const Matrix& pool) const {
        const auto token = static_cast<std::ptrdiff_t>(pool.row_bytes);
        const std::ptrdiff_t head = token * static_cast<std::ptrdiff_t>(shape.block_size);
        const std::ptrdiff_t value = is_latent() ? 0 : head * static_cast<std::ptrdiff_t>(shape.num_kv_heads);
        const std::ptrdiff_t block = value ? 2 * value : head;
        return {pool.data.get(), num_blocks, shape.num_kv_heads, block, 0, value, head, token};
    }

    // Row of the pool with a token's key or value.
    std::size_t row(const Sequence& sequence, std::size_t token, std::size_t head, bool is_value) const {
        const auto block = static_cast<std::size_t>(plan.blocks[sequence.first_block + token / shape.block_size]);
        const std::size_t part = is_latent() ? block : 2 * block + is_value;
        return (part * shape.num_kv_heads + head) * shape.block_size + token % shape.block_size;
    }

    const AttentionShape shape;
    Plan plan;
    std::size_t num_tokens = 0, num_blocks = 0;
};

// The result's greatest error for one query row.
double error_of(const Step& step, const Sequence& sequence, std::size_t query, std::size_t head, const Matrix& queries,
                const Matrix& pool, const Matrix& results, Span span, const float* sinks) {
    const AttentionShape& shape = step.shape;
    const std::size_t row = (sequence.first_token + query) * shape.num_heads + head, kv_head = head / shape.group();
    std::vector<double> sums(shape.value_width);
    const std::size_t position = sequence.context_len - sequence.query_len + query;
    double total = sinks ? std::exp(static_cast<double>(sinks[head])) : 0;
    for (std::size_t token = span.first(position); token <= position; ++token) {
        double score = 0;
        for (std::size_t i = 0; i < shape.key_width; ++i) {
            score += static_cast<double>(queries.at(row, i)) * pool.at(step.row(sequence, token, kv_head, false), i);
        }
        score *= shape.scale;
        if (shape.soft_cap > 0) score = shape.soft_cap * std::tanh(score / shape.soft_cap);
        const double weight = std::exp2(score);
        total += weight;
        for (std::size_t i = 0; i < shape.value_width; ++i) {
            sums[i] += weight * pool.at(step.row(sequence, token, kv_head, true), i);
        }
    }
    double worst = 0;
    for (std::size_t i = 0; i < shape.value_width; ++i) {
        worst = std::max(worst, std::abs(sums[i] / total - results.at(row, i)));
    }
    return worst;
}

bool attend(const Step& step, const InstructionSet& instructions, std::mt19937& random) {
    const AttentionShape& shape = step.shape;
    const std::size_t bytes = shape.element_bytes();
    const Matrix queries(step.num_tokens * shape.num_heads, shape.key_width, bytes, random);
    const Matrix keys(step.num_tokens * shape.num_kv_heads, shape.key_width, bytes, random);
    const Matrix pool(step.pool_rows(), shape.key_width, shape.is_quantised ? 1 : bytes, random, shape.is_int4);
    const Matrix results(step.num_tokens * shape.num_heads, shape.value_width, bytes, random);
    LayerAttention layer(shape, instructions, run_on_threads);
    layer.set_plan(step.plan, 1 + random() % kThreads);
    layer.write(keys.rows(shape.num_kv_heads), keys.rows(shape.num_kv_heads), step.cache(pool));
    const Span span = random_span(random);
    std::vector<float> logits(shape.num_heads);
    for (float& logit : logits) logit = static_cast<float>(random() % 9) - 4;
    const float* sinks = random() % 3 ? nullptr : logits.data();
    layer.attend(queries.rows(shape.num_heads), results.rows(shape.num_heads), step.cache(pool), span, sinks);
    double worst = 0;
    for (const Sequence& sequence : step.plan.sequences) {
        for (const std::size_t query : {std::size_t{0}, sequence.query_len - 1}) {
            const std::size_t head = random() % shape.num_heads;
            worst = std::max(worst, error_of(step, sequence, query, head, queries, pool, results, span, sinks));
        }
    }
    if (worst < (shape.is_bfloat16 ? 3e-2 : 1e-4)) return true;
    std::printf("%s: error %g with heads of %zu, blocks of %zu\n", instructions.name, worst, shape.key_width, shape.block_size);
    return false;
}

}  // namespace

int main(int argc, char** argv) {
    const bool is_beyond = argc > 1 && !std::strcmp(argv[1], "beyond");
    std::mt19937 random(7);
    bool is_good = true;
    for (const InstructionSet& instructions : kInstructionSets) {
        if (!instructions.is_here()) continue;
        for (int trial = 0; trial < kTrials; ++trial) {
            const AttentionShape shape = random_shape(random, trial % 2, trial % 4 > 1, trial % 8 > 5);
            is_good &= attend(Step(shape, random, is_beyond), instructions, random);
        }
        std::printf("%s: %d steps\n", instructions.name, kTrials);
    }
    return is_good ? 0 : 1;
}
