// builtins.hpp -- what CUDA C++ knows without an include: indices, bits and fast arithmetic.
#pragma once
#include <math.h>

#include <bit>

#include "schedule.hpp"

#define threadIdx (::cuda_cpu::current()->thread)
#define blockIdx (::cuda_cpu::current()->block->index)
#define blockDim (::cuda_cpu::current()->block->threads)
#define gridDim (::cuda_cpu::current()->block->grid)
constexpr int warpSize = 32;

template <class T> constexpr T max(T a, T b) { return a < b ? b : a; }
template <class T> constexpr T min(T a, T b) { return b < a ? b : a; }

[[noreturn]] inline void __trap() { cuda_cpu::fail("__trap()"); }

// Relaxed, as on a GPU: it orders nothing else.
template <class T> inline T atomicAdd(T* p, T value) { return __atomic_fetch_add(p, value, __ATOMIC_RELAXED); }
inline float atomicAdd(float* p, float value) {
  int* bits = reinterpret_cast<int*>(p);
  int old = __atomic_load_n(bits, __ATOMIC_RELAXED);
  const auto sum = [&] { return std::bit_cast<int>(std::bit_cast<float>(old) + value); };
  while (!__atomic_compare_exchange_n(bits, &old, sum(), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
  return std::bit_cast<float>(old);
}

inline int atomicMax(int* p, int value) {
  int old = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (old < value && !__atomic_compare_exchange_n(p, &old, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
  return old;
}

// Rounded by themselves, never fused; on the host no two operations are (-ffp-contract=off).
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline int __float_as_int(float number) { return std::bit_cast<int>(number); }
