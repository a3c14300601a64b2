// tensor_cores.hpp -- ldmatrix and mma.sync: fragments as the PTX manual lays them out over the lanes of a warp.
#pragma once
#include "collectives.hpp"

namespace cuda_cpu {

struct MatrixRow {
  uint16_t row[8];
  uintptr_t address;
  uint32_t* out;
};

// How often the 8 rows of a matrix meet in a bank: 0 if all lie in different ones.
CUDA_CPU_UNTRACED inline int conflicts(void** lanes, int matrix) {
  int count[8] = {}, worst = 0;
  for (int r = 0; r < 8; r++) {
    const int bank = static_cast<MatrixRow*>(lanes[8 * matrix + r])->address / 16 % 8;
    worst = count[bank] + 1 > worst ? count[bank] + 1 : worst;
    count[bank]++;
  }
  return worst - 1;
}

// Register j of lane l: row l / 4 of matrix j, columns 2 (l % 4) and the next; TRANS: of the transposed matrix.
template <int N, bool TRANS>
CUDA_CPU_UNTRACED inline void exchange_rows(MatrixRow& mine, uint32_t line) {
  Fiber* me = current();
  if (me->lane < 8 * N && mine.address % 16)
    fail("ldmatrix line %u: address %p is not a multiple of 16", line, reinterpret_cast<void*>(mine.address));
  const char* op = TRANS ? "ldmatrix.trans" : "ldmatrix";
  collective<false>(~0u, op, line, &mine, [me](void** lanes, uint32_t) CUDA_CPU_UNTRACED {
    Stats& stats = me->block->worker->stats;
    stats.ldmatrix++;
    for (int j = 0; j < N; j++) {
      stats.ldmatrix_conflicts += conflicts(lanes, j);
      const auto element = [&](int row, int column) CUDA_CPU_UNTRACED -> uint32_t {
        return static_cast<MatrixRow*>(lanes[8 * j + (TRANS ? column : row)])->row[TRANS ? row : column];
      };
      for (int lane = 0; lane < 32; lane++) {
        const int row = lane / 4, column = 2 * (lane % 4);
        static_cast<MatrixRow*>(lanes[lane])->out[j] = element(row, column) | element(row, column + 1) << 16;
      }
    }
  });
}

// ldmatrix.sync.aligned.m8n8.xN[.trans].shared.b16: lane 8 j + r gives the address of row r of matrix j. Each lane
// reads its row here, inlined in the kernel, where sanitizers see a plain load.
template <int N, bool TRANS>
__forceinline__ void ldmatrix(uint32_t* out, const void* row, uint32_t line) {
  MatrixRow mine{{}, reinterpret_cast<uintptr_t>(row), out};
  if (current()->lane < 8 * N)
    for (int i = 0; i < 8; i++) mine.row[i] = static_cast<const uint16_t*>(row)[i];
  exchange_rows<N, TRANS>(mine, line);
}

struct MmaOperands {
  float* c;
  const uint32_t* a;
  const uint32_t* b;
};

template <bool BF16> CUDA_CPU_UNTRACED inline void unpack(uint32_t pair, float& low, float& high) {
  low = BF16 ? bfloat16_to_float(uint16_t(pair)) : half_to_float(uint16_t(pair));
  high = BF16 ? bfloat16_to_float(uint16_t(pair >> 16)) : half_to_float(uint16_t(pair >> 16));
}

// With g = lane / 4 and t = 2 (lane % 4): A holds rows g and g + 8, columns t and t + 8 and the next ones; B rows t and
// t + 8 and the next ones of column g; C rows g and g + 8, columns t and t + 1.
template <bool BF16> CUDA_CPU_UNTRACED inline void multiply_fragments(void** lanes) {
  alignas(64) float a[16][16], b[16][8], c[16][8];
  for (int lane = 0; lane < 32; lane++) {
    const MmaOperands& its = *static_cast<MmaOperands*>(lanes[lane]);
    const int g = lane / 4, t = 2 * (lane % 4);
    for (int i = 0; i < 4; i++) {
      float* pair = &a[g + 8 * (i % 2)][t + 8 * (i / 2)];
      unpack<BF16>(its.a[i], pair[0], pair[1]);
    }
    for (int i = 0; i < 2; i++) unpack<BF16>(its.b[i], b[t + 8 * i][g], b[t + 8 * i + 1][g]);
    for (int i = 0; i < 4; i++) c[g + 8 * (i / 2)][t + i % 2] = its.c[i];
  }
  for (int m = 0; m < 16; m++)
    for (int k = 0; k < 16; k++)
      for (int n = 0; n < 8; n++) c[m][n] += a[m][k] * b[k][n];
  for (int lane = 0; lane < 32; lane++) {
    const MmaOperands& its = *static_cast<MmaOperands*>(lanes[lane]);
    for (int i = 0; i < 4; i++) its.c[i] = c[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2];
  }
}

// mma.sync.aligned.m16n8k16.row.col.f32.T.T.f32; products and sums in float, one after the other.
template <bool BF16>
CUDA_CPU_UNTRACED inline void mma_m16n8k16(float* c, const uint32_t* a, const uint32_t* b, uint32_t line) {
  MmaOperands mine{c, a, b};
  Fiber* me = current();
  collective<false>(~0u, "mma.m16n8k16", line, &mine, [me](void** lanes, uint32_t) CUDA_CPU_UNTRACED {
    me->block->worker->stats.mma++;
    multiply_fragments<BF16>(lanes);
  });
}

}  // namespace cuda_cpu
