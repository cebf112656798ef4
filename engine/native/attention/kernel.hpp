// What a kernel, of whatever instruction set, is called with.
#pragma once

#include "plan.hpp"
#include "scratch.hpp"
#include "tensors.hpp"

namespace baton {

struct Bfloat16 {
    std::uint16_t bits;
};

// Of a row that is its elements times one scale.
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
    RowState* partial_states;  // of splits that several threads attend to: [partials]
    float* partial_values;     // [partials, value_stride]
};

struct Kernel {
    // Attends to the item's splits; writes the rows' results, or if the tile is divided its splits' partial ones.
    void (*attend)(const Task& task, const Tile& tile, const Item& item, Scratch& scratch);
    // Merges a divided tile's partial results and writes the rows' results.
    void (*combine)(const Task& task, const Tile& tile, Scratch& scratch);
    // Brings a new key or value into the cache.
    void (*store)(const char* row, std::size_t width, char* to);
};

}  // namespace baton
