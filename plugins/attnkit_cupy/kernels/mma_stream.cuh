// mma_stream.cuh -- the loop over the keys of a sequence that flash_forward_mma and flash_decode_mma share: threads
// stream tiles of keys and values through two stages of each, and every warp keeps a running softmax of 16 rows.
#pragma once
#include "mma_tiles.cuh"
#include "rows.cuh"
#include "scores.cuh"

namespace attn {

__device__ __forceinline__ bool holds(Interval keys, int first, int count) {
  return keys.first <= first && first + count <= keys.last;
}

// The rows of a warp: what it looks at, and the running softmax of it: maximum, sum and output so far.
template <int DP> struct WarpRows {
  int b, kv_head, first, lane;                       // the lane's rows are lane / 4 and lane / 4 + 8, from `first` on
  Interval seen[2];                                  // keys that these two see
  Interval any, all;                                 // keys that one of the rows sees, that every one of them sees
  float top[2], sum[2];                              // sums of this lane's columns
  float o[DP / 8][4];

  __device__ __forceinline__ void start(const AttentionParams& p, const Sequence& s, int sequence, int head,
                                        int first_row, int this_lane) {
    b = sequence, kv_head = head, first = first_row, lane = this_lane;
    const Interval queries = queries_of(p, first, 16);
    any = union_of(p, s, queries.first, queries.last);
    all = core_of(p, s, queries.first, queries.last);
    ATTN_UNROLL for (int i = 0; i < 2; i++) {
      seen[i] = interval_of(p, s, name(p, i).query);
      top[i] = neg_inf(), sum[i] = 0.f;
    }
    ATTN_UNROLL for (int j = 0; j < DP / 8; j++) ATTN_UNROLL for (int e = 0; e < 4; e++) o[j][e] = 0.f;
  }

  __device__ __forceinline__ RowName name(const AttentionParams& p, int i) const {
    return name_of(p, kv_head, first + (lane >> 2) + 8 * i);
  }

  __device__ __forceinline__ bool sees(int key, int count) const {
    return key < any.last && key + count > any.first;
  }

  // Products become scores; away from the edges of the masks every row sees every key. Gives which are shown, as bit
  // 4 j + e.
  template <int BN>
  __device__ __forceinline__ u32 score(float (&s)[BN / 8][4], const AttentionParams& p, int at) const {
    u32 shown = ~0u;
    ATTN_UNROLL for (int j = 0; j < BN / 8; j++) ATTN_UNROLL for (int e = 0; e < 4; e++) s[j][e] = scaled(p, s[j][e]);
    if (holds(all, at, BN)) return shown;
    ATTN_UNROLL for (int j = 0; j < BN / 8; j++) ATTN_UNROLL for (int e = 0; e < 4; e++) {
      const int key = at + 8 * j + 2 * (lane & 3) + (e & 1);
      if (key < seen[e >> 1].first || key >= seen[e >> 1].last) s[j][e] = neg_inf(), shown &= ~(1u << (4 * j + e));
    }
    return shown;
  }

  // The same with every option there is. It takes so much code that it is a loop: scores of a lane wait in shared
  // memory meanwhile, where an index known at run time is allowed, `pitch` apart so that lanes lie in different banks.
  template <int BN>
  __device__ __forceinline__ u32 score_with_options(float (&s)[BN / 8][4], const AttentionParams& p,
                                                     const Sequence& sequence, int at, float* mine, int pitch) const {
    const RowName upper = name(p, 0), lower = name(p, 1);
    u32 shown = ~0u;
    ATTN_UNROLL for (int j = 0; j < BN / 8; j++) ATTN_UNROLL for (int e = 0; e < 4; e++)
      mine[(4 * j + e) * pitch] = s[j][e];
    ATTN_ROLLED for (int i = 0; i < BN / 2; i++) {
      const RowName row = i & 2 ? lower : upper;
      const Interval keys = i & 2 ? seen[1] : seen[0];
      const int key = at + 8 * (i >> 2) + 2 * (lane & 3) + (i & 1);
      float x = neg_inf();
      if (key >= keys.first && key < keys.last) x = score_of(p, sequence, b, row.head, row.query, key, mine[i * pitch]);
      if (x == neg_inf()) shown &= ~(1u << i);
      mine[i * pitch] = x;
    }
    ATTN_UNROLL for (int j = 0; j < BN / 8; j++) ATTN_UNROLL for (int e = 0; e < 4; e++)
      s[j][e] = mine[(4 * j + e) * pitch];
    return shown;
  }

  // Scores become weights relative to the new maxima; what has been summed is rescaled where one of them moved.
  template <int BN> __device__ __forceinline__ void weigh(float (&s)[BN / 8][4]) {
    float base[2], shrink[2];
    bool moved = false;
    ATTN_UNROLL for (int i = 0; i < 2; i++) {
      float x = top[i];
      ATTN_UNROLL for (int j = 0; j < BN / 8; j++) x = fmaxf(x, fmaxf(s[j][2 * i], s[j][2 * i + 1]));
      x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
      x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
      base[i] = x == neg_inf() ? 0.f : x;            // nothing seen yet: exp(-inf - 0) is the 0 that is wanted
      shrink[i] = exponential(top[i] - base[i]);
      moved = moved || x != top[i];
      top[i] = x;
    }
    if (__any_sync(ALL_LANES, moved)) {
      ATTN_UNROLL for (int i = 0; i < 2; i++) sum[i] *= shrink[i];
      ATTN_UNROLL for (int j = 0; j < DP / 8; j++) ATTN_UNROLL for (int e = 0; e < 4; e++) o[j][e] *= shrink[e >> 1];
    }
    ATTN_UNROLL for (int j = 0; j < BN / 8; j++) ATTN_UNROLL for (int e = 0; e < 4; e++) {
      s[j][e] = exponential(s[j][e] - base[e >> 1]);
      sum[e >> 1] += s[j][e];
    }
  }

  // Rows that are shown a value that is not finite, which add_values has not seen: their sums say so, and mend them.
  template <int BN> __device__ __forceinline__ void spoil(u32 shown, const int* odd, int at) {
    ATTN_UNROLL for (int j = 0; j < BN / 8; j++) ATTN_UNROLL for (int e = 0; e < 4; e++)
      if (shown >> (4 * j + e) & 1 && odd[8 * j + 2 * (lane & 3) + (e & 1)] == at) sum[e >> 1] = not_a_number();
  }

  // The sums of whole rows, from those of their four lanes.
  __device__ __forceinline__ void total() {
    ATTN_UNROLL for (int i = 0; i < 2; i++) {
      sum[i] += __shfl_xor_sync(ALL_LANES, sum[i], 1);
      sum[i] += __shfl_xor_sync(ALL_LANES, sum[i], 2);
    }
  }
};

template <int THREADS> __device__ __forceinline__ void sync_threads() {
  if constexpr (THREADS == 32) __syncwarp();
  else __syncthreads();
}

// Where a group of threads has its tiles: those of queries and two stages of keys and of values, scores that wait for
// score_with_options, and what hide_odd_values notes, [BN + 1].
struct Tiles {
  const u16* q;
  u16 *k, *v;
  float* scores;
  int pitch;
  int* odd;
};

// Looks at keys in tiles that lie `step` apart, by THREADS threads, which the warp of `rows` is one of. Keys and values
// land in groups of their own: scores are computed while values arrive, and values are added while the next keys do.
// Whoever waits, waits for all but the youngest group. In a tile outside of `core`, the keys that all rows of these
// threads see, a weight of 0 could meet a value that is not finite, in a row that must not see it.
template <class T, int DP, int BN, int THREADS, bool FEATURES>
__device__ __forceinline__ void stream(WarpRows<DP>& rows, const AttentionParams& p, const Sequence& s,
                                       const Tiles& tiles, Interval span, int step, Interval core, int thread) {
  static_assert(BN <= 64, "a bit for every score of a lane");
  constexpr int TILE = BN * DP;
  const Rows keys = rows_of(p.key, p.key_strides, p.head_dim, rows.b, rows.kv_head);
  const Rows values = rows_of(p.value, p.value_strides, p.value_dim, rows.b, rows.kv_head);
  QueryFragments<DP> queries;
  bool taken = false;
  load_keys<DP, BN, THREADS>(tiles.k, p, keys, rows.b, span.first, span.last, thread);
  cp_async_commit();
  load_keys<DP, BN, THREADS>(tiles.v, p, values, rows.b, span.first, span.last, thread);
  cp_async_commit();
  for (int i = thread; i <= BN; i += THREADS) tiles.odd[i] = -1;
  int stage = 0;
  for (int at = span.first; at < span.last; at += step, stage ^= TILE) {
    const bool seen = rows.sees(at, BN);                     // the same for the whole warp
    float w[BN / 8][4];
    u32 shown = 0;
    cp_async_wait<1>();
    sync_threads<THREADS>();                                 // the keys are there; those before have been read by all
    if (at + step < span.last)
      load_keys<DP, BN, THREADS>(tiles.k + (stage ^ TILE), p, keys, rows.b, at + step, span.last, thread);
    cp_async_commit();
    if (!taken) queries.take(tiles.q, rows.lane), taken = true;
    if (seen) {
      multiply_keys<T, DP, BN>(w, queries, tiles.k + stage, rows.lane);
      if constexpr (FEATURES) shown = rows.template score_with_options<BN>(w, p, s, at, tiles.scores, tiles.pitch);
      else shown = rows.template score<BN>(w, p, at);
      rows.template weigh<BN>(w);
    }
    cp_async_wait<1>();
    const bool edge = FEATURES || !holds(core, at, BN);
    if (edge) hide_odd_values<T, DP, BN, THREADS>(tiles.v + stage, tiles.odd, at, thread);
    sync_threads<THREADS>();                                 // the values are there; those before have been read by all
    if (at + step < span.last)
      load_keys<DP, BN, THREADS>(tiles.v + (stage ^ TILE), p, values, rows.b, at + step, span.last, thread);
    cp_async_commit();
    if (edge && seen && tiles.odd[BN] == at) rows.template spoil<BN>(shown, tiles.odd, at);
    if (seen) add_values<T, DP, BN>(rows.o, w, tiles.v + stage, rows.lane);
  }
  cp_async_wait<0>();
}

}  // namespace attn
