// elements.cuh -- elements of arrays whose type is known at run time, as floats.
#pragma once
#include "params.cuh"

namespace attn {

__device__ __forceinline__ bool is_finite(float x) { return (__float_as_int(x) & 0x7f800000) != 0x7f800000; }

__device__ __forceinline__ float not_a_number() { return __int_as_float(0x7fffffff); }

__device__ __forceinline__ float load_float(const void* array, i64 at, int type) {
  switch (type) {
    case TYPE_FLOAT16: return to_float(static_cast<const f16*>(array)[at]);
    case TYPE_BFLOAT16: return to_float(static_cast<const bf16*>(array)[at]);
    case TYPE_FLOAT64: return float(static_cast<const double*>(array)[at]);
    default: return static_cast<const float*>(array)[at];
  }
}

__device__ __forceinline__ void store_float(const void* array, i64 at, int type, float x) {
  void* to = const_cast<void*>(array);
  switch (type) {
    case TYPE_FLOAT16: static_cast<f16*>(to)[at] = from_float<f16>(x); break;
    case TYPE_BFLOAT16: static_cast<bf16*>(to)[at] = from_float<bf16>(x); break;
    default: static_cast<float*>(to)[at] = x;
  }
}

// What is left of x in a 16-bit type.
__device__ __forceinline__ float rounded(float x, int type) {
  switch (type) {
    case TYPE_FLOAT16: return to_float(from_float<f16>(x));
    case TYPE_BFLOAT16: return to_float(from_float<bf16>(x));
    default: return x;
  }
}

template <class T> struct __align__(4 * sizeof(T)) Four {
  T x[4];
};

template <class T> __device__ __forceinline__ float4 floats_of_four(const void* from) {
  const Four<T> four = *static_cast<const Four<T>*>(from);
  return make_float4(to_float(four.x[0]), to_float(four.x[1]), to_float(four.x[2]), to_float(four.x[3]));
}

// Elements [at, at + 4), in one load where the address allows it; zeros for those from `left` on.
template <class T> __device__ __forceinline__ float4 load_four(const void* array, i64 at, int left) {
  const T* from = static_cast<const T*>(array) + at;
  if (left >= 4 && reinterpret_cast<i64>(from) % i64(sizeof(Four<T>)) == 0) return floats_of_four<T>(from);
  return make_float4(left > 0 ? to_float(from[0]) : 0.f, left > 1 ? to_float(from[1]) : 0.f,
                     left > 2 ? to_float(from[2]) : 0.f, left > 3 ? to_float(from[3]) : 0.f);
}

__device__ __forceinline__ float4 load_four(const void* array, i64 at, int left, int type) {
  switch (type) {
    case TYPE_FLOAT16: return load_four<f16>(array, at, left);
    case TYPE_BFLOAT16: return load_four<bf16>(array, at, left);
    default: return load_four<float>(array, at, left);
  }
}

}  // namespace attn
