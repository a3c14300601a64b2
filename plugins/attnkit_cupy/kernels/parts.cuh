// parts.cuh -- flash-decoding: the keys of a row in parts, by warps of a block and by blocks, and how parts are joined.
#pragma once
#include "rows.cuh"
#include "scores.cuh"

namespace attn {

// The keys of one of the splits of a row tile: as many tiles of `size` keys for each of them as for the others.
__device__ __forceinline__ Interval keys_of_split(const AttentionParams& p, Interval keys, int split, int size) {
  const int tiles = (keys.last - keys.first + size - 1) / size, each = (tiles + p.splits - 1) / p.splits;
  const int first = min(keys.last, keys.first + split * each * size);
  return {first, min(keys.last, first + each * size)};
}

// What the warps of a block found for each of ROWS rows, in shared memory.
template <int ROWS, int WARPS> struct Parts {
  float* top;                                        // [WARPS][ROWS]
  float* sum;
  float* output;                                     // [ROWS][pitch], relative to the maximum of all warps
  int pitch;

  __device__ __forceinline__ void put(int warp, int row, float m, float l) const {
    top[warp * ROWS + row] = m;
    sum[warp * ROWS + row] = l;
  }
  __device__ __forceinline__ float maximum(int row) const {
    float m = neg_inf();
    ATTN_UNROLL for (int w = 0; w < WARPS; w++) m = fmaxf(m, top[w * ROWS + row]);
    return m;
  }
  // By how much what a warp summed shrinks, once all of them have put their maxima.
  __device__ __forceinline__ float shrink(int warp, int row) const {
    const float m = maximum(row);
    return exponential(top[warp * ROWS + row] - (m == neg_inf() ? 0.f : m));
  }
  __device__ __forceinline__ float normaliser(int row) const {
    float l = 0.f;
    ATTN_UNROLL for (int w = 0; w < WARPS; w++) l += sum[w * ROWS + row] * shrink(w, row);
    return l;
  }
};

__device__ __forceinline__ float* float_array(const void* array) {
  return static_cast<float*>(const_cast<void*>(array));
}

// What one warp stores of a row: the answer where there is one split, else a part of it, which merge_splits joins.
__device__ __forceinline__ void store_part(const AttentionParams& p, const Sequence& s, int b, RowName row, int split,
                                           float m, float sum, const float* o, int lane) {
  if (p.splits == 1) {
    const Ending end = ending_of(p, row.head, row.query < s.queries, m, sum);
    const i64* strides = p.output_strides;
    const i64 at = b * strides[0] + row.head * strides[1] + row.query * strides[2];
    for (int i = lane; i < p.value_dim; i += 32) store_float(p.output, at + i, p.query_type, end.output(o[i]));
    if (lane == 0) store_lse(p, b, row.head, row.query, end.lse);
    return;
  }
  const i64 at = ((i64(split) * p.batch + b) * p.heads + row.head) * p.queries + row.query;
  const bool empty = sum == 0.f;
  for (int i = lane; i < p.value_dim; i += 32)
    float_array(p.partial_output)[at * p.value_dim + i] = empty ? 0.f : o[i] / sum;
  if (lane == 0) float_array(p.partial_lse)[at] = empty ? neg_inf() : m + logf(sum);
}

// All rows of a block, by all of its warps.
template <int ROWS, int WARPS>
__device__ __forceinline__ void store_parts(const AttentionParams& p, const Sequence& s,
                                            const Parts<ROWS, WARPS>& parts, int b, int kv_head, int first, int split,
                                            int warp, int lane) {
  for (int row = warp; row < ROWS; row += WARPS) {
    const RowName name = name_of(p, kv_head, first + row);
    if (name.query >= p.queries) continue;
    const float* o = parts.output + row * parts.pitch;
    store_part(p, s, b, name, split, parts.maximum(row), parts.normaliser(row), o, lane);
  }
}

}  // namespace attn
