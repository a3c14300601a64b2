// mend.cu -- rows whose output is not finite, once more and by themselves: what they do not see leaves no trace (A8).
//
// The kernels before it work on tiles, in which a weight of 0 times NaN is NaN. Where every row of a tile sees a value
// that is not finite, it reaches them all; where some do not, the kernels put 0 in its place, and NaN into the sums of
// those that do. Nor are weights divided by their sum until the end, so that large values may overflow. Here one warp
// looks at each row, and where it has to, reads the keys that the row sees, twice: for the softmax, then for the
// output. Nearly always there is nothing to do.
#include "keys.cuh"
#include "scores.cuh"

namespace attn {

constexpr int WARPS = 4, MOST_FEATURES = 256;

struct MendedRow {
  int b, kv_head, head, query;
};

__device__ __forceinline__ bool is_row_finite(const AttentionParams& p, i64 output, int lane) {
  bool fine = true;
  for (int e = lane; e < p.value_dim; e += 32) fine = fine && is_finite(load_float(p.output, output + e, p.query_type));
  return __all_sync(ALL_LANES, fine);
}

// The score of one key for one lane; -inf beyond the last one and where the key is hidden.
__device__ __forceinline__ float score_alone(const AttentionParams& p, const Sequence& s, const Tokens& keys,
                                             const MendedRow& row, int key, int last) {
  if (key >= last || hidden_by_arrays(p, row.b, row.head, row.query, key)) return neg_inf();
  const i64 slot = slot_of(p, row.b, key);
  const i64 query = start_of(p.query_strides, row.b, row.head) + row.query * p.query_strides[2];
  float product = 0.f;
  for (int d = 0; d < p.head_dim; d += 4) {
    const float4 q = load_four(p.query, query + d, p.head_dim - d, p.query_type), k = load_token(keys, slot, d);
    product += q.x * k.x + q.y * k.y + q.z * k.z + q.w * k.w;
  }
  return score_of(p, s, row.b, row.head, row.query, key, product);
}

__global__ void __launch_bounds__(32 * WARPS, 1) mend(const AttentionParams p) {
  const int lane = threadIdx.x % 32, folded = blockIdx.x * WARPS + threadIdx.x / 32;
  const int query = folded / p.group, head = blockIdx.y * p.group + (folded - query * p.group);
  const MendedRow row = {int(blockIdx.z), int(blockIdx.y), head, query};
  const Sequence s = sequence_of(p, row.b);
  if (query >= s.queries) return;
  const i64 output = start_of(p.output_strides, row.b, head) + query * p.output_strides[2];
  if (is_row_finite(p, output, lane)) return;
  const Tokens keys = keys_of(p, row.b, row.kv_head), values = values_of(p, row.b, row.kv_head);
  const Interval seen = interval_of(p, s, query);

  float m = neg_inf(), l = 0.f;
  for (int first = seen.first; first < seen.last; first += 32) {   // softmax: a lane has a key
    const float x = score_alone(p, s, keys, row, first + lane, seen.last);
    const float most = fmaxf(m, maximum_of<32>(x)), base = most == neg_inf() ? 0.f : most;
    l = l * exponential(m - base) + sum_of<32>(exponential(x - base));
    m = most;
  }
  const Ending end = ending_of(p, head, true, m, l);

  float o[MOST_FEATURES / 32] = {};
  for (int first = seen.first; first < seen.last; first += 32) {   // output: a lane has every 32nd feature
    const float x = score_alone(p, s, keys, row, first + lane, seen.last);
    const float base = m == neg_inf() ? 0.f : m, weight = exponential(x - base) * end.factor;
    for (int j = 0; j < min(32, seen.last - first); j++) {
      const float w = __shfl_sync(ALL_LANES, weight, j);
      if (__shfl_sync(ALL_LANES, x, j) == neg_inf()) continue;
      const i64 slot = slot_of(p, row.b, first + j);
      ATTN_UNROLL for (int i = 0; i < MOST_FEATURES / 32; i++) {
        const int feature = 32 * i + lane;
        if (feature < p.value_dim) o[i] += w * load_feature(values, slot, feature);
      }
    }
  }
  ATTN_UNROLL for (int i = 0; i < MOST_FEATURES / 32; i++) {
    const int feature = 32 * i + lane;
    if (feature < p.value_dim) store_float(p.output, output + feature, p.query_type, end.empty ? 0.f : o[i]);
  }
  if (lane == 0) store_lse(p, row.b, head, query, end.lse);
}

}  // namespace attn
