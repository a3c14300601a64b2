// flash_forward_mma.cu -- FlashAttention-2 on tensor cores: float16 and bfloat16, keys and values as they are stored.
//
// A block owns BM folded rows of one key/value head (masks.cuh), a warp 16 of them. The loop is in mma_stream.cuh.
#include "mma_stream.cuh"

namespace attn {

// Row i of this lane: its columns of the output, and where it is the first of four lanes the log of the normaliser.
template <class T, int DP>
__device__ __forceinline__ void store_row(const AttentionParams& p, const Sequence& s, const WarpRows<DP>& rows,
                                          int i) {
  const RowName row = rows.name(p, i);
  if (row.query >= p.queries) return;
  const Ending end = ending_of(p, row.head, row.query < s.queries, rows.top[i], rows.sum[i]);
  u16* to = static_cast<u16*>(const_cast<void*>(p.output)) + rows.b * p.output_strides[0] +
            row.head * p.output_strides[1] + row.query * p.output_strides[2];
  const bool pairs = (reinterpret_cast<i64>(to) & 3) == 0;
  ATTN_UNROLL for (int j = 0; j < DP / 8; j++) {
    const int feature = 8 * j + 2 * (rows.lane & 3);
    const u32 both = pack2<T>(end.output(rows.o[j][2 * i]), end.output(rows.o[j][2 * i + 1]));
    if (pairs && feature + 1 < p.value_dim) {
      *reinterpret_cast<u32*>(to + feature) = both;
      continue;
    }
    if (feature < p.value_dim) to[feature] = u16(both);
    if (feature + 1 < p.value_dim) to[feature + 1] = u16(both >> 16);
  }
  if ((rows.lane & 3) == 0) store_lse(p, rows.b, row.head, row.query, end.lse);
}

// Blocks that are to share a multiprocessor: heads of 64 leave registers for 16 warps, though not on every architecture
// without spills. That of sm_75 has shared memory for one block in any case.
template <int DP, int BM, bool FEATURES> constexpr int SHARING =
    DP == 64 && !FEATURES && ATTN_ARCH >= 80 && (ATTN_ARCH < 100 || ATTN_ARCH >= 120) ? 256 / BM : 1;

template <class T, int DP, int BM, int BN, bool FEATURES>
__global__ void __launch_bounds__(2 * BM, SHARING<DP, BM, FEATURES>)
flash_forward_mma(const __grid_constant__ AttentionParams p) {
  constexpr int THREADS = 2 * BM;
  static_assert(BM % 16 == 0 && BN % 16 == 0 && DP % 64 == 0, "tiles are made of fragments and of swizzled chunks");
  Smem shared;
  u16* q = shared.take<u16>(BM * DP);
  u16* k = shared.take<u16>(2 * BN * DP);
  u16* v = shared.take<u16>(2 * BN * DP);
  int* odd = shared.take<int>(BN + 1);

  const int thread = threadIdx.x, warp = thread >> 5, b = blockIdx.z, kv_head = blockIdx.y;
  const int first = (gridDim.x - 1 - blockIdx.x) * BM;       // longest rows first
  float* scores = FEATURES ? shared.take<float>(BM * BN) + thread : nullptr;
  const Sequence s = sequence_of(p, b);
  const Interval queries = queries_of(p, first, BM);

  load_queries<DP, BM, THREADS>(q, p, b, kv_head, first, thread);
  WarpRows<DP> rows;
  rows.start(p, s, b, kv_head, first + 16 * warp, thread & 31);
  stream<T, DP, BN, THREADS, FEATURES>(rows, p, s, {q + 16 * warp * DP, k, v, scores, THREADS, odd},
                                       union_of(p, s, queries.first, queries.last), BN,
                                       core_of(p, s, queries.first, queries.last), thread);
  rows.total();
  ATTN_UNROLL for (int i = 0; i < 2; i++) store_row<T, DP>(p, s, rows, i);
}

}  // namespace attn
