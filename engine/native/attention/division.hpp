// Division of a step's attention among threads, made once and used for all layers with the same span.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "plan.hpp"
#include "span.hpp"
#include "tensors.hpp"

namespace baton {

// Query rows of one sequence and KV head that are computed together. Row r is head r % group of new token r / group.
struct Tile {
    std::size_t sequence;
    std::size_t kv_head;
    std::size_t first_row;
    std::size_t num_rows;
    std::size_t first_split;  // of the context, with the first token that its first row attends to
    std::size_t end_split;    // behind the split with the last token that its last row attends to
    std::size_t num_items = 1;
    std::size_t first_partial = 0;  // if divided: index of its first split's partial result

    std::size_t num_splits() const { return end_split - first_split; }
};

// Unit of work of a thread: some splits of a tile's context.
struct Item {
    std::size_t tile;
    std::size_t first_split;
    std::size_t end_split;
};

// Owns the division. A tile's splits may be computed by several threads. Splits begin at fixed positions, each has its
// own softmax, and they are merged in order, so the result does not depend on the division, nor on other sequences.
class Division {
public:
    std::vector<Tile> tiles;
    std::vector<Item> items;  // most expensive first
    std::size_t num_partials = 0;
    std::size_t num_threads;

    Division(const Plan& plan, const AttentionShape& shape, Span span, std::size_t max_threads)
        : num_threads(max_threads) {
        for (std::size_t index = 0; index < plan.sequences.size(); ++index) add_tiles(index, plan.sequences[index], shape, span);
        std::size_t total = 0;
        for (const Tile& tile : tiles) total += tile.num_splits() * split_cost(tile);
        const std::size_t fair = total / (num_threads * kItemsPerThread) + 1;
        for (std::size_t index = 0; index < tiles.size(); ++index) add_items(index, num_threads > 1 ? fair : total);
        const auto cost = [this](const Item& item) {
            return (item.end_split - item.first_split) * split_cost(tiles[item.tile]);
        };
        std::stable_sort(items.begin(), items.end(),
                         [&cost](const Item& left, const Item& right) { return cost(left) > cost(right); });
        if (cost_of(plan) < kCostOfThreads) num_threads = 1;
    }

private:
    static constexpr std::size_t kItemsPerThread = 4;
    static constexpr std::size_t kLoadCost = 8;         // cost of loading a key and value, in units of one key for one row
    static constexpr std::size_t kMaxDividedRows = 32;  // with more rows a tile's splits would take much memory
    static constexpr std::size_t kCostOfThreads = 8000;  // below it one thread is as fast

    static std::size_t split_cost(const Tile& tile) { return tile.num_rows + kLoadCost; }

    // In units of one key for one row.
    std::size_t cost_of(const Plan& plan) const {
        std::size_t total = 0;
        for (const Tile& tile : tiles) {
            total += std::min(tile.num_splits() * kSplit, plan.sequences[tile.sequence].context_len) * split_cost(tile);
        }
        return total;
    }

    void add_tiles(std::size_t index, const Sequence& sequence, const AttentionShape& shape, Span span) {
        const std::size_t group = shape.group(), num_rows = sequence.query_len * group;
        for (std::size_t head = 0; head < shape.num_kv_heads; ++head) {
            for (std::size_t first = 0; first < num_rows; first += kMaxRows) {
                const std::size_t count = std::min(kMaxRows, num_rows - first);
                const std::size_t first_seen = span.first(sequence.position(first, group));
                const std::size_t last_seen = sequence.position(first + count - 1, group);
                tiles.push_back({index, head, first, count, first_seen / kSplit, last_seen / kSplit + 1});
            }
        }
    }

    void add_items(std::size_t index, std::size_t fair) {
        Tile& tile = tiles[index];
        const std::size_t num_splits = tile.num_splits(), wanted = (num_splits * split_cost(tile) + fair - 1) / fair;
        if (tile.num_rows <= kMaxDividedRows) tile.num_items = std::max<std::size_t>(1, std::min(wanted, num_splits));
        if (tile.num_items > 1) {
            tile.first_partial = num_partials;
            num_partials += num_splits * tile.num_rows;
        }
        for (std::size_t item = 0; item < tile.num_items; ++item) {
            items.push_back({index, tile.first_split + num_splits * item / tile.num_items,
                             tile.first_split + num_splits * (item + 1) / tile.num_items});
        }
    }
};

}  // namespace baton
