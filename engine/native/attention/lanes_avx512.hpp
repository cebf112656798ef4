// AVX-512, and AVX-512 with products of pairs of bfloat16.
#pragma once

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../exponential.hpp"
#include "kernel.hpp"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq")
#endif

namespace baton::avx512 {

#include "lanes_avx512.inl"

#include "single_cells.inl"

#include "kernel.inl"

}  // namespace baton::avx512

#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni")
#endif

namespace baton::avx512_bf16 {

#include "lanes_avx512.inl"

#include "pair_cells.inl"

#include "kernel.inl"

#include "quad_products.inl"

}  // namespace baton::avx512_bf16

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // __x86_64__
