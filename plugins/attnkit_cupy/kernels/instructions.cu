// instructions.cu -- one kernel for each instruction that the emulator imitates: the same tests run on a GPU, which
// says whether it imitates them well.
#include "port.cuh"

namespace attn {

struct InstructionArrays {
  const void* input[3];
  void* output;
  i64 count;
};

__device__ __forceinline__ int thread_of_grid() { return blockIdx.x * blockDim.x + threadIdx.x; }

// A, B, C and D as fragments: [lane, register].
template <class T>
__global__ void run_mma(const InstructionArrays arrays) {
  const int lane = threadIdx.x;
  const u32* a = static_cast<const u32*>(arrays.input[0]) + 4 * lane;
  const u32* b = static_cast<const u32*>(arrays.input[1]) + 2 * lane;
  const float* c = static_cast<const float*>(arrays.input[2]) + 4 * lane;
  const u32 fragment[4] = {a[0], a[1], a[2], a[3]};
  float sums[4] = {c[0], c[1], c[2], c[3]};
  mma_16816<T>(sums, fragment, b[0], b[1]);
  ATTN_UNROLL for (int i = 0; i < 4; i++) static_cast<float*>(arrays.output)[4 * lane + i] = sums[i];
}

// Four 8x8 matrices -> fragments [lane, register].
template <bool TRANS>
__global__ void run_ldmatrix(const InstructionArrays arrays) {
  const int lane = threadIdx.x;
  Smem shared;
  u16* tile = shared.take<u16>(256);
  for (int i = lane; i < 256; i += 32) tile[i] = static_cast<const u16*>(arrays.input[0])[i];
  __syncwarp();
  u32 registers[4];
  if constexpr (TRANS) ldmatrix_x4_trans(registers, tile + 8 * lane);
  else ldmatrix_x4(registers, tile + 8 * lane);
  ATTN_UNROLL for (int i = 0; i < 4; i++) static_cast<u32*>(arrays.output)[4 * lane + i] = registers[i];
}

// 16 bytes a thread in each of two groups; of odd threads the second group is zeros. Each thread gives back what the
// next one copied: [group, thread, 4].
__global__ void run_cp_async(const InstructionArrays arrays) {
  const int threads = blockDim.x, next = (threadIdx.x + 1) % threads;
  Smem shared;
  uint4* tile = shared.take<uint4>(2 * threads);
  const uint4* input = static_cast<const uint4*>(arrays.input[0]);
  uint4* output = static_cast<uint4*>(arrays.output);
  cp_async16(tile + threadIdx.x, input + threadIdx.x, true);
  cp_async_commit();
  const bool wanted = threadIdx.x % 2 == 0;
  cp_async16(tile + threads + threadIdx.x, wanted ? input + threads + threadIdx.x : input, wanted);
  cp_async_commit();
  cp_async_wait<1>();
  __syncthreads();
  output[threadIdx.x] = tile[next];
  cp_async_wait<0>();
  __syncthreads();
  output[threads + threadIdx.x] = tile[threads + next];
}

// What each lane has after exchanges of lane numbers: [exchange, lane].
__global__ void run_shuffles(const InstructionArrays arrays) {
  const int lane = threadIdx.x;
  int* output = static_cast<int*>(arrays.output) + lane;
  output[0] = __shfl_xor_sync(0xffffffffu, lane, 5);
  output[32] = __shfl_xor_sync(0xffffffffu, lane, 12, 8);
  output[64] = __shfl_sync(0xffffffffu, lane, 9);
  output[96] = __shfl_sync(0xffffffffu, lane, 9, 8);
  output[128] = __shfl_down_sync(0xffffffffu, lane, 3);
  output[160] = __shfl_down_sync(0xffffffffu, lane, 3, 16);
  output[192] = __shfl_up_sync(0xffffffffu, lane, 3);
  output[224] = __shfl_up_sync(0xffffffffu, lane, 3, 16);
}

// Votes of the lanes whose number is a multiple of 3: as bits, whether any, whether all, and whether all below 32.
__global__ void run_votes(const InstructionArrays arrays) {
  const int lane = threadIdx.x;
  u32* output = static_cast<u32*>(arrays.output) + lane;
  output[0] = __ballot_sync(0xffffffffu, lane % 3 == 0);
  output[32] = __any_sync(0xffffffffu, lane % 3 == 0) != 0;
  output[64] = __all_sync(0xffffffffu, lane % 3 == 0) != 0;
  output[96] = __all_sync(0xffffffffu, lane < 32) != 0;
}

// Floats -> pairs of 16-bit floats of number i and of number i + 1, packed.
template <class T>
__global__ void run_narrowing(const InstructionArrays arrays) {
  const float* input = static_cast<const float*>(arrays.input[0]);
  const int i = thread_of_grid();
  if (i + 1 < arrays.count) static_cast<u32*>(arrays.output)[i] = pack2<T>(input[i], input[i + 1]);
}

// 16-bit floats -> floats.
template <class T>
__global__ void run_widening(const InstructionArrays arrays) {
  const int i = thread_of_grid();
  if (i < arrays.count) static_cast<float*>(arrays.output)[i] = to_float(static_cast<const T*>(arrays.input[0])[i]);
}

__global__ void run_exp2(const InstructionArrays arrays) {
  const float* input = static_cast<const float*>(arrays.input[0]);
  const int i = thread_of_grid();
  if (i < arrays.count) static_cast<float*>(arrays.output)[i] = exp2_fast(input[i]);
}

// Each thread gives back what the one at the other end of the block, in another warp, wrote; three times over.
__global__ void run_barriers(const InstructionArrays arrays) {
  const int threads = blockDim.x, other = threads - 1 - threadIdx.x;
  Smem shared;
  int* tile = shared.take<int>(threads);
  int number = threadIdx.x;
  for (int round = 0; round < 3; round++) {
    tile[threadIdx.x] = number;
    __syncthreads();
    number = tile[other] + 1;
    __syncthreads();
  }
  static_cast<int*>(arrays.output)[threadIdx.x] = number;
}

// The same between the lanes of a warp.
__global__ void run_warp_barriers(const InstructionArrays arrays) {
  const int lane = threadIdx.x;
  Smem shared;
  int* tile = shared.take<int>(32);
  int number = lane;
  for (int round = 0; round < 3; round++) {
    tile[lane] = number;
    __syncwarp();
    number = tile[31 - lane] + 1;
    __syncwarp();
  }
  static_cast<int*>(arrays.output)[lane] = number;
}

// Threads count themselves, as integers and as floats, and keep the largest of their numbers, in shared memory; what
// stands there is then added to global memory, or kept if it is larger.
__global__ void run_atomics(const InstructionArrays arrays) {
  Smem shared;
  int* found = shared.take<int>(3);
  if (threadIdx.x < 3) found[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(found, 1);
  atomicAdd(reinterpret_cast<float*>(found) + 1, 1.f);
  atomicMax(found + 2, thread_of_grid());
  __syncthreads();
  if (threadIdx.x != 0) return;
  int* output = static_cast<int*>(arrays.output);
  atomicAdd(output, found[0]);
  atomicAdd(reinterpret_cast<float*>(output) + 1, __int_as_float(found[1]));
  atomicMax(output + 2, found[2]);
}

}  // namespace attn
