// scores.cuh -- from a product q.k to a score: scale, soft-cap, masks, bias and ALiBi.
//
// Scores stay natural: log2(e) is multiplied to differences from the maximum, never to scores, so that a score near the
// largest float does not overflow.
#pragma once
#include "elements.cuh"
#include "lanes.cuh"
#include "masks.cuh"

namespace attn {

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LOG_2 = 0.6931471805599453f;

// exp(x)
__device__ __forceinline__ float exponential(float x) { return exp2_fast(x * LOG2_E); }

// The whole way where a call has nothing but positional masks: kernels without FEATURES.
__device__ __forceinline__ float scaled(const AttentionParams& p, float product) { return product * p.scale; }

// c tanh(x / c), with c a float times a power of two, for those that no float holds. Small ratios, where tanh is the
// identity, are left out: there the quotient may have no digits left.
__device__ __forceinline__ float capped(const AttentionParams& p, float x) {
  const float ratio = x / p.softcap_power / p.softcap;
  return fabsf(ratio) < 0x1p-13f ? x : p.softcap * tanhf(ratio) * p.softcap_power;
}

// The score of a key that the query sees by position, with every option there is; -inf where it is hidden after all.
__device__ __forceinline__ float score_of(const AttentionParams& p, const Sequence& s, int b, int head, int query,
                                          int key, float product) {
  if (hidden_by_arrays(p, b, head, query, key)) return neg_inf();
  float x = product * p.scale * p.scale_power;
  if (p.softcap != 0.f) x = capped(p, x);
  if (p.bias) {
    const i64* strides = p.bias_strides;
    const i64 at = b * strides[0] + head * strides[1] + query * strides[2] + key * strides[3];
    const float bias = load_float(p.bias, at, p.bias_type);
    if (bias == neg_inf()) return neg_inf();
    x += bias;
  }
  if (p.alibi) {
    const i64 distance = s.position + query - key;
    const float slope = static_cast<const float*>(p.alibi)[b * p.alibi_stride + head];
    x -= slope * float(distance < 0 ? -distance : distance);
  }
  return x;
}

// How a row ends, after its last key: what its output is multiplied by, and the log of its normaliser. The output of an
// empty one is 0, whatever was summed.
struct Ending {
  float factor, lse;
  bool empty;

  __device__ __forceinline__ float output(float o) const { return empty ? 0.f : o * factor; }
};

// From the maximum and the sum of a row. The sink is one more key, of value 0; a row without any key is 0 (A7).
__device__ __forceinline__ Ending ending_of(const AttentionParams& p, int head, bool valid, float m, float sum) {
  const float sink = p.sinks ? static_cast<const float*>(p.sinks)[head] : neg_inf();
  if (!valid || sum == 0.f) return {0.f, sink, true};
  const float most = fmaxf(m, sink);
  const float base = most == neg_inf() ? 0.f : most, shrink = exponential(m - base);
  const float normaliser = sum * shrink + exponential(sink - base);
  return {shrink / normaliser, most + logf(normaliser), false};
}

__device__ __forceinline__ void store_lse(const AttentionParams& p, int b, int head, int query, float lse) {
  if (!p.lse) return;
  static_cast<float*>(const_cast<void*>(p.lse))[(i64(b) * p.heads + head) * p.queries + query] = lse;
}

}  // namespace attn
