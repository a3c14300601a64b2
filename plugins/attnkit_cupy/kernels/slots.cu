// slots.cu -- tokens written into slots of a plane, and copied out of them. Bits are moved, whatever they mean.
// Axes: B sequences, K key/value heads, T tokens, N slots, F features of a plane [K, N, F].
#include "port.cuh"

namespace attn {

// Strides of tokens [B, K, T, F], in elements.
struct TokenStrides {
  i64 sequence, head, token, feature;
};

// What a launch is about: the grid is (tokens and features, heads, sequences).
struct SlotMove {
  i64 plane_head, plane_slot;  // strides of the plane, in elements; its features are contiguous
  TokenStrides tokens;
  int batch, count, features;  // B, T, F
};

__device__ __forceinline__ i64 token_at(const SlotMove& m, int sequence, int head, i64 token, i64 feature) {
  return sequence * m.tokens.sequence + head * m.tokens.head + token * m.tokens.token + feature * m.tokens.feature;
}

// Slots below 0 are skipped.
template <class T>
__global__ void write_slots(T* plane, const i64* slots, const T* tokens, SlotMove m) {
  const i64 element = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  const i64 token = element / m.features, feature = element - token * m.features;
  if (token >= m.count) return;
  const int head = blockIdx.y;
  for (int sequence = blockIdx.z; sequence < m.batch; sequence += gridDim.z) {
    const i64 slot = slots[i64(sequence) * m.count + token];
    if (slot < 0) continue;
    plane[head * m.plane_head + slot * m.plane_slot + feature] = tokens[token_at(m, sequence, head, token, feature)];
  }
}

// Slots below 0 give zeros.
template <class T>
__global__ void read_slots(const T* plane, const i64* slots, T* tokens, SlotMove m) {
  const i64 element = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  const i64 token = element / m.features, feature = element - token * m.features;
  if (token >= m.count) return;
  const int head = blockIdx.y;
  for (int sequence = blockIdx.z; sequence < m.batch; sequence += gridDim.z) {
    const i64 slot = slots[i64(sequence) * m.count + token];
    const T found = slot < 0 ? T(0) : plane[head * m.plane_head + slot * m.plane_slot + feature];
    tokens[token_at(m, sequence, head, token, feature)] = found;
  }
}

}  // namespace attn
