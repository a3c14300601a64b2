// merge_splits.cu -- joins what the splits of flash_decode found: outputs weighed by their log-sum-exp. A warp a row.
#include "parts.cuh"

namespace attn {

constexpr int MERGE_WARPS = 4;

__global__ void __launch_bounds__(32 * MERGE_WARPS, 4) merge_splits(const __grid_constant__ AttentionParams p) {
  const int lane = threadIdx.x & 31;
  const i64 rows = i64(p.batch) * p.heads * p.queries, row = i64(blockIdx.x) * MERGE_WARPS + (threadIdx.x >> 5);
  if (row >= rows) return;
  const int query = int(row % p.queries), head = int(row / p.queries % p.heads), b = int(row / p.queries / p.heads);
  const float* lse = static_cast<const float*>(p.partial_lse) + row;
  const float* o = static_cast<const float*>(p.partial_output) + row * p.value_dim;

  float m = neg_inf(), sum = 0.f;
  for (int i = lane; i < p.splits; i += 32) m = fmaxf(m, lse[i * rows]);
  m = maximum_of<32>(m);
  const float base = m == neg_inf() ? 0.f : m;
  for (int i = lane; i < p.splits; i += 32) sum += exponential(lse[i * rows] - base);
  sum = sum_of<32>(sum);

  const Ending end = ending_of(p, head, query < sequence_of(p, b).queries, m, sum);
  const i64* strides = p.output_strides;
  const i64 at = b * strides[0] + head * strides[1] + query * strides[2];
  for (int i = lane; i < p.value_dim; i += 32) {
    float x = 0.f;
    for (int split = 0; split < p.splits; split++)
      x += exponential(lse[split * rows] - base) * o[split * rows * p.value_dim + i];
    store_float(p.output, at + i, p.query_type, end.output(x));
  }
  if (lane == 0) store_lse(p, b, head, query, end.lse);
}

}  // namespace attn
