// Division of a step's attention among threads, made once and used for all layers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "tensors.hpp"

namespace baton {

struct Sequence {
    std::size_t first_token;  // in the batch
    std::size_t query_len;
    std::size_t context_len;
    std::size_t first_block;  // in the plan's `blocks`
};

// Query rows of one sequence and KV head that are computed together. Row r is head r % group of new token r / group.
struct Tile {
    std::size_t sequence;
    std::size_t kv_head;
    std::size_t first_row;
    std::size_t num_rows;
    std::size_t num_splits;  // of the context that its last row attends to
    std::size_t num_items = 1;
    std::size_t first_partial = 0;  // if divided: index of its first split's partial result
};

// Unit of work of a thread: some splits of a tile's context.
struct Item {
    std::size_t tile;
    std::size_t first_split;
    std::size_t end_split;
};

// Owns the division. A tile's splits may be computed by several threads. Each split has its own softmax, and
// splits are merged in order, so the result does not depend on the division, nor on other sequences.
class Plan {
public:
    std::vector<Sequence> sequences;
    std::vector<std::int32_t> blocks;
    std::vector<std::int64_t> slots;  // where each new token's KV is written
    std::vector<Tile> tiles;
    std::vector<Item> items;  // most expensive first
    std::size_t num_partials = 0;
    std::int64_t max_block = 0;
    std::int64_t max_slot = 0;

    // Number of keys that row `row` of a sequence attends to.
    static std::size_t seen(const Sequence& sequence, std::size_t row, std::size_t group) {
        return sequence.context_len - sequence.query_len + row / group + 1;
    }

    // Divides the sequences, which must be set already.
    void divide(const AttentionShape& shape, std::size_t num_threads) {
        for (std::size_t index = 0; index < sequences.size(); ++index) add_tiles(index, shape);
        std::size_t total = 0;
        for (const Tile& tile : tiles) total += tile.num_splits * split_cost(tile);
        const std::size_t fair = total / (num_threads * kItemsPerThread) + 1;
        for (std::size_t index = 0; index < tiles.size(); ++index) add_items(index, num_threads > 1 ? fair : total);
        const auto cost = [this](const Item& item) {
            return (item.end_split - item.first_split) * split_cost(tiles[item.tile]);
        };
        std::stable_sort(items.begin(), items.end(),
                         [&cost](const Item& left, const Item& right) { return cost(left) > cost(right); });
    }

    // Cost, in units of one key for one row.
    std::size_t cost() const {
        std::size_t total = 0;
        for (const Tile& tile : tiles) {
            total += std::min(tile.num_splits * kSplit, sequences[tile.sequence].context_len) * (tile.num_rows + kLoadCost);
        }
        return total;
    }

private:
    static constexpr std::size_t kItemsPerThread = 4;
    static constexpr std::size_t kLoadCost = 8;          // cost of loading a key and value, in the same unit
    static constexpr std::size_t kMaxDividedRows = 32;   // with more rows a tile's splits would take much memory

    static std::size_t split_cost(const Tile& tile) { return tile.num_rows + kLoadCost; }

    void add_tiles(std::size_t index, const AttentionShape& shape) {
        const Sequence& sequence = sequences[index];
        const std::size_t num_rows = sequence.query_len * shape.group();
        for (std::size_t head = 0; head < shape.num_kv_heads; ++head) {
            for (std::size_t first = 0; first < num_rows; first += kMaxRows) {
                const std::size_t count = std::min(kMaxRows, num_rows - first);
                const std::size_t last_seen = seen(sequence, first + count - 1, shape.group());
                tiles.push_back({index, head, first, count, (last_seen + kSplit - 1) / kSplit});
            }
        }
    }

    void add_items(std::size_t index, std::size_t fair) {
        Tile& tile = tiles[index];
        const std::size_t wanted = (tile.num_splits * split_cost(tile) + fair - 1) / fair;
        if (tile.num_rows <= kMaxDividedRows) tile.num_items = std::max<std::size_t>(1, std::min(wanted, tile.num_splits));
        if (tile.num_items > 1) {
            tile.first_partial = num_partials;
            num_partials += tile.num_splits * tile.num_rows;
        }
        for (std::size_t item = 0; item < tile.num_items; ++item) {
            items.push_back({index, tile.num_splits * item / tile.num_items,
                             tile.num_splits * (item + 1) / tile.num_items});
        }
    }
};

}  // namespace baton
