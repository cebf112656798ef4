// A step's sequences, the same for all layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace baton {

struct Sequence {
    std::size_t first_token;  // in the batch
    std::size_t query_len;
    std::size_t context_len;
    std::size_t first_block;  // in the plan's `blocks`

    // Position of query row `row`: of head row % group of new token row / group.
    std::size_t position(std::size_t row, std::size_t group) const { return context_len - query_len + row / group; }
};

// Owns what the layers of a step have in common.
struct Plan {
    std::vector<Sequence> sequences;
    std::vector<std::int32_t> blocks;
    std::vector<std::int64_t> slots;  // where each new token's KV is written
    std::int64_t max_block = 0;
    std::int64_t max_slot = 0;
};

}  // namespace baton
