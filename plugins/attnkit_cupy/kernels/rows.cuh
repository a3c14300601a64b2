// rows.cuh -- folded rows: which query of which head they are.
#pragma once
#include "masks.cuh"

namespace attn {

// The queries of folded rows [first, first + count), as [first, last).
__device__ __forceinline__ Interval queries_of(const AttentionParams& p, int first, int count) {
  return {first / p.group, min((first + count - 1) / p.group + 1, p.queries)};
}

// Which query of which head a folded row is.
struct RowName {
  int query, head;
};

__device__ __forceinline__ RowName name_of(const AttentionParams& p, int kv_head, int row) {
  return {row / p.group, kv_head * p.group + row % p.group};
}

}  // namespace attn
