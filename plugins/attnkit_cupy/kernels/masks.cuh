// masks.cuh -- which keys a query sees: lengths, positions and the positional masks, as one interval of keys a query.
//
// Rows are folded: all query heads of a key/value head are rows of one matrix, r = query * G + head within the group,
// so that keys and values are read once for the group and rows next to each other see nearly the same keys.
#pragma once
#include "params.cuh"

namespace attn {

// What the lengths and offsets of one sequence say, clamped to the arrays.
struct Sequence {
  int queries, keys;        // valid ones
  i64 position;             // of query 0, counted from key 0
  i64 first_position;       // of key 0, which chunks and prefixes count from
};

// Keys [first, last) of one row.
struct Interval {
  int first, last;
};

__device__ __forceinline__ i64 number(const void* numbers, int b, i64 otherwise) {
  return numbers ? static_cast<const i64*>(numbers)[b] : otherwise;
}

__device__ __forceinline__ int clamp(i64 x, int most) { return x < 0 ? 0 : x > most ? most : int(x); }

__device__ __forceinline__ Sequence sequence_of(const AttentionParams& p, int b) {
  Sequence s;
  s.queries = clamp(number(p.query_lengths, b, p.queries), p.queries);
  s.keys = clamp(number(p.kv_lengths, b, p.keys), p.keys);
  s.first_position = number(p.key_offset, b, 0);
  s.position = number(p.query_offset, b, s.first_position + s.keys - s.queries) - s.first_position;
  return s;
}

__device__ __forceinline__ i64 floor_multiple(i64 x, i64 size) {
  i64 r = x % size;
  return x - (r < 0 ? r + size : r);
}

// The keys that a query sees by position; both ends never move left from one query to the next.
__device__ __forceinline__ Interval interval_of(const AttentionParams& p, const Sequence& s, int query) {
  if (query >= s.queries) return {0, 0};
  const i64 at = s.position + query;                 // counted from key 0
  i64 first = 0, last = s.keys;
  if (p.left >= 0) first = max(first, at - p.left + 1);
  if (p.right >= 0) last = min(last, at + p.right + 1);
  if (p.causal) last = min(last, at + 1);
  if (p.prefix >= 0) last = min(last, max(at + 1, p.prefix - s.first_position));
  ATTN_UNROLL for (int i = 0; i < 4; i++) {
    if (p.chunks[i] == 0) continue;
    const i64 start = floor_multiple(at + s.first_position, p.chunks[i]) - s.first_position;
    first = max(first, start);
    last = min(last, start + p.chunks[i]);
  }
  const int lo = clamp(first, s.keys);
  return {lo, max(lo, clamp(last, s.keys))};
}

// The keys that any of the queries [from, to) sees; the queries between see no others.
__device__ __forceinline__ Interval union_of(const AttentionParams& p, const Sequence& s, int from, int to) {
  to = min(to, s.queries);
  if (from >= to) return {0, 0};
  return {interval_of(p, s, from).first, interval_of(p, s, to - 1).last};
}

// The keys that each of the queries [from, to) sees.
__device__ __forceinline__ Interval core_of(const AttentionParams& p, const Sequence& s, int from, int to) {
  if (to > s.queries) return {0, 0};
  return {interval_of(p, s, to - 1).first, interval_of(p, s, from).last};
}

// Whether documents or a dense mask hide a key that the query sees by position.
__device__ __forceinline__ bool hidden_by_arrays(const AttentionParams& p, int b, int head, int query, int key) {
  ATTN_UNROLL for (int i = 0; i < 2; i++)
    if (p.query_documents[i]) {
      const i64* ids_q = static_cast<const i64*>(p.query_documents[i]) + b * p.document_strides[2 * i];
      const i64* ids_k = static_cast<const i64*>(p.key_documents[i]) + b * p.document_strides[2 * i + 1];
      if (ids_q[query] != ids_k[key]) return true;
    }
  if (!p.dense) return false;
  const i64* strides = p.dense_strides;
  const i64 at = b * strides[0] + head * strides[1] + query * strides[2] + key * strides[3];
  return !static_cast<const unsigned char*>(p.dense)[at];
}

}  // namespace attn
