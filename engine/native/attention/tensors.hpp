// Arguments of a call: memory of queries, new KV, cache and result. Strides are in bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace baton {

constexpr double kLog2E = 1.4426950408889634;
constexpr std::size_t kSplit = 256;    // keys whose scores share one softmax; splits are then merged in order
constexpr std::size_t kMaxRows = 96;   // query rows computed together
constexpr std::size_t kMaxPanel = 64;  // the widest panel of any instruction set
constexpr std::size_t kMaxWidth = 4096;
constexpr std::size_t kScaleBytes = 4;      // of a quantised row, after its elements
constexpr std::size_t kFewRows = 8;        // with more rows, computing hides the latency of memory
constexpr std::size_t kKeysAtOnce = 32;    // keys whose values are packed and added at once, for few rows
constexpr std::size_t kDistance = 32;      // keys between packing and prefetching
constexpr std::size_t kBurstBytes = 2048;  // prefetched at once between two packings
constexpr std::size_t kAhead = 48;         // keys of the next split that may be prefetched

// Shape of a layer's attention; latent attention has one KV head whose values are its keys' first columns.
struct AttentionShape {
    std::size_t num_heads;
    std::size_t num_kv_heads;
    std::size_t key_width;
    std::size_t value_width;
    std::size_t block_size;
    bool is_bfloat16;
    float scale;  // of the scores, log2(e) included: all exponentials are powers of two
    bool is_quantised = false;  // cached rows are int8 or int4, each followed by its scale
    bool is_int4 = false;
    float soft_cap = 0.0f;  // bound on the scores, in their units, by cap * tanh(score / cap); 0: none

    std::size_t group() const { return num_heads / num_kv_heads; }
    std::size_t element_bytes() const { return is_bfloat16 ? 2 : 4; }  // of queries, new KV and results
    std::size_t quantised_bytes() const { return is_int4 ? key_width / 2 : key_width; }  // of a row without its scale
    std::size_t row_bytes() const {  // of a cached key or value
        return is_quantised ? quantised_bytes() + kScaleBytes : key_width * element_bytes();
    }
    std::size_t value_stride() const { return (value_width + kMaxPanel - 1) / kMaxPanel * kMaxPanel; }  // padded
};

// [num_tokens, num_heads, width]; a token's head is contiguous.
struct Rows {
    char* data;
    std::ptrdiff_t token_stride;
    std::ptrdiff_t head_stride;

    char* at(std::size_t token, std::size_t head) const {
        return data + static_cast<std::ptrdiff_t>(token) * token_stride + static_cast<std::ptrdiff_t>(head) * head_stride;
    }
};

// One layer's view of the pool: [num_blocks, parts, keys and values, heads of a part, block_size, row].
struct Cache {
    char* data;
    std::size_t num_blocks;
    std::size_t heads_per_part;
    std::ptrdiff_t block_stride;
    std::ptrdiff_t part_stride;
    std::ptrdiff_t value_offset;  // from a key to its value; 0 for latent attention
    std::ptrdiff_t head_stride;
    std::ptrdiff_t token_stride;

    // The first key of a block.
    char* keys(std::size_t block, std::size_t head) const {
        return data + static_cast<std::ptrdiff_t>(block) * block_stride +
               static_cast<std::ptrdiff_t>(head / heads_per_part) * part_stride +
               static_cast<std::ptrdiff_t>(head % heads_per_part) * head_stride;
    }
};

}  // namespace baton
