// flash_decode.cu -- few query rows over many keys that tensor cores do not take: float32, and what a codec stored.
//
// Warps of a block share the keys as in flash_decode_mma.cu: each streams eight at a time through stages of its own.
// What is stored goes to shared memory as it is, by asynchronous copies; so codes cost the bandwidth of codes. For the
// scores four lanes share a key, for the softmax eight share a row, for the output each lane owns some features.
#include "codes.cuh"
#include "parts.cuh"

namespace attn {

constexpr int KEYS = 8;
constexpr float HIDDEN = -1.f;                       // in place of the weight of a key: it may not meet a value of NaN

// The running softmax of the rows of a warp: lane 8 i + j looks at key j of rows i, i + 4, ...
template <int ROWS> struct DecodeRows {
  static constexpr int OWN = (ROWS + 3) / 4;
  int b, lane;
  RowName name[OWN];
  Interval seen[OWN];
  float top[OWN], sum[OWN];
  float* weights;                                    // [ROWS][KEYS] of the warp, in shared memory
  float* shrinks;                                    // [ROWS]

  __device__ __forceinline__ int row(int i) const { return (lane >> 3) + 4 * i; }

  __device__ __forceinline__ void start(const AttentionParams& p, const Sequence& s, int kv_head, int first) {
    ATTN_UNROLL for (int i = 0; i < OWN; i++) {
      name[i] = name_of(p, kv_head, first + row(i));
      seen[i] = row(i) < ROWS ? interval_of(p, s, name[i].query) : Interval{0, 0};
      top[i] = neg_inf(), sum[i] = 0.f;
    }
  }

  // From products in `weights` to weights; gives whether a maximum moved.
  template <bool FEATURES>
  __device__ __forceinline__ bool weigh(const AttentionParams& p, const Sequence& s, int first) {
    bool moved = false;
    ATTN_UNROLL for (int i = 0; i < OWN; i++) {
      const int key = first + (lane & 7), at = row(i) * KEYS + (lane & 7);
      float x = neg_inf();
      if (key >= seen[i].first && key < seen[i].last) {
        if constexpr (FEATURES) x = score_of(p, s, b, name[i].head, name[i].query, key, weights[at]);
        else x = scaled(p, weights[at]);
      }
      const float m = maximum_of<KEYS>(fmaxf(top[i], x));
      const float base = m == neg_inf() ? 0.f : m, shrink = exponential(top[i] - base), w = exponential(x - base);
      moved = moved || m != top[i];
      top[i] = m, sum[i] = sum[i] * shrink + w;
      if (row(i) < ROWS) weights[at] = x == neg_inf() ? HIDDEN : w;
      if (row(i) < ROWS && (lane & 7) == 0) shrinks[row(i)] = shrink;
    }
    return __any_sync(ALL_LANES, moved);
  }

  __device__ __forceinline__ void total() {
    ATTN_UNROLL for (int i = 0; i < OWN; i++) sum[i] = sum_of<KEYS>(sum[i]);
  }
};

// Products of all rows with the key of this lane, into `products` [ROWS][KEYS].
template <int TYPE, int DP, int ROWS>
__device__ __forceinline__ void multiply_key(float* products, const float* q, const Tokens& keys,
                                             const unsigned char* tile, i64 slot, int lane) {
  const unsigned char* token = tile + (lane >> 2) * pitch_of(TYPE, DP);
  float x[ROWS];
  ATTN_UNROLL for (int i = 0; i < ROWS; i++) x[i] = 0.f;
  for (int feature = 4 * (lane & 3); feature < DP; feature += 16) {
    float k[4];
    read_features<TYPE, 4>(k, keys, token, slot, feature);
    ATTN_UNROLL for (int i = 0; i < ROWS; i++) {
      const float4 a = *reinterpret_cast<const float4*>(q + i * DP + feature);
      x[i] += a.x * k[0] + a.y * k[1] + a.z * k[2] + a.w * k[3];
    }
  }
  ATTN_UNROLL for (int i = 0; i < ROWS; i++) {
    x[i] += __shfl_xor_sync(ALL_LANES, x[i], 1);
    x[i] += __shfl_xor_sync(ALL_LANES, x[i], 2);
    if ((lane & 3) == 0) products[i * KEYS + (lane >> 2)] = x[i];
  }
}

// The features of the output that a lane owns: TOGETHER in a row, every 32 * TOGETHER.
template <int DP> struct Features {
  static constexpr int COUNT = DP / 32, TOGETHER = COUNT < 4 ? COUNT : 4;
  static __device__ __forceinline__ int at(int i, int lane) { return i / TOGETHER * 32 * TOGETHER + TOGETHER * lane; }
};

// O += P V for the first `count` keys of a tile; lane 4 j knows the slot of key j.
template <int TYPE, int DP, int ROWS>
__device__ __forceinline__ void add_tokens(float (&o)[ROWS][DP / 32], const float* weights, const Tokens& values,
                                           const unsigned char* tile, i64 slot, int count, int lane) {
  constexpr int TOGETHER = Features<DP>::TOGETHER;
  for (int j = 0; j < count; j++) {
    const i64 its_slot = __shfl_sync(ALL_LANES, slot, 4 * j);
    ATTN_UNROLL for (int e = 0; e < DP / 32; e += TOGETHER) {
      float x[TOGETHER];
      read_features<TYPE, TOGETHER>(x, values, tile + j * pitch_of(TYPE, DP), its_slot, Features<DP>::at(e, lane));
      ATTN_UNROLL for (int i = 0; i < ROWS; i++) {
        const float w = weights[i * KEYS + j];
        if (w == HIDDEN) continue;
        ATTN_UNROLL for (int c = 0; c < TOGETHER; c++) o[i][e + c] += w * x[c];
      }
    }
  }
}

// Looks at keys in tiles that lie `step` apart, by one warp; see the loop of the same name in mma_stream.cuh.
template <int TYPE, int DP, int ROWS, bool FEATURES>
__device__ __forceinline__ void stream(DecodeRows<ROWS>& rows, float (&o)[ROWS][DP / 32], const AttentionParams& p,
                                       const Sequence& s, int kv_head, const float* q, unsigned char* k,
                                       unsigned char* v, Interval span, int step) {
  constexpr int TILE = KEYS * pitch_of(TYPE, DP);
  const Tokens keys = keys_of(p, rows.b, kv_head), values = values_of(p, rows.b, kv_head);
  const int b = rows.b, lane = rows.lane, last = span.last;
  load_tokens<TYPE, DP, KEYS>(k, p, keys, b, span.first, last, lane);
  cp_async_commit();
  load_tokens<TYPE, DP, KEYS>(v, p, values, b, span.first, last, lane);
  cp_async_commit();
  int stage = 0;
  for (int at = span.first; at < last; at += step, stage ^= TILE) {
    cp_async_wait<1>();
    __syncwarp();                                            // the keys are there; those before have been read
    if (at + step < last) load_tokens<TYPE, DP, KEYS>(k + (stage ^ TILE), p, keys, b, at + step, last, lane);
    cp_async_commit();
    const i64 slot = slot_of(p, b, min(at + (lane >> 2), last - 1));
    multiply_key<TYPE, DP, ROWS>(rows.weights, q, keys, k + stage, slot, lane);
    __syncwarp();                                            // the products are there
    const bool moved = rows.template weigh<FEATURES>(p, s, at);
    cp_async_wait<1>();
    __syncwarp();                                            // the weights and the values are there
    if (at + step < last) load_tokens<TYPE, DP, KEYS>(v + (stage ^ TILE), p, values, b, at + step, last, lane);
    cp_async_commit();
    if (moved) ATTN_UNROLL for (int i = 0; i < ROWS; i++) ATTN_UNROLL for (int e = 0; e < DP / 32; e++)
      o[i][e] *= rows.shrinks[i];
    add_tokens<TYPE, DP, ROWS>(o, rows.weights, values, v + stage, slot, min(KEYS, last - at), lane);
  }
  cp_async_wait<0>();
}

// Rows [first, first + ROWS) of the queries of one key/value head, as floats; zeros beyond the last feature and row.
template <int DP, int ROWS>
__device__ __forceinline__ void load_rows(float* q, const AttentionParams& p, int b, int kv_head, int first) {
  for (int i = threadIdx.x; i < ROWS * DP; i += blockDim.x) {
    const RowName row = name_of(p, kv_head, first + i / DP);
    const i64 at = start_of(p.query_strides, b, row.head) + row.query * p.query_strides[2] + i % DP;
    q[i] = row.query < p.queries && i % DP < p.head_dim ? load_float(p.query, at, p.query_type) : 0.f;
  }
}

// Blocks that are to share a multiprocessor: as many as the registers allow without a spill.
template <int DP, int ROWS> constexpr int SHARING = DP > 128 || ROWS > 4 ? 2 : ROWS > 1 ? 3 : 4;

template <int TYPE, int DP, int ROWS, int WARPS, bool FEATURES>
__global__ void __launch_bounds__(32 * WARPS, SHARING<DP, ROWS>)
flash_decode(const __grid_constant__ AttentionParams p) {
  constexpr int STAGES = 2 * KEYS * pitch_of(TYPE, DP), OWN = DP / 32;
  Smem shared;
  float* q = shared.take<float>(ROWS * DP);
  unsigned char* k = shared.take<unsigned char>(WARPS * STAGES);
  unsigned char* v = shared.take<unsigned char>(WARPS * STAGES);
  float* output = shared.take<float>(ROWS * DP);
  float* top = shared.take<float>(WARPS * ROWS);
  float* sum = shared.take<float>(WARPS * ROWS);
  float* weights = shared.take<float>(WARPS * ROWS * KEYS);
  float* shrinks = shared.take<float>(WARPS * ROWS);

  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, b = blockIdx.z, kv_head = blockIdx.y;
  const int split = blockIdx.x % p.splits, first = blockIdx.x / p.splits * ROWS;
  const Sequence s = sequence_of(p, b);
  const Interval queries = queries_of(p, first, ROWS);
  const Interval keys = keys_of_split(p, union_of(p, s, queries.first, queries.last), split, KEYS);
  load_rows<DP, ROWS>(q, p, b, kv_head, first);
  __syncthreads();                                           // every warp reads all queries

  DecodeRows<ROWS> rows;
  rows.b = b, rows.lane = lane, rows.weights = weights + warp * ROWS * KEYS, rows.shrinks = shrinks + warp * ROWS;
  rows.start(p, s, kv_head, first);
  float o[ROWS][OWN];
  ATTN_UNROLL for (int i = 0; i < ROWS; i++) ATTN_UNROLL for (int e = 0; e < OWN; e++) o[i][e] = 0.f;
  stream<TYPE, DP, ROWS, FEATURES>(rows, o, p, s, kv_head, q, k + warp * STAGES, v + warp * STAGES,
                                   {keys.first + warp * KEYS, keys.last}, WARPS * KEYS);
  rows.total();

  const Parts<ROWS, WARPS> parts{top, sum, output, DP};
  ATTN_UNROLL for (int i = 0; i < rows.OWN; i++)
    if (rows.row(i) < ROWS && (lane & 7) == 0) parts.put(warp, rows.row(i), rows.top[i], rows.sum[i]);
  __syncthreads();                                           // all maxima are known
  for (int w = 0; w < WARPS; w++) {
    if (w == warp) ATTN_UNROLL for (int i = 0; i < ROWS; i++) {
      const float shrink = parts.shrink(warp, i);
      ATTN_UNROLL for (int e = 0; e < OWN; e++) {
        float& x = output[i * DP + Features<DP>::at(e, lane) + e % Features<DP>::TOGETHER];
        x = (w == 0 ? 0.f : x) + o[i][e] * shrink;
      }
    }
    __syncthreads();                                         // one warp after the other: the sum has one order
  }
  store_parts<ROWS, WARPS>(p, s, parts, b, kv_head, first, split, warp, lane);
}

}  // namespace attn
