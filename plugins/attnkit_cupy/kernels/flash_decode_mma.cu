// flash_decode_mma.cu -- few query rows over many keys, on tensor cores: float16 and bfloat16, stored as they are.
//
// Sixteen rows, which is what an mma takes, are the work of one warp, so the warps of a block share the keys: each
// streams tiles of its own through stages of its own and waits for no other one, until they join what they found.
// Blocks share the keys in the same way (merge_splits.cu). Time goes into reading: empty rows of the 16 cost nothing.
#include "mma_stream.cuh"
#include "parts.cuh"

namespace attn {

constexpr int MMA_ROWS = 16;

template <class T, int DP, int BN, int WARPS, bool FEATURES>
__global__ void __launch_bounds__(32 * WARPS, 1) flash_decode_mma(const __grid_constant__ AttentionParams p) {
  constexpr int STAGES = 2 * BN * DP, PITCH = DP + 8;        // rows of the output 8 banks apart
  constexpr int OUTPUT = 2 * MMA_ROWS * PITCH;               // it lies where the keys were
  Smem shared;
  u16* q = shared.take<u16>(MMA_ROWS * DP);
  u16* k = shared.take<u16>(WARPS * STAGES > OUTPUT ? WARPS * STAGES : OUTPUT);
  u16* v = shared.take<u16>(WARPS * STAGES);
  int* odd = shared.take<int>(WARPS * (BN + 1)) + (threadIdx.x >> 5) * (BN + 1);
  float* top = shared.take<float>(WARPS * MMA_ROWS);
  float* sum = shared.take<float>(WARPS * MMA_ROWS);

  const int thread = threadIdx.x, warp = thread >> 5, lane = thread & 31, b = blockIdx.z, kv_head = blockIdx.y;
  float* scores = FEATURES ? shared.take<float>(WARPS * MMA_ROWS * BN) + warp * MMA_ROWS * BN + lane : nullptr;
  const int split = blockIdx.x % p.splits, first = blockIdx.x / p.splits * MMA_ROWS;
  const Sequence s = sequence_of(p, b);
  const Interval queries = queries_of(p, first, MMA_ROWS);
  const Interval keys = keys_of_split(p, union_of(p, s, queries.first, queries.last), split, BN);

  load_queries<DP, MMA_ROWS, 32 * WARPS>(q, p, b, kv_head, first, thread);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();                                           // every warp reads all queries
  WarpRows<DP> rows;
  rows.start(p, s, b, kv_head, first, lane);
  stream<T, DP, BN, 32, FEATURES>(rows, p, s, {q, k + warp * STAGES, v + warp * STAGES, scores, 32, odd},
                                  {keys.first + warp * BN, keys.last}, WARPS * BN, rows.all, lane);
  rows.total();

  const Parts<MMA_ROWS, WARPS> parts{top, sum, reinterpret_cast<float*>(k), PITCH};
  if ((lane & 3) == 0) ATTN_UNROLL for (int i = 0; i < 2; i++)
    parts.put(warp, (lane >> 2) + 8 * i, rows.top[i], rows.sum[i]);
  __syncthreads();                                           // all maxima are known, no keys are read any more
  for (int w = 0; w < WARPS; w++) {
    if (w == warp) ATTN_UNROLL for (int i = 0; i < 2; i++) {
      const int row = (lane >> 2) + 8 * i;
      const float shrink = parts.shrink(warp, row);
      float* o = parts.output + row * PITCH + 2 * (lane & 3);
      ATTN_UNROLL for (int j = 0; j < DP / 8; j++) ATTN_UNROLL for (int e = 0; e < 2; e++)
        o[8 * j + e] = (w == 0 ? 0.f : o[8 * j + e]) + rows.o[j][2 * i + e] * shrink;
    }
    __syncthreads();                                         // one warp after the other: the sum has one order
  }
  store_parts<MMA_ROWS, WARPS>(p, s, parts, b, kv_head, first, split, warp, lane);
}

}  // namespace attn
