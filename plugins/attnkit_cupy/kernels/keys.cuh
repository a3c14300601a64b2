// keys.cuh -- where keys and values of a sequence lie, in an array or in the pages of a cache, and how they are read.
#pragma once
#include "elements.cuh"

namespace attn {

// The slot of key j of sequence b.
__device__ __forceinline__ i64 slot_of(const AttentionParams& p, int b, int key) {
  if (!p.page_table) return key;
  const u32 at = u32(key) + u32(p.page_start ? static_cast<const i64*>(p.page_start)[b] : 0);
  const u32 page = at / u32(p.page_size);
  return i64(static_cast<const int*>(p.page_table)[b * p.page_table_stride + page]) + (at - page * u32(p.page_size));
}

// Keys, or values, of one head of one sequence.
struct Tokens {
  const void* array;
  const float* scales;       // null: native storage
  i64 start, scales_start;   // of slot 0, in elements
  i64 stride, scales_stride; // from one slot to the next
  int type, stored_type, size, block;
};

__device__ __forceinline__ i64 start_of(const i64* strides, int b, int head) {
  return b * strides[0] + head * strides[1];
}

__device__ __forceinline__ Tokens keys_of(const AttentionParams& p, int b, int kv_head) {
  return {p.key, static_cast<const float*>(p.key_scales), start_of(p.key_strides, b, kv_head),
          start_of(p.key_scales_strides, b, kv_head), p.key_strides[2], p.key_scales_strides[2],
          p.key_type, p.stored_type, p.head_dim, p.key_block};
}

__device__ __forceinline__ Tokens values_of(const AttentionParams& p, int b, int kv_head) {
  return {p.value, static_cast<const float*>(p.value_scales), start_of(p.value_strides, b, kv_head),
          start_of(p.value_scales_strides, b, kv_head), p.value_strides[2], p.value_scales_strides[2],
          p.value_type, p.stored_type, p.value_dim, p.value_block};
}

// The level of one code, exact in a float: int8 -127 .. 127, int4 -7.5 .. 7.5, fp8 e4m3fn.
__device__ __forceinline__ float level_of(const void* codes, i64 at, int feature, int type) {
  if (type == TYPE_INT4) {
    const int pair = static_cast<const unsigned char*>(codes)[at + feature / 2];
    return float(feature & 1 ? pair >> 4 : pair & 15) - 7.5f;
  }
  const int code = static_cast<const signed char*>(codes)[at + feature];
  if (type == TYPE_INT8) return float(code);
  return __int_as_float(code << 20 & ~0x78000000) * 0x1p120f;   // exponents of float are biased by 120 more
}

// One feature of what a codec stored: each step rounded by itself, so that every reader decodes to the same bits.
__device__ __forceinline__ float decoded(const Tokens& tokens, i64 slot, int feature) {
  const float level = level_of(tokens.array, tokens.start + slot * tokens.stride, feature, tokens.type);
  const float* numbers = tokens.scales + tokens.scales_start + slot * tokens.scales_stride;
  const int block = feature / tokens.block;
  if (tokens.type == TYPE_FP8) return rounded(__fmul_rn(level, numbers[block]), tokens.stored_type);
  return rounded(__fadd_rn(__fmul_rn(level, numbers[2 * block]), numbers[2 * block + 1]), tokens.stored_type);
}

__device__ __forceinline__ float load_feature(const Tokens& tokens, i64 slot, int feature) {
  if (tokens.scales) return decoded(tokens, slot, feature);
  return load_float(tokens.array, tokens.start + slot * tokens.stride + feature, tokens.type);
}

// Features [feature, feature + 4) of a token; zeros beyond the last.
__device__ __forceinline__ float4 load_token(const Tokens& tokens, i64 slot, int feature) {
  const int left = tokens.size - feature;
  if (!tokens.scales) {
    return load_four(tokens.array, tokens.start + slot * tokens.stride + feature, left, tokens.type);
  }
  return make_float4(left > 0 ? decoded(tokens, slot, feature) : 0.f,
                     left > 1 ? decoded(tokens, slot, feature + 1) : 0.f,
                     left > 2 ? decoded(tokens, slot, feature + 2) : 0.f,
                     left > 3 ? decoded(tokens, slot, feature + 3) : 0.f);
}

// Whether tokens are stored as they are, and every four features of them are one load.
__device__ __forceinline__ bool is_wide(const Tokens& tokens) {
  const int bytes = tokens.type == TYPE_FLOAT32 ? 4 : 2;
  const i64 start = reinterpret_cast<i64>(tokens.array) + tokens.start * bytes;
  return !tokens.scales && tokens.size % 4 == 0 && tokens.stride % 4 == 0 && start % (4 * bytes) == 0;
}

// Features [feature, feature + 4) of wide tokens, as bits.
__device__ __forceinline__ uint4 load_bits(const Tokens& tokens, i64 slot, int feature) {
  const i64 at = tokens.start + slot * tokens.stride + feature;
  if (tokens.type == TYPE_FLOAT32) return *reinterpret_cast<const uint4*>(static_cast<const float*>(tokens.array) + at);
  const uint2 bits = *reinterpret_cast<const uint2*>(static_cast<const u16*>(tokens.array) + at);
  return make_uint4(bits.x, bits.y, 0, 0);
}

__device__ __forceinline__ float4 floats_of(uint4 bits, int type) {
  switch (type) {
    case TYPE_FLOAT16: return floats_of_four<f16>(&bits);
    case TYPE_BFLOAT16: return floats_of_four<bf16>(&bits);
    default: return floats_of_four<float>(&bits);
  }
}

}  // namespace attn
