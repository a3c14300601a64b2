// tile_sums.cu -- column sums of rows, tile by tile: a kernel to plant defects in that only a sanitizer sees.
#include "port.cuh"

__global__ void tile_sums(const float* rows, float* sums, int count) {
  constexpr int COLUMNS = 64, ROWS = 16;
  attn::Smem shared;
  float* tile = shared.take<float>(ROWS * COLUMNS);
  float* next = shared.take<float>(ROWS * COLUMNS);
  next[threadIdx.x] = 0;
  float sum = 0;
  for (int first = 0; first < count; first += ROWS) {
    __syncthreads();                                         // the last tile has been read
    for (int i = threadIdx.x; i < ROWS * COLUMNS / 4; i += COLUMNS) {
      const int row = i / (COLUMNS / 4), column = i % (COLUMNS / 4) * 4;
      float4 x = make_float4(0, 0, 0, 0);
      if (first + row < count) x = *reinterpret_cast<const float4*>(rows + (first + row) * COLUMNS + column);
      *reinterpret_cast<float4*>(tile + row * COLUMNS + column) = x;
    }
    __syncthreads();                                         // the tile is there
    for (int row = 0; row < ROWS; row++) sum += tile[row * COLUMNS + threadIdx.x];
  }
  sums[threadIdx.x] = sum;
}
