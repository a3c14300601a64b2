// lanes.cuh -- what lanes of a warp find together: each of N lanes next to each other gets the result of them all.
#pragma once
#include "port.cuh"

namespace attn {

constexpr u32 ALL_LANES = 0xffffffffu;

template <int N> __device__ __forceinline__ float maximum_of(float x) {
  ATTN_UNROLL for (int i = N / 2; i; i >>= 1) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, i));
  return x;
}

template <int N> __device__ __forceinline__ float sum_of(float x) {
  ATTN_UNROLL for (int i = N / 2; i; i >>= 1) x += __shfl_xor_sync(ALL_LANES, x, i);
  return x;
}

}  // namespace attn
