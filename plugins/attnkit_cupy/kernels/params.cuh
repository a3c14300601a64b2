// params.cuh -- the one argument of every attention kernel; written by attnkit_cupy/params.py, do not edit.
// Axes: B sequences, H query heads, K key/value heads, T queries, S keys, N slots, D and E head sizes,
// F features of a plane.
#pragma once
#include "port.cuh"

namespace attn {

enum ElementType : int {
  TYPE_FLOAT32 = 0,
  TYPE_FLOAT16 = 1,
  TYPE_BFLOAT16 = 2,
  TYPE_FLOAT64 = 3,
  TYPE_INT8 = 4,
  TYPE_INT4 = 5,
  TYPE_FP8 = 6,
};

struct AttentionParams {
  const void* query;  // [B, H, T, D]
  const void* output;  // [B, H, T, E]
  const void* lse;  // float [B, H, T], contiguous, natural logarithm; null: not wanted
  const void* partial_output;  // float [splits, B, H, T, E], contiguous; flash_decode alone
  const void* partial_lse;  // float [splits, B, H, T], contiguous; flash_decode alone
  const void* key;  // [B, K, S, D], or a plane [K, N, F]
  const void* value;  // [B, K, S, E], or a plane [K, N, F]
  const void* key_scales;  // float plane [K, N, blocks * numbers]; null: native storage
  const void* value_scales;  // the same of the values
  const void* page_table;  // int [B, pages]: the first slot of each page; null: key j lies at slot j
  const void* page_start;  // i64 [B]: tokens of the first page before key 0; null: 0
  const void* bias;  // broadcast to [B, H, T, S] by its strides; null: none
  const void* dense;  // unsigned char, broadcast to [B, H, T, S] by its strides; null: none
  const void* alibi;  // float [B, H] by alibi_stride; null: none
  const void* sinks;  // float [H]; null: none
  const void* query_lengths;  // i64 [B]; null: T
  const void* kv_lengths;  // i64 [B]; null: S
  const void* query_offset;  // i64 [B]; null: aligned to the bottom right
  const void* key_offset;  // i64 [B]; null: 0
  const void* query_documents[2];  // i64 [B, T] by document_strides; null: no such term
  const void* key_documents[2];  // i64 [B, S] by document_strides
  i64 query_strides[3];  // in elements: sequence, head, token; features are contiguous
  i64 output_strides[3];
  i64 key_strides[3];  // in elements: sequence, head, token or slot
  i64 value_strides[3];
  i64 key_scales_strides[3];
  i64 value_scales_strides[3];
  i64 page_table_stride;  // pages of a row of the table
  i64 bias_strides[4];  // in elements: sequence, head, token, key
  i64 dense_strides[4];
  i64 alibi_stride;  // in elements, from one sequence to the next
  i64 document_strides[4];  // in elements, from one sequence to the next: queries and keys of each term
  i64 left;  // window: keys up to and including the query's own; -1: no limit
  i64 right;  // window: keys after it; -1: no limit
  i64 prefix;  // keys that everyone sees, the rest causally; -1: no such term
  i64 chunks[4];  // sizes of chunks; 0: no such term
  float scale;  // of the products: scale * scale_power
  float scale_power;  // a power of two; 1 unless no float holds the whole scale
  float softcap;  // softcap * softcap_power; 0: none
  float softcap_power;  // a power of two; 1 unless no float holds the whole soft-cap
  int causal;  // 1: keys after the query are hidden
  int batch;  // B
  int heads;  // H
  int kv_heads;  // K
  int group;  // G = H / K
  int queries;  // T
  int keys;  // S
  int head_dim;  // D
  int value_dim;  // E
  int page_size;  // slots of a page
  int splits;  // parts of the keys of flash_decode
  int query_type;  // element types, see ElementType; the output has the query's
  int key_type;
  int value_type;
  int bias_type;
  int stored_type;  // what decoded keys and values are rounded to: float, half or bfloat16
  int key_block;  // features that share a scale
  int value_block;
};

static_assert(sizeof(AttentionParams) == 584, "AttentionParams is laid out as NumPy does");

}  // namespace attn
