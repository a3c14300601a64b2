// codes.cuh -- tokens in shared memory as they are stored: numbers of any type, or codes, decoded as they are read.
#pragma once
#include "keys.cuh"

namespace attn {

constexpr int CHUNK = 16;                            // bytes of an asynchronous copy

constexpr __device__ bool is_coded(int type) { return type == TYPE_INT8 || type == TYPE_INT4 || type == TYPE_FP8; }

// Bytes of `features` features.
constexpr __device__ int bytes_of(int type, int features) {
  return type == TYPE_INT4 ? (features + 1) / 2 : is_coded(type) ? features : type == TYPE_FLOAT32 ? 4 * features
                                                                                                   : 2 * features;
}

// Bytes from one token to the next: where four lanes read four features each of every token, all banks differ.
constexpr __device__ int pitch_of(int type, int size) {
  return (bytes_of(type, size) + 127) / 128 * 128 + (bytes_of(type, 16) < 16 ? 16 : bytes_of(type, 16));
}

template <class T, int N> struct __align__(N * sizeof(T)) Pack {
  T x[N];
};

template <class T, int N> __device__ __forceinline__ void read_numbers(float (&x)[N], const unsigned char* from) {
  const Pack<T, N> pack = *reinterpret_cast<const Pack<T, N>*>(from);
  ATTN_UNROLL for (int i = 0; i < N; i++) x[i] = to_float(pack.x[i]);
}

// Levels of features [feature, feature + N) of a token in shared memory, N = 2 or 4; see level_of.
template <int TYPE, int N>
__device__ __forceinline__ void read_levels(float (&x)[N], const unsigned char* token, int feature) {
  const unsigned char* from = token + bytes_of(TYPE, feature);
  if constexpr (TYPE == TYPE_FLOAT32) read_numbers<float, N>(x, from);
  else if constexpr (TYPE == TYPE_FLOAT16) read_numbers<f16, N>(x, from);
  else if constexpr (TYPE == TYPE_BFLOAT16) read_numbers<bf16, N>(x, from);
  else {
    const auto pack = *reinterpret_cast<const Pack<unsigned char, TYPE == TYPE_INT4 ? N / 2 : N>*>(from);
    ATTN_UNROLL for (int i = 0; i < N; i++) {
      if constexpr (TYPE == TYPE_INT4) x[i] = float(i & 1 ? pack.x[i / 2] >> 4 : pack.x[i / 2] & 15) - 7.5f;
      else x[i] = level_of(pack.x + i, 0, 0, TYPE);
    }
  }
}

// Features [feature, feature + N), from the levels in shared memory and the scales in global memory: see decoded.
template <int TYPE, int N>
__device__ __forceinline__ void read_features(float (&x)[N], const Tokens& tokens, const unsigned char* token, i64 slot,
                                              int feature) {
  read_levels<TYPE, N>(x, token, feature);
  if constexpr (is_coded(TYPE)) {
    const float* numbers = tokens.scales + tokens.scales_start + slot * tokens.scales_stride;
    ATTN_UNROLL for (int i = 0; i < N; i++) {
      const int block = tokens.block < tokens.size ? (feature + i) / tokens.block : 0;
      if (feature + i >= tokens.size) x[i] = 0.f;
      else if constexpr (TYPE == TYPE_FP8) x[i] = rounded(__fmul_rn(x[i], numbers[block]), tokens.stored_type);
      else x[i] = rounded(__fadd_rn(__fmul_rn(x[i], numbers[2 * block]), numbers[2 * block + 1]), tokens.stored_type);
    }
  }
}

// Copies tokens [first, first + COUNT) of those before `last` by one warp; zeros beyond the last feature and token.
template <int TYPE, int SIZE, int COUNT>
__device__ __forceinline__ void load_tokens(unsigned char* tile, const AttentionParams& p, const Tokens& tokens, int b,
                                            int first, int last, int lane) {
  constexpr int CHUNKS = bytes_of(TYPE, SIZE) / CHUNK, ELEMENT = TYPE == TYPE_INT4 ? 1 : bytes_of(TYPE, 1);
  static_assert(CHUNKS * CHUNK == bytes_of(TYPE, SIZE), "a token is whole chunks");
  const unsigned char* base = static_cast<const unsigned char*>(tokens.array) + tokens.start * ELEMENT;
  const i64 stride = tokens.stride * ELEMENT;
  const int bytes = bytes_of(TYPE, tokens.size);
  const bool vectors = ((reinterpret_cast<i64>(base) | stride | bytes) & (CHUNK - 1)) == 0;
  for (int i = lane; i < COUNT * CHUNKS; i += 32) {
    const int token = i / CHUNKS, at = i % CHUNKS * CHUNK;
    const bool there = first + token < last;
    const unsigned char* from = base + (there ? slot_of(p, b, first + token) : 0) * stride + at;
    unsigned char* to = tile + token * pitch_of(TYPE, SIZE) + at;
    const int left = there ? bytes - at : 0;
    if (vectors) cp_async16(to, left > 0 ? from : base, left > 0);
    else for (int e = 0; e < CHUNK; e++) to[e] = e < left ? from[e] : 0;
  }
}

}  // namespace attn
