// Scratch memory of one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "../exponential.hpp"
#include "tensors.hpp"

namespace baton {

// Owns zeroed memory aligned to a cache line.
class AlignedMemory {
public:
    AlignedMemory() = default;

    explicit AlignedMemory(std::size_t num_bytes) : size_((num_bytes + kAlignment - 1) / kAlignment * kAlignment) {
        data_ = static_cast<char*>(std::aligned_alloc(kAlignment, size_ ? size_ : kAlignment));
        if (!data_) throw std::bad_alloc();
        std::memset(data_, 0, size_);
    }

    AlignedMemory(AlignedMemory&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

    AlignedMemory& operator=(AlignedMemory&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }

    AlignedMemory(const AlignedMemory&) = delete;
    AlignedMemory& operator=(const AlignedMemory&) = delete;

    ~AlignedMemory() { std::free(data_); }

    char* data() const { return data_; }
    std::size_t size() const { return size_; }

    template <typename T>
    BATON_INLINE T* as() const {
        return reinterpret_cast<T*>(data_);
    }

private:
    static constexpr std::size_t kAlignment = 64;

    char* data_ = nullptr;
    std::size_t size_ = 0;
};

// Keys that a row attends to, of the context or of one split: from `first` up to, excluding, `end`.
struct Seen {
    std::size_t first;
    std::size_t end;

    bool is_empty() const { return first >= end; }
};

// A row's softmax so far: its greatest score, and the sum of the weights relative to it.
struct RowState {
    float max;
    float sum;
};

// Factors to merge a split with the previous ones: both are multiplied, then added.
struct Merge {
    float keep;
    float add;
};

// A query stored as two 8-bit digits, high and low.
struct QueryDigits {
    float scale;
    std::int32_t bias[2];  // excess of each digit's products, since keys are offset by 128
};

// Owns a thread's buffers for one item; their layout is up to the kernels. A cell has 4 bytes.
struct Scratch {
    explicit Scratch(const AttentionShape& shape)
        : queries(4 * kMaxRows * (shape.key_width + 1)),
          digits(kMaxRows * sizeof(QueryDigits)),
          packed_keys(4 * kMaxPanel * shape.key_width),
          packed_values(4 * kSplit * shape.value_stride()),
          scores(4 * kMaxRows * kSplit),
          weights(4 * kMaxRows * kSplit / 2),
          values(4 * kMaxRows * shape.value_stride()),
          sums(4 * kFewRows * shape.value_stride()),
          scales(4 * (kSplit + kMaxPanel)),
          no_key(shape.row_bytes()),
          unpacked(shape.is_int4 ? kSplit * ((shape.key_width + 63) / 64 * 64) : 0),
          unpacked_rows((kSplit + kDistance) * sizeof(const char*)),
          touched((2 * kSplit + kAhead) * sizeof(const char*)),
          seen(kMaxRows * sizeof(Seen)),
          states(kMaxRows * sizeof(RowState)),
          merges(kMaxRows * sizeof(Merge)) {}

    AlignedMemory queries;        // [rows, cells of a key], or in digits [rows, 2, cells of a key]
    AlignedMemory digits;         // of a row, where queries are kept so
    AlignedMemory packed_keys;    // [cells of a key, keys of a panel]
    AlignedMemory packed_values;  // [panels of a value, cells of a split, elements of a panel]
    AlignedMemory scores;         // [rows, keys of a split]
    AlignedMemory weights;        // [rows, cells of a split], where they are not the scores' own memory
    AlignedMemory values;         // [rows, value_stride]
    AlignedMemory sums;           // [few rows, value_stride]: of a split's first keys
    AlignedMemory scales;         // of a panel's keys, or of values, where they are quantised
    AlignedMemory no_key;         // zeros, in place of keys and values outside the context
    AlignedMemory unpacked;       // [keys of a panel or split, width], where they are int4
    AlignedMemory unpacked_rows;  // pointers to them
    AlignedMemory touched;        // pointers to a split's keys and values and the next split's first keys, in reading order
    AlignedMemory seen;           // keys that a row attends to
    AlignedMemory states;         // of a row, all splits so far
    AlignedMemory merges;         // by row: factors to merge the current split
};

}  // namespace baton
