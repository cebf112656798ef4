// Number formats in memory and in computation.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../exponential.hpp"

namespace baton {

constexpr std::size_t kLanes = 16;  // numbers computed at once, whatever the width of the processor's vectors

struct Bfloat16 {
    std::uint16_t bits;
};

// Vector extension of GCC and Clang, which splits these into as many of the processor's vectors as needed.
using Floats = float __attribute__((vector_size(4 * kLanes)));
using Words = std::uint32_t __attribute__((vector_size(4 * kLanes)));
using Integers = std::int32_t __attribute__((vector_size(4 * kLanes)));
using Halves = std::uint16_t __attribute__((vector_size(2 * kLanes)));
using Bytes = std::uint8_t __attribute__((vector_size(kLanes)));

}  // namespace baton
