// flash_forward_simt.cu -- FlashAttention-2 (Dao, 2023) without tensor cores: any element type, codec and head size.
//
// A block owns BM folded rows of one key/value head and walks the keys that any of them sees, BN at a time. Its 16 x 16
// threads share the work: thread (ty, tx) has rows ty * RM + i, of S the keys tx + 16 j, of O the features that
// `feature` names; 16 lanes share a row. Everything is a float; D and E are padded to DP in shared memory. Keys and
// values take turns in one buffer, which halves the shared memory and lets two blocks hide each other's loads.
#include "scores.cuh"
#include "simt_tiles.cuh"

namespace attn {

__device__ __forceinline__ float dot(float4 a, float4 b, float sum) {
  return sum + a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

template <class Tile> struct SimtRows {
  static constexpr int RM = Tile::RM, RN = Tile::RN, RD = Tile::RD, LANES = Tile::LANES;
  using Scores = float[RM][RN];
  using Group = typename Tile::Group;

  int b, kv_head, first, ty, tx;                     // rows from `first` on
  Interval visible[RM];
  float m[RM], l[RM], o[RM][RD];                     // maximum, sum of this lane's keys, O

  __device__ __forceinline__ RowName name(const AttentionParams& p, int i) const {
    return name_of(p, kv_head, first + i);
  }

  __device__ __forceinline__ void start(const AttentionParams& p, const Sequence& s, int sequence, int head,
                                        int first_row) {
    ty = threadIdx.x / 16, tx = threadIdx.x % 16, b = sequence, kv_head = head, first = first_row + ty * RM;
    ATTN_UNROLL for (int i = 0; i < RM; i++) {
      visible[i] = interval_of(p, s, name(p, i).query);
      m[i] = neg_inf(), l[i] = 0.f;
      ATTN_UNROLL for (int d = 0; d < RD; d++) o[i][d] = 0.f;
    }
  }

  // S = Q K^T
  __device__ __forceinline__ void multiply(Scores& x, const float* queries, const float* keys) const {
    ATTN_UNROLL for (int i = 0; i < RM; i++) ATTN_UNROLL for (int j = 0; j < RN; j++) x[i][j] = 0.f;
    ATTN_ROLLED for (int d = 0; d < Tile::DP; d += 4) {
      float4 q[RM], k[RN];
      ATTN_UNROLL for (int i = 0; i < RM; i++)
        q[i] = *reinterpret_cast<const float4*>(queries + (ty * RM + i) * Tile::LD + d);
      ATTN_UNROLL for (int j = 0; j < RN; j++)
        k[j] = *reinterpret_cast<const float4*>(keys + (tx + 16 * j) * Tile::LD + d);
      ATTN_UNROLL for (int i = 0; i < RM; i++)
        ATTN_UNROLL for (int j = 0; j < RN; j++) x[i][j] = dot(q[i], k[j], x[i][j]);
    }
  }

  // Products with keys from `at` on become scores, -inf where a key is hidden.
  __device__ __forceinline__ void score(Scores& x, const AttentionParams& p, int at, bool edge) const {
    ATTN_UNROLL for (int i = 0; i < RM; i++) ATTN_UNROLL for (int j = 0; j < RN; j++) {
      const bool seen = !edge || sees(i, at + tx + 16 * j);
      x[i][j] = seen ? scaled(p, x[i][j]) : neg_inf();
    }
  }

  // The same with every option there is. It takes so much code that it is a loop: the products wait in shared memory,
  // where the weights will lie, as only there an index may be known at run time.
  __device__ __forceinline__ void score_with_options(Scores& x, const AttentionParams& p, const Sequence& s, int at,
                                                     float* weights) const {
    ATTN_UNROLL for (int i = 0; i < RM; i++) {
      const RowName row = name(p, i);
      float* mine = weights + (ty * RM + i) * Tile::LP + tx;
      ATTN_UNROLL for (int j = 0; j < RN; j++) mine[16 * j] = x[i][j];
      ATTN_ROLLED for (int j = 0; j < 16 * RN; j += 16) {
        const int key = at + tx + j;
        mine[j] = sees(i, key) ? score_of(p, s, b, row.head, row.query, key, mine[j]) : neg_inf();
      }
      ATTN_UNROLL for (int j = 0; j < RN; j++) x[i][j] = mine[16 * j];
    }
  }

  __device__ __forceinline__ bool sees(int i, int key) const {
    return key >= visible[i].first && key < visible[i].last;
  }

  // A row that sees an odd value is given up: its sum is NaN from here on, for mend to find.
  __device__ __forceinline__ void give_up(const Scores& x, const int* odd) {
    ATTN_UNROLL for (int j = 0; j < RN; j++) {
      if (!odd[tx + 16 * j]) continue;
      ATTN_UNROLL for (int i = 0; i < RM; i++) if (x[i][j] != neg_inf()) l[i] = not_a_number();
    }
  }

  // Scores become weights, in shared memory; what was summed is rescaled to the new maximum.
  __device__ __forceinline__ void weigh(const Scores& x, float* weights) {
    ATTN_UNROLL for (int i = 0; i < RM; i++) {
      float most = neg_inf();
      ATTN_UNROLL for (int j = 0; j < RN; j++) most = fmaxf(most, x[i][j]);
      most = fmaxf(m[i], maximum_of<16>(most));
      const float base = most == neg_inf() ? 0.f : most, shrink = exponential(m[i] - base);
      m[i] = most, l[i] *= shrink;
      ATTN_UNROLL for (int d = 0; d < RD; d++) o[i][d] *= shrink;
      ATTN_UNROLL for (int j = 0; j < RN; j++) {
        const float weight = exponential(x[i][j] - base);
        l[i] += weight;
        weights[(ty * RM + i) * Tile::LP + tx + 16 * j] = weight;
      }
    }
  }

  // O += P V
  __device__ __forceinline__ void add(const float* weights, const float* values) {
    ATTN_ROLLED for (int n = 0; n < Tile::BN; n += 4) {
      float w[RM][4];
      ATTN_UNROLL for (int i = 0; i < RM; i++) {
        const float4 four = *reinterpret_cast<const float4*>(weights + (ty * RM + i) * Tile::LP + n);
        w[i][0] = four.x, w[i][1] = four.y, w[i][2] = four.z, w[i][3] = four.w;
      }
      ATTN_UNROLL for (int j = 0; j < 4; j++) ATTN_UNROLL for (int d = 0; d < RD; d += LANES) {
        const float* from = values + (n + j) * Tile::LD + Tile::feature(d, tx);
        const Group v = *reinterpret_cast<const Group*>(from);
        ATTN_UNROLL for (int i = 0; i < RM; i++)
          ATTN_UNROLL for (int e = 0; e < LANES; e++) o[i][d + e] += w[i][j] * v.x[e];
      }
    }
  }

  __device__ __forceinline__ void store(const AttentionParams& p, const Sequence& s) {
    ATTN_UNROLL for (int i = 0; i < RM; i++) {
      const RowName row = name(p, i);
      const float sum = sum_of<16>(l[i]);
      if (row.query >= p.queries) continue;
      const Ending end = ending_of(p, row.head, row.query < s.queries, m[i], sum);
      const i64 at = start_of(p.output_strides, b, row.head) + row.query * p.output_strides[2];
      ATTN_UNROLL for (int d = 0; d < RD; d++) {
        const int feature = Tile::feature(d, tx);
        if (feature < p.value_dim) store_float(p.output, at + feature, p.query_type, end.output(o[i][d]));
      }
      if (tx == 0) store_lse(p, b, row.head, row.query, end.lse);
    }
  }
};

template <int DP, int BM, int BN, bool FEATURES>
__global__ void __launch_bounds__(256, 2) flash_forward_simt(const __grid_constant__ AttentionParams p) {
  using Tile = SimtTile<DP, BM, BN>;
  Smem shared;
  float* queries = shared.take<float>(BM * Tile::LD);
  float* tokens = shared.take<float>(BN * Tile::LD);
  float* weights = shared.take<float>(BM * Tile::LP);
  int* odd = shared.take<int>(BN);
  const int b = blockIdx.z, kv_head = blockIdx.y;
  const int first_row = (gridDim.x - 1 - blockIdx.x) * BM;           // under a causal mask the last rows take longest
  const Sequence s = sequence_of(p, b);
  const Tokens keys = keys_of(p, b, kv_head), values = values_of(p, b, kv_head);
  const Interval block = queries_of(p, first_row, BM);
  const Interval seen = union_of(p, s, block.first, block.last), core = core_of(p, s, block.first, block.last);

  load_queries<Tile>(queries, p, s, b, kv_head, first_row);
  SimtRows<Tile> rows;
  rows.start(p, s, b, kv_head, first_row);
  for (int at = seen.first; at < seen.last; at += BN) {
    const bool edge = FEATURES || at < core.first || at + BN > core.last;
    float x[Tile::RM][Tile::RN];                                     // S
    __syncthreads();                                                 // the values before have been read
    load_tokens<Tile>(tokens, nullptr, p, keys, b, at, seen.last);
    if (threadIdx.x < BN) odd[threadIdx.x] = 0;
    __syncthreads();                                                 // the keys are there
    rows.multiply(x, queries, tokens);
    __syncthreads();                                                 // the keys have been read
    load_tokens<Tile>(tokens, edge ? odd : nullptr, p, values, b, at, seen.last);
    __syncthreads();                                                 // the values are there
    if constexpr (FEATURES) rows.score_with_options(x, p, s, at, weights);
    else rows.score(x, p, at, edge);
    if (edge) rows.give_up(x, odd);
    rows.weigh(x, weights);
    __syncwarp();                                                    // a row of weights stays within half a warp
    rows.add(weights, tokens);
  }
  rows.store(p, s);
}

}  // namespace attn
