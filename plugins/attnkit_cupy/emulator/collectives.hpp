// collectives.hpp -- barriers, and what the lanes of a warp do together.
#pragma once
#include "schedule.hpp"

namespace cuda_cpu {

// __syncthreads: all threads of the block, at the same line.
CUDA_CPU_UNTRACED inline void sync_block(uint32_t line) {
  Fiber* me = current();
  Block& block = *me->block;
  Barrier& barrier = block.barrier;
  if (block.exited) fail("barrier divergence: __syncthreads line %u after %u threads exited", line, block.exited);
  if (barrier.arrived == 0) {
    barrier.line = line;
    for (uint32_t w = 0; w < block.num_warps; w++) barrier.lanes[w] = 0;
  } else if (barrier.line != line) {
    fail("barrier divergence: thread %u is at __syncthreads line %u while %u wait at line %u", me->flat, line,
         barrier.arrived, barrier.line);
  }
  void* order = &barrier.order[barrier.phase % 2];
  release(order);
  if (++barrier.arrived == block.num_threads) {
    barrier.arrived = 0;
    barrier.phase++;
    block.worker->stats.barriers++;
    for (uint32_t w = 0; w < block.num_warps; w++) make_ready(block, w, barrier.lanes[w]);
    yield();
  } else {
    barrier.lanes[me->warp] |= 1u << me->lane;
    wait_at("__syncthreads", line);
  }
  acquire(order);
}

// The instruction that lanes of this mask have arrived at, or a free place for it.
CUDA_CPU_UNTRACED inline Collective& collective_of(Warp& warp, uint32_t mask, const char* op, uint32_t line) {
  Collective* place = nullptr;
  for (Collective& other : warp.collectives) {
    if (!other.arrived) {
      place = &other;
      continue;
    }
    if (other.mask == mask) {
      if (other.op == op && other.line == line) return other;
      fail("warp divergence: lane %u is at %s line %u, other lanes at %s line %u", current()->lane, op, line, other.op,
           other.line);
    }
    if (other.mask & mask)
      fail("%s line %u: mask 0x%08x overlaps the mask 0x%08x of %s line %u", op, line, mask, other.mask, other.op,
           other.line);
  }
  if (!place) fail("%s line %u: too many instructions pending in one warp", op, line);
  place->mask = mask;
  place->op = op;
  place->line = line;
  return *place;
}

// Every lane of the mask hands in its operands; the last to arrive computes compute(operands of lanes, mask) for all.
template <bool ORDERS_MEMORY, class Compute>
CUDA_CPU_UNTRACED inline void collective(uint32_t mask, const char* op, uint32_t line, void* operands,
                                         Compute compute) {
  Fiber* me = current();
  Block& block = *me->block;
  Warp& warp = block.warps[me->warp];
  const uint32_t bit = 1u << me->lane;
  if (!(mask & bit)) fail("%s line %u: lane %u is not in its own mask 0x%08x", op, line, me->lane, mask);
  if (mask & ~warp.alive)
    fail("%s line %u: mask 0x%08x names lanes that exited or do not exist (0x%08x do)", op, line, mask, warp.alive);
  Collective& together = collective_of(warp, mask, op, line);
  void* order = &warp.order[warp.phase % 2];
  if (ORDERS_MEMORY) release(order);
  together.operands[me->lane] = operands;
  together.arrived |= bit;
  if (together.arrived == mask) {
    compute(together.operands, mask);
    together.arrived = 0;
    warp.phase++;
    block.worker->stats.collectives++;
    make_ready(block, me->warp, mask & ~bit);
    yield();
  } else {
    wait_at(op, line);
  }
  if (ORDERS_MEMORY) acquire(order);
}

template <class T> struct Shuffle { T in, out; int source; };

template <class T>
CUDA_CPU_UNTRACED inline T shuffle(uint32_t mask, T value, int source, const char* op, uint32_t line) {
  Shuffle<T> mine{value, value, source};
  collective<false>(mask, op, line, &mine, [=](void** lanes, uint32_t mask) CUDA_CPU_UNTRACED {
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      auto* its = static_cast<Shuffle<T>*>(lanes[lane]);
      if (!(mask >> its->source & 1))
        fail("%s line %u: lane %d reads lane %d, which is not in the mask", op, line, lane, its->source);
      its->out = static_cast<Shuffle<T>*>(lanes[its->source])->in;
    }
  });
  return mine.out;
}

CUDA_CPU_UNTRACED inline unsigned ballot(uint32_t mask, bool vote, uint32_t line) {
  struct Ballot { bool in; unsigned out; } mine{vote, 0};
  collective<false>(mask, "__ballot_sync", line, &mine, [](void** lanes, uint32_t mask) CUDA_CPU_UNTRACED {
    unsigned votes = 0;
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      votes |= unsigned(static_cast<Ballot*>(lanes[lane])->in) << lane;
    }
    for (uint32_t rest = mask; rest; rest &= rest - 1) static_cast<Ballot*>(lanes[std::countr_zero(rest)])->out = votes;
  });
  return mine.out;
}

}  // namespace cuda_cpu

inline void __syncthreads(uint32_t line = __builtin_LINE()) {
  cuda_cpu::sync_block(line);
}
inline void __syncwarp(unsigned mask = ~0u, uint32_t line = __builtin_LINE()) {
  cuda_cpu::collective<true>(mask, "__syncwarp", line, nullptr, [](void**, uint32_t) CUDA_CPU_UNTRACED {});
}

// A width below 32 cuts the warp into groups of so many lanes; a lane that would read outside its group reads itself.
template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, uint32_t line = __builtin_LINE()) {
  const int first = int(cuda_cpu::current()->lane) & ~(width - 1);
  return cuda_cpu::shuffle(mask, value, first | (source & (width - 1)), "__shfl_sync", line);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, uint32_t line = __builtin_LINE()) {
  const int lane = cuda_cpu::current()->lane, last = lane | (width - 1), source = lane ^ bits;
  return cuda_cpu::shuffle(mask, value, source > last ? lane : source, "__shfl_xor_sync", line);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, int delta, int width = 32, uint32_t line = __builtin_LINE()) {
  const int lane = cuda_cpu::current()->lane, last = lane | (width - 1);
  return cuda_cpu::shuffle(mask, value, lane + delta > last ? lane : lane + delta, "__shfl_down_sync", line);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, int delta, int width = 32, uint32_t line = __builtin_LINE()) {
  const int lane = cuda_cpu::current()->lane, first = lane & ~(width - 1);
  return cuda_cpu::shuffle(mask, value, lane - delta < first ? lane : lane - delta, "__shfl_up_sync", line);
}

inline unsigned __ballot_sync(unsigned mask, int vote, uint32_t line = __builtin_LINE()) {
  return cuda_cpu::ballot(mask, vote != 0, line);
}
inline int __any_sync(unsigned mask, int vote, uint32_t line = __builtin_LINE()) {
  return __ballot_sync(mask, vote, line) != 0;
}
inline int __all_sync(unsigned mask, int vote, uint32_t line = __builtin_LINE()) {
  return __ballot_sync(mask, vote, line) == mask;
}
