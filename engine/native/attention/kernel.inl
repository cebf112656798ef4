// Attention of one item. Included once per instruction set, whose `Lanes` and cells it uses. It must instantiate nothing
// of the standard library: the linker keeps one copy of such a function, perhaps one that this processor cannot run.

static constexpr std::size_t kPanel = Lanes::kWidth * Lanes::kVectors;

static inline std::size_t smaller(std::size_t left, std::size_t right) { return left < right ? left : right; }
static inline std::size_t round_up(std::size_t count, std::size_t unit) { return (count + unit - 1) / unit * unit; }

static BATON_INLINE float widened(std::uint16_t bits) {
    const std::uint32_t whole = std::uint32_t{bits} << 16;
    float value;
    std::memcpy(&value, &whole, sizeof value);
    return value;
}

#include "quantised.inl"

#include "packing.inl"

#include "product.inl"

#include "softmax.inl"

#include "soft_cap.inl"

// `Storage` is the type of queries, new KV and results, `Cached` that of the KV in the cache.
template <typename Storage, typename Cached, typename Cells>
struct Attention {
    using Cell = typename Cells::Cell;
    // Weights that are multiplied by their values' scales become cells only then.
    static constexpr bool kWeightsInPlace = Cells::kPerCell == 1 || kIsInt8<Cached>;
    static constexpr bool kInQuads = kIsInt8<Cached> && Cells::kHasQuads;
    static constexpr std::size_t kScoredRows = kInQuads ? Lanes::kRows / 2 : Lanes::kRows;  // each has two digits
    static constexpr std::size_t kCellsOfSplit = kSplit / Cells::kPerCell;
    static constexpr std::size_t kAtOnce = Lanes::kWidth * Cells::kPerCell;  // keys whose weights are summed at once

    // Keys of a split that a tile's rows attend to, as offsets: from `first` up to, excluding, `end`. Whole vectors are
    // computed, from `start` up to `padded()`.
    struct Keys {
        std::size_t first;
        std::size_t start;
        std::size_t end;

        std::size_t padded() const { return round_up(end, Lanes::kWidth); }
        std::size_t num_padded() const { return padded() - start; }
    };

    const Task& task;
    const Tile& tile;
    Scratch& scratch;
    const AttentionShape& shape;
    const Sequence& sequence;
    const std::size_t key_cells;
    const std::ptrdiff_t head_offset;  // from a block's first key to the head's
    Seen* const seen;
    RowState* const states;
    Merge* const merges;

    Attention(const Task& task, const Tile& tile, Scratch& scratch)
        : task(task), tile(tile), scratch(scratch), shape(task.shape), sequence(task.sequences[tile.sequence]),
          key_cells(kInQuads ? (shape.key_width + 3) / 4 : (shape.key_width + Cells::kPerCell - 1) / Cells::kPerCell),
          head_offset(task.cache.keys(0, tile.kv_head) - task.cache.data), seen(scratch.seen.as<Seen>()),
          states(scratch.states.as<RowState>()), merges(scratch.merges.as<Merge>()) {
        for (std::size_t row = 0; row < tile.num_rows; ++row) {
            const std::size_t position = sequence.position(tile.first_row + row, shape.group());
            seen[row] = {task.span.first(position), position + 1};
        }
    }

    bool is_divided() const { return tile.num_items > 1; }
    std::size_t token_of(std::size_t row) const { return sequence.first_token + (tile.first_row + row) / shape.group(); }
    std::size_t head_of(std::size_t row) const {
        return tile.kv_head * shape.group() + (tile.first_row + row) % shape.group();
    }
    // A position's offset in a split, within its bounds.
    static std::size_t offset_in(std::size_t split, std::size_t position) {
        return position > split * kSplit ? smaller(position - split * kSplit, kSplit) : 0;
    }
    // Keys of a split that the row attends to, as offsets.
    Seen seen_of(std::size_t split, std::size_t row) const {
        return {offset_in(split, seen[row].first), offset_in(split, seen[row].end)};
    }
    std::size_t end_of(std::size_t split, std::size_t row) const { return offset_in(split, seen[row].end); }
    std::size_t partial_of(std::size_t split, std::size_t row) const {
        return tile.first_partial + (split - tile.first_split) * tile.num_rows + row;
    }

    void attend(const Item& item) {
        load_queries();
        for (std::size_t row = 0; row < tile.num_rows; ++row) states[row] = {-INFINITY, 0.0f};
        for (std::size_t split = item.first_split; split < item.end_split; ++split) attend_split(split, item.end_split);
        if (!is_divided()) write_results();
    }

    void combine() {
        const std::size_t stride = shape.value_stride();
        for (std::size_t row = 0; row < tile.num_rows; ++row) {
            RowState state{-INFINITY, 0.0f};
            float* values = scratch.values.as<float>() + row * stride;
            for (std::size_t split = tile.first_split; split < tile.end_split; ++split) {
                const std::size_t partial = partial_of(split, row);
                const Merge merge = merged(state, task.partial_states[partial], seen_of(split, row));
                merge_values(values, task.partial_values + partial * stride, merge, split == tile.first_split, stride);
            }
            states[row] = state;
        }
        write_results();
    }

private:
    void load_queries() {
        Cell* cells = scratch.queries.as<Cell>();
        for (std::size_t row = 0; row < tile.num_rows; ++row) {
            const char* query = task.queries.at(token_of(row), head_of(row));
            if constexpr (kInQuads) {
                scratch.digits.as<QueryDigits>()[row] =
                    Cells::Quads::template load_query<Storage>(query, shape.key_width, cells + row * 2 * key_cells);
            } else {
                load_query<Storage, Cells>(query, shape.key_width, cells + row * key_cells);
            }
        }
    }

    void attend_split(std::size_t split, std::size_t end_split) {
        const std::size_t first_key = seen_of(split, 0).first;  // of all rows
        const Keys keys{first_key, first_key / kAtOnce * kAtOnce, end_of(split, tile.num_rows - 1)};
        find_keys(split, keys, split + 1 < end_split);
        score(split, keys);
        for (std::size_t row = 0; row < tile.num_rows; ++row) weigh(split, row, keys);
        sum_values(split, split == tile.first_split || is_divided(), keys);
    }

    // Prefetches keys or values ahead of packing, few enough for the processor's outstanding loads.
    void prefetch_later(const char* const* rows) const {
        if (tile.num_rows > kFewRows) return;
        const std::size_t num_bytes = shape.row_bytes();
        const std::size_t num_rows = smaller(kAhead - kDistance, 1 + kBurstBytes / num_bytes);
        for (std::size_t row = 0; row < num_rows; ++row) {
            for (std::size_t byte = 0; byte < num_bytes; byte += 64) __builtin_prefetch(rows[kDistance + row] + byte);
        }
    }

    // Pointers to this split's keys and values and the next split's first keys, in reading order.
    void find_keys(std::size_t split, Keys range, bool has_next) {
        const char** keys = scratch.touched.as<const char*>();
        const char **values = keys + range.num_padded(), **next = values + range.num_padded();
        const std::size_t skipped = range.first - range.start, end = range.end - range.start, first = split * kSplit;
        for (std::size_t key = 0; key < skipped; ++key) keys[key] = values[key] = scratch.no_key.data();
        point_at(first + range.first, end - skipped, keys + skipped);
        for (std::size_t key = skipped; key < end; ++key) values[key] = keys[key] + task.cache.value_offset;
        for (std::size_t key = end; key < range.num_padded(); ++key) keys[key] = values[key] = scratch.no_key.data();
        const std::size_t num_next = has_next ? smaller(kAhead, seen[tile.num_rows - 1].end - first - kSplit) : 0;
        if (num_next) point_at(first + kSplit, num_next, next);
        for (std::size_t key = num_next; key < kAhead; ++key) next[key] = scratch.no_key.data();
    }

    void point_at(std::size_t first, std::size_t num_keys, const char** to) const {
        const std::int32_t* block = task.blocks + sequence.first_block + first / shape.block_size;
        std::size_t offset = first % shape.block_size;
        for (std::size_t key = 0; key < num_keys; offset = 0) {
            const char* found = task.cache.data + *block++ * task.cache.block_stride + head_offset;
            const std::size_t count = smaller(num_keys - key, shape.block_size - offset);
            for (std::size_t i = 0; i < count; ++i) {
                to[key + i] = found + static_cast<std::ptrdiff_t>(offset + i) * task.cache.token_stride;
            }
            key += count;
        }
    }

    void score(std::size_t split, Keys range) {
        Cell* packed = scratch.packed_keys.as<Cell>();
        for (std::size_t first = range.start; first < range.end; first += kPanel) {
            const std::size_t count = smaller(range.padded() - first, kPanel);
            const char* const* keys = scratch.touched.as<const char*>() + first - range.start;
            pack_keys<Cached, Cells>(unpacked(keys, count), count, shape.key_width, packed);
            if constexpr (kIsInt8<Cached>) load_scales(keys, count, shape.scale);
            prefetch_later(keys + count);
            for (std::size_t row = 0; row < tile.num_rows; row += kScoredRows) {
                const std::size_t num_rows = smaller(kScoredRows, tile.num_rows - row);
                if (end_of(split, row + num_rows - 1) <= first) continue;
                score_rows(row, num_rows, count / Lanes::kWidth, scratch.scores.as<float>() + row * kSplit + first);
            }
        }
    }

    // Of `num_vectors` vectors of keys.
    void score_rows(std::size_t row, std::size_t num_rows, std::size_t num_vectors, float* to) const {
        const Cell* packed = scratch.packed_keys.as<Cell>();
        const float* scales = scratch.scales.as<float>();
        if constexpr (kInQuads) {
            const Cell* queries = scratch.queries.as<Cell>() + row * 2 * key_cells;
            Cells::Quads::score(queries, scratch.digits.as<QueryDigits>() + row, packed, key_cells, scales, to, num_rows,
                                num_vectors);
        } else {
            const Cell* queries = scratch.queries.as<Cell>() + row * key_cells;
            const Factors<Cells> factors{queries, key_cells, packed, key_cells, nullptr, 0};
            if constexpr (kIsInt8<Cached>) multiply<Cells>(factors, num_rows, num_vectors, KeyScores{to, scales});
            else multiply<Cells>(factors, num_rows, num_vectors, Scores{to, Lanes::broadcast(shape.scale)});
        }
    }

    // Some rows, up to a split, unpacked if they are int4.
    const char* const* unpacked(const char* const* rows, std::size_t count) const {
        if constexpr (kIsInt8<Cached>) {
            if (shape.is_int4) {
                return unpack_int4(rows, count, shape.key_width, scratch.unpacked.as<std::int8_t>(),
                                   scratch.unpacked_rows.as<const char*>());
            }
        }
        return rows;
    }

    // The scales of some rows, times a factor.
    void load_scales(const char* const* rows, std::size_t count, float factor) {
        float* scales = scratch.scales.as<float>();
        for (std::size_t i = 0; i < count; ++i) scales[i] = scale_of(rows[i], shape.quantised_bytes()) * factor;
    }

    void weigh(std::size_t split, std::size_t row, Keys range) {
        const Seen keys = seen_of(split, row);
        float* scores = scratch.scores.as<float>() + row * kSplit;
        std::uint32_t* cells = scratch.weights.as<std::uint32_t>() + row * kSplit / 2;
        if (shape.soft_cap > 0.0f) cap_scores(scores, keys, shape.soft_cap);
        const RowState found = softmax<Cells, kWeightsInPlace>(scores, keys, range.start, range.padded(), cells);
        if (is_divided()) {
            task.partial_states[partial_of(split, row)] = found;
        } else {
            merges[row] = merged(states[row], found, keys);
        }
    }

    void sum_values(std::size_t split, bool is_first, Keys range) {
        Cell* packed = scratch.packed_values.as<Cell>();
        const char* const* values = scratch.touched.as<const char*>() + range.num_padded();
        // With few rows, computing is faster than loading: prefetch the next data in the meantime.
        const std::size_t at_once = tile.num_rows > kFewRows || !task.cache.value_offset ? kSplit : kKeysAtOnce;
        for (std::size_t first = range.start; first < range.end; first += at_once) {
            const std::size_t count = smaller(range.end - first, at_once);
            pack_values<Cached, Cells>(unpacked(values, count), count, shape.value_width, packed);
            if constexpr (kIsInt8<Cached>) scale_weights(split, first, count, values);
            values += count;
            prefetch_later(values);
            add_values(split, first, count, is_first, range);
        }
    }

    // Multiplies the weights of keys `first` to `first + count` of the split by the scales of their values.
    void scale_weights(std::size_t split, std::size_t first, std::size_t count, const char* const* values) {
        load_scales(values, count, 1.0f);
        for (std::size_t row = 0; row < tile.num_rows; ++row) {
            const std::size_t num_seen = end_of(split, row);
            float* weights = scratch.scores.as<float>() + row * kSplit + first;
            std::uint32_t* cells = scratch.weights.as<std::uint32_t>() + (row * kSplit + first) / 2;
            scale<Cells>(weights, scratch.scales.as<float>(), num_seen > first ? smaller(num_seen - first, count) : 0, count,
                         cells);
        }
    }

    // Adds the values of keys `first` to `first + count` of the split; the last call merges the split.
    void add_values(std::size_t split, std::size_t first, std::size_t count, bool is_first, Keys range) {
        const std::size_t stride = shape.value_stride();
        float* values = is_divided() ? task.partial_values + partial_of(split, 0) * stride : scratch.values.as<float>();
        for (std::size_t place = 0; place < shape.value_width; place += kPanel) {
            const std::size_t num_vectors =
                smaller(Lanes::kVectors, (shape.value_width - place + Lanes::kWidth - 1) / Lanes::kWidth);
            const Cell* panel = scratch.packed_values.as<Cell>() + place * kCellsOfSplit;
            for (std::size_t row = 0; row < tile.num_rows; row += Lanes::kRows) {
                const std::size_t num_rows = smaller(Lanes::kRows, tile.num_rows - row);
                const std::size_t num_seen = end_of(split, row + num_rows - 1);
                const std::size_t num_added = num_seen > first ? smaller(num_seen - first, count) : 0;
                float* sums = scratch.sums.as<float>() + row * stride + place;
                const Factors<Cells> factors{weights_of(row) + first / Cells::kPerCell, kCellsOfSplit, panel,
                                             (num_added + Cells::kPerCell - 1) / Cells::kPerCell,
                                             first > range.start ? sums : nullptr, stride};
                float* to = first + count < range.end ? sums : values + row * stride + place;
                multiply<Cells>(factors, num_rows, num_vectors, Values{to, stride, merges + row, is_first || to == sums});
            }
        }
    }

    const Cell* weights_of(std::size_t row) const {
        if constexpr (Cells::kPerCell == 1) return scratch.scores.as<float>() + row * kSplit;
        else return scratch.weights.as<Cell>() + row * kCellsOfSplit;
    }

    void write_results() {
        const std::size_t stride = shape.value_stride();
        for (std::size_t row = 0; row < tile.num_rows; ++row) {
            const float factor = task.sinks ? factor_of(states[row], task.sinks[head_of(row)]) : 1.0f / states[row].sum;
            write_row<Storage>(scratch.values.as<float>() + row * stride, factor, shape.value_width,
                               task.results.at(token_of(row), head_of(row)));
        }
    }
};

template <typename Storage, typename Cached, typename Cells>
static void attend(const Task& task, const Tile& tile, const Item& item, Scratch& scratch) {
    Attention<Storage, Cached, Cells>(task, tile, scratch).attend(item);
}

template <typename Storage, typename Cached, typename Cells>
static void combine(const Task& task, const Tile& tile, Scratch& scratch) {
    Attention<Storage, Cached, Cells>(task, tile, scratch).combine();
}

template <typename Storage, typename Cached>
static void store(const char* row, std::size_t width, char* to) {
    if constexpr (kIsInt8<Cached>) quantise<Storage>(row, width, to);
    else std::memcpy(to, row, width * sizeof(Storage));
}

template <typename Storage, typename Cached, typename Cells>
static constexpr Kernel kKernel{attend<Storage, Cached, Cells>, combine<Storage, Cached, Cells>, store<Storage, Cached>,
                                quantise_int4<Storage>};
