// Numbers as they are stored, and as they are computed with.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../exponential.hpp"

namespace baton {

constexpr std::size_t kLanes = 16;  // numbers that are computed side by side, whatever the processor's vectors hold

struct Bfloat16 {
    std::uint16_t bits;
};

// The compiler's own vectors (GCC's and Clang's): it makes them of as many of the processor's as it takes.
using Floats = float __attribute__((vector_size(4 * kLanes)));
using Words = std::uint32_t __attribute__((vector_size(4 * kLanes)));
using Halves = std::uint16_t __attribute__((vector_size(2 * kLanes)));
using Bytes = std::uint8_t __attribute__((vector_size(kLanes)));

}  // namespace baton
