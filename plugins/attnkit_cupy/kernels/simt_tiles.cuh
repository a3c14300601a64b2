// simt_tiles.cuh -- the tiles of flash_forward_simt, and how they come into shared memory as floats.
#pragma once
#include "keys.cuh"
#include "rows.cuh"

namespace attn {

template <int SIZE, int ROWS, int KEYS> struct SimtTile {
  static constexpr int DP = SIZE, BM = ROWS, BN = KEYS, THREADS = 256;
  static constexpr int RM = BM / 16, RN = BN / 16, RD = DP / 16;   // of one thread: rows, keys, features
  static constexpr int LANES = RD < 4 ? RD : 4;                    // features side by side
  static constexpr int LD = DP + 4, LP = BN + 4;                   // rows in shared memory, shifted by four banks each
  static constexpr int LOADS = BN * DP / 4 / THREADS;              // of one thread, four features each
  static constexpr int TOGETHER = LOADS < 4 ? LOADS : 4;           // under way at a time: more take too many registers
  static_assert(BM % 16 == 0 && BN % 16 == 0 && DP % 32 == 0, "16 x 16 threads, and at least two features for each");
  static_assert(RD % LANES == 0, "features of a thread come in groups");
  static_assert(LOADS * 4 * THREADS == BN * DP && LOADS % TOGETHER == 0, "every thread loads as much");

  struct __align__(4 * LANES) Group {
    float x[LANES];
  };

  // The number of a thread's feature d.
  __device__ __forceinline__ static int feature(int d, int tx) {
    return d / LANES * 16 * LANES + tx * LANES + d % LANES;
  }
};

template <class Tile>
__device__ __forceinline__ void load_queries(float* tile, const AttentionParams& p, const Sequence& s, int b,
                                             int kv_head, int first) {
  constexpr int FOURS = Tile::DP / 4;
  ATTN_ROLLED for (int i = threadIdx.x; i < Tile::BM * FOURS; i += Tile::THREADS) {
    const int feature = i % FOURS * 4;
    const RowName row = name_of(p, kv_head, first + i / FOURS);
    float4 q = make_float4(0.f, 0.f, 0.f, 0.f);
    if (row.query < s.queries) {
      const i64 at = start_of(p.query_strides, b, row.head) + row.query * p.query_strides[2] + feature;
      q = load_four(p.query, at, p.head_dim - feature, p.query_type);
    }
    *reinterpret_cast<float4*>(tile + i / FOURS * Tile::LD + feature) = q;
  }
}

__device__ __forceinline__ float finite_or_zero(float x) { return is_finite(x) ? x : 0.f; }

// Puts four features into shared memory. `odd` null: as they are. Otherwise zeros in place of what is not finite, and a
// mark at its token: a weight of 0 times NaN is NaN, in rows that must not see it.
template <class Tile>
__device__ __forceinline__ void put_four(float* tile, int* odd, int token, int feature, float4 x) {
  if (odd && !(is_finite(x.x) && is_finite(x.y) && is_finite(x.z) && is_finite(x.w))) {
    atomicAdd(odd + token, 1);
    x = make_float4(finite_or_zero(x.x), finite_or_zero(x.y), finite_or_zero(x.z), finite_or_zero(x.w));
  }
  *reinterpret_cast<float4*>(tile + token * Tile::LD + feature) = x;
}

// Where every four features are one load, several loads are under way before the first of them is waited for.
template <class Tile>
__device__ __forceinline__ void load_wide(float* tile, int* odd, const AttentionParams& p, const Tokens& tokens, int b,
                                          int first, int last) {
  constexpr int FOURS = Tile::DP / 4, TOGETHER = Tile::TOGETHER;
  ATTN_ROLLED for (int start = threadIdx.x; start < Tile::BN * FOURS; start += TOGETHER * Tile::THREADS) {
    uint4 x[TOGETHER];
    ATTN_UNROLL for (int i = 0; i < TOGETHER; i++) {
      const int at = start + i * Tile::THREADS, key = first + at / FOURS, feature = at % FOURS * 4;
      x[i] = make_uint4(0, 0, 0, 0);
      if (key < last && feature < tokens.size) x[i] = load_bits(tokens, slot_of(p, b, key), feature);
    }
    ATTN_UNROLL for (int i = 0; i < TOGETHER; i++) {
      const int at = start + i * Tile::THREADS;
      put_four<Tile>(tile, odd, at / FOURS, at % FOURS * 4, floats_of(x[i], tokens.type));
    }
  }
}

// Tokens [first, first + BN) of those before `last`; zeros beyond, and beyond the last feature.
template <class Tile>
__device__ __forceinline__ void load_tokens(float* tile, int* odd, const AttentionParams& p, const Tokens& tokens,
                                            int b, int first, int last) {
  constexpr int FOURS = Tile::DP / 4;
  if (is_wide(tokens)) return load_wide<Tile>(tile, odd, p, tokens, b, first, last);
  ATTN_ROLLED for (int i = threadIdx.x; i < Tile::BN * FOURS; i += Tile::THREADS) {
    const int key = first + i / FOURS, feature = i % FOURS * 4;
    float4 x = make_float4(0.f, 0.f, 0.f, 0.f);
    if (key < last) x = load_token(tokens, slot_of(p, b, key), feature);
    put_four<Tile>(tile, odd, i / FOURS, feature, x);
  }
}

}  // namespace attn
