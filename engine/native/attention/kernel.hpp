// Interface of a kernel of any instruction set.
#pragma once

#include "division.hpp"
#include "scratch.hpp"
#include "tensors.hpp"

namespace baton {

struct Bfloat16 {
    std::uint16_t bits;
};

// A row stored as elements times one scale.
struct Int8 {
    std::int8_t value;
};

// One layer's attention.
struct Task {
    const AttentionShape& shape;
    const Sequence* sequences;
    const std::int32_t* blocks;
    Rows queries;
    Rows results;
    Cache cache;
    RowState* partial_states;  // of tiles divided among threads: [partials]
    float* partial_values;     // [partials, value_stride]
    Span span;
    const float* sinks;  // by head: a logit that takes part in the softmax without a value; null: none
};

struct Kernel {
    // Computes the item's splits; writes the rows' results, or, if the tile is divided, partial results per split.
    void (*attend)(const Task& task, const Tile& tile, const Item& item, Scratch& scratch);
    // Merges a divided tile's partial results and writes the rows' results.
    void (*combine)(const Task& task, const Tile& tile, Scratch& scratch);
    // Writes a new key or value to the cache.
    void (*store)(const char* row, std::size_t width, char* to);
    // The same for a cache in int4, which the kernels of int8 read.
    void (*store_int4)(const char* row, std::size_t width, char* to);
};

}  // namespace baton
