// mma_tiles.cuh -- what tensor cores work on: tiles of 16-bit rows in shared memory, and the products of one warp.
//
// A tile is rows of DP features, zero beyond those there are. Its chunks of 16 bytes are swizzled (chunk ^ row % 8), so
// that the eight rows that one ldmatrix reads lie in different banks. A warp owns 16 rows of queries. Matrices lie in
// fragments of mma.m16n8k16: lane 4 g + t holds of every block of 8 columns rows g and g + 8, columns 2 t and 2 t + 1.
#pragma once
#include "keys.cuh"

namespace attn {

// Where chunk `chunk` of a row lies in a tile, in elements.
template <int DP> __device__ __forceinline__ int chunk_at(int row, int chunk) {
  return row * DP + ((chunk ^ (row & 7)) << 3);
}

// Rows in global memory; `vectors`: each begins at a multiple of 16 bytes and is made of whole chunks.
struct Rows {
  const u16* base;
  i64 stride;
  int features;
  bool vectors;
};

__device__ __forceinline__ bool in_vectors(const void* base, i64 strides, int features) {
  return ((reinterpret_cast<i64>(base) | 2 * strides | 2 * i64(features)) & 15) == 0;
}

__device__ __forceinline__ Rows rows_of(const void* array, const i64* strides, int features, int b, int head) {
  const u16* base = static_cast<const u16*>(array) + b * strides[0] + head * strides[1];
  return {base, strides[2], features, in_vectors(base, strides[2], features)};
}

// Eight features from global to shared memory; zeros beyond the last feature, and where there is no such row.
__device__ __forceinline__ void load_chunk(u16* to, const u16* row, int feature, const Rows& rows, bool there) {
  const int left = there ? rows.features - feature : 0;
  if (rows.vectors) {
    cp_async16(to, left > 0 ? row + feature : rows.base, left > 0);
    return;
  }
  u32 pair[4];
  ATTN_UNROLL for (int i = 0; i < 4; i++) {
    const u32 low = left > 2 * i ? row[feature + 2 * i] : 0, high = left > 2 * i + 1 ? row[feature + 2 * i + 1] : 0;
    pair[i] = low | high << 16;
  }
  *reinterpret_cast<uint4*>(to) = make_uint4(pair[0], pair[1], pair[2], pair[3]);
}

// Keys, or values, [first, first + BN) of those before `last`.
template <int DP, int BN, int THREADS>
__device__ __forceinline__ void load_keys(u16* tile, const AttentionParams& p, const Rows& rows, int b, int first,
                                          int last, int thread) {
  constexpr int CHUNKS = DP / 8;
  ATTN_ROLLED for (int i = thread; i < BN * CHUNKS; i += THREADS) {
    const int row = i / CHUNKS, chunk = i % CHUNKS;
    const bool there = first + row < last;
    const i64 slot = there ? slot_of(p, b, first + row) : 0;
    load_chunk(tile + chunk_at<DP>(row, chunk), rows.base + slot * rows.stride, 8 * chunk, rows, there);
  }
}

// Puts zeros in place of values that are not finite, and notes in odd[row] that tile `at` has some in that row, and in
// odd[BN] that it has some at all. Threads look at what they copied themselves, for which no barrier is needed.
template <class T, int DP, int BN, int THREADS>
__device__ __forceinline__ void hide_odd_values(u16* tile, int* odd, int at, int thread) {
  constexpr int CHUNKS = DP / 8;
  constexpr u32 EXPONENT = is_bf16<T>::value ? 0x7f80u : 0x7c00u;
  ATTN_ROLLED for (int i = thread; i < BN * CHUNKS; i += THREADS) {
    uint4* chunk = reinterpret_cast<uint4*>(tile + chunk_at<DP>(i / CHUNKS, i % CHUNKS));
    const uint4 found = *chunk;
    u32 pairs[4] = {found.x, found.y, found.z, found.w};
    bool any = false;
    ATTN_UNROLL for (int j = 0; j < 4; j++) {
      const bool low = (pairs[j] & EXPONENT) == EXPONENT, high = (pairs[j] >> 16 & EXPONENT) == EXPONENT;
      any = any || low || high;
      pairs[j] &= (low ? 0u : 0xffffu) | (high ? 0u : 0xffff0000u);
    }
    if (!any) continue;
    *chunk = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    atomicMax(odd + i / CHUNKS, at);
    atomicMax(odd + BN, at);
  }
}

// Folded rows [first, first + BM) of the queries of one key/value head.
template <int DP, int BM, int THREADS>
__device__ __forceinline__ void load_queries(u16* tile, const AttentionParams& p, int b, int kv_head, int first,
                                             int thread) {
  constexpr int CHUNKS = DP / 8;
  const int heads = p.group;
  Rows rows = rows_of(p.query, p.query_strides, p.head_dim, b, kv_head * heads);
  rows.vectors = rows.vectors && in_vectors(rows.base, p.query_strides[1], p.head_dim);
  for (int i = thread; i < BM * CHUNKS; i += THREADS) {
    const int row = i / CHUNKS, chunk = i % CHUNKS, query = (first + row) / heads, head = (first + row) % heads;
    const u16* from = rows.base + query * rows.stride + head * p.query_strides[1];
    load_chunk(tile + chunk_at<DP>(row, chunk), from, 8 * chunk, rows, query < p.queries);
  }
}

// The 16 rows of queries of a warp: in registers, or where the outputs need these, in shared memory.
template <int DP> struct QueryFragments {
  static constexpr bool HELD = DP <= 128;
  u32 held[HELD ? DP / 16 : 1][4];
  const u16* from;

  __device__ __forceinline__ void take(const u16* tile, int lane) {
    from = tile;
    if constexpr (HELD) ATTN_UNROLL for (int k = 0; k < DP / 16; k++) read(held[k], k, lane);
  }
  __device__ __forceinline__ void read(u32 (&a)[4], int k, int lane) const {
    ldmatrix_x4(a, from + chunk_at<DP>(lane & 15, 2 * k + (lane >> 4)));
  }
};

// S = Q K^T
template <class T, int DP, int BN>
__device__ __forceinline__ void multiply_keys(float (&s)[BN / 8][4], const QueryFragments<DP>& q, const u16* keys,
                                              int lane) {
  ATTN_UNROLL for (int j = 0; j < BN / 8; j++) ATTN_UNROLL for (int e = 0; e < 4; e++) s[j][e] = 0.f;
  ATTN_UNROLL for (int k = 0; k < DP / 16; k++) {
    u32 a[4];
    if constexpr (QueryFragments<DP>::HELD) ATTN_UNROLL for (int e = 0; e < 4; e++) a[e] = q.held[k][e];
    else q.read(a, k, lane);
    ATTN_UNROLL for (int j = 0; j < BN / 8; j += 2) {
      u32 f[4];
      ldmatrix_x4(f, keys + chunk_at<DP>(8 * j + (lane & 7) + (lane >> 4 << 3), 2 * k + (lane >> 3 & 1)));
      mma_16816<T>(s[j], a, f[0], f[1]);
      mma_16816<T>(s[j + 1], a, f[2], f[3]);
    }
  }
}

// O += P V: the fragments of S, in pairs, are those of P that the product takes.
template <class T, int DP, int BN>
__device__ __forceinline__ void add_values(float (&o)[DP / 8][4], const float (&w)[BN / 8][4], const u16* values,
                                           int lane) {
  ATTN_UNROLL for (int k = 0; k < BN / 16; k++) {
    const u32 a[4] = {pack2<T>(w[2 * k][0], w[2 * k][1]), pack2<T>(w[2 * k][2], w[2 * k][3]),
                      pack2<T>(w[2 * k + 1][0], w[2 * k + 1][1]), pack2<T>(w[2 * k + 1][2], w[2 * k + 1][3])};
    ATTN_UNROLL for (int j = 0; j < DP / 8; j += 2) {
      u32 f[4];
      ldmatrix_x4_trans(f, values + chunk_at<DP>(16 * k + (lane & 15), j + (lane >> 4)));
      mma_16816<T>(o[j], a, f[0], f[1]);
      mma_16816<T>(o[j + 1], a, f[2], f[3]);
    }
  }
}

}  // namespace attn
