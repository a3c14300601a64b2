// shared_memory.hpp -- dynamic shared memory, and the asynchronous copies into it.
#pragma once
#include <string.h>

#include "schedule.hpp"

namespace cuda_cpu {

constexpr size_t TILE_ALIGNMENT = 128;
constexpr int UNWRITTEN = 0xff;                              // every byte: NaN as float, half and bfloat16

// Under AddressSanitizer each tile is an allocation of its own, so that reads past its end are seen.
CUDA_CPU_UNTRACED inline char* part_of(Worker& worker, uint32_t index, size_t bytes) {
  if (index == MAX_TILES) fail("more than %u tiles of shared memory", MAX_TILES);
  SharedPart& part = worker.parts[index];
  if (part.bytes != bytes || !part.data) {
    free(part.data);
    part = {static_cast<char*>(aligned_alloc(1024, (bytes + 1023) & ~size_t(1023))), bytes};
    memset(part.data, UNWRITTEN, bytes);
#if CUDA_CPU_ASAN
    __asan_poison_memory_region(part.data + bytes, ((bytes + 1023) & ~size_t(1023)) - bytes);
#endif
  }
  return part.data;
}

// Tiles of the block's dynamic shared memory; every thread makes the same calls.
struct Smem {
  template <class T>
  CUDA_CPU_UNTRACED T* take(int count, uint32_t line = __builtin_LINE()) {
    Fiber* me = current();
    Worker& worker = *me->block->worker;
    const uint32_t room = worker.launch->config.smem, first = me->smem_bytes;
    const size_t bytes = sizeof(T) * size_t(count);
    me->smem_bytes += (bytes + TILE_ALIGNMENT - 1) & ~(TILE_ALIGNMENT - 1);
    if (me->smem_bytes > room)
      fail("line %u takes up to byte %u of shared memory, the launch gave %u", line, me->smem_bytes, room);
    if (me->smem_bytes > worker.stats.smem_bytes) worker.stats.smem_bytes = me->smem_bytes;
    if (CUDA_CPU_ASAN) return reinterpret_cast<T*>(part_of(worker, me->smem_takes++, bytes));
    return reinterpret_cast<T*>(worker.smem + first);
  }
};

// Shared memory as a new block finds it.
CUDA_CPU_UNTRACED inline void forget_shared_memory(Worker& worker) {
  if (CUDA_CPU_ASAN) {
    for (SharedPart& part : worker.parts)
      if (part.data) memset(part.data, UNWRITTEN, part.bytes);
  } else {
    memset(worker.smem, UNWRITTEN, worker.launch->config.smem);
  }
}

// Note a copy; true: it lands at once.
CUDA_CPU_UNTRACED inline bool issue(const Copy& copy) {
  Fiber* me = current();
  Worker& worker = *me->block->worker;
  worker.stats.cp_async++;
  const auto misaligned = [&](const void* p) { return reinterpret_cast<uintptr_t>(p) % copy.bytes != 0; };
  if (misaligned(copy.dst) || (copy.src_bytes && misaligned(copy.src)))
    fail("cp.async of %u bytes: misaligned address (to %p, from %p)", copy.bytes, copy.dst, copy.src);
  const int when = worker.launch->config.copies;
  if (when == EAGER || (when == MIXED && worker.random() % 2)) return true;
  me->copies.push({copy.dst, copy.src, copy.bytes, copy.src_bytes, me->group});
  return false;
}

// Take the oldest copy that must have landed when all but the last groups have; false: there is none.
CUDA_CPU_UNTRACED inline bool take_due(uint32_t groups, Copy& copy) {
  Fiber* me = current();
  CopyQueue& queue = me->copies;
  if (queue.empty()) {
    queue.clear();
    return false;
  }
  copy = queue.copies[queue.landed];
  if (copy.group + groups >= me->group) return false;
  queue.landed++;
  return true;
}

// Inlined, so that sanitizers name the kernel's line; plain loads and stores, since GCC leaves a memcpy unchecked.
__forceinline__ void land(const Copy& copy) {
  for (uint32_t i = 0; i < copy.bytes / 4; i++)
    static_cast<uint32_t*>(copy.dst)[i] = 4 * i < copy.src_bytes ? static_cast<const uint32_t*>(copy.src)[i] : 0u;
}

// cp.async: the first src_bytes of bytes are copied, the rest is zero.
__forceinline__ void cp_async(void* dst, const void* src, uint32_t bytes, uint32_t src_bytes) {
#if CUDA_CPU_ASAN
  if (src_bytes) {                                           // report a bad address here, not where it is waited for
    const volatile char* source = static_cast<const volatile char*>(src);
    (void)source[0];
    (void)source[src_bytes - 1];
  }
#endif
  const Copy copy{dst, src, bytes, src_bytes, 0};
  if (issue(copy)) land(copy);
}

CUDA_CPU_UNTRACED inline void cp_async_commit() { current()->group++; }

// cp.async.wait_group: all but the last groups of this thread have landed.
__forceinline__ void cp_async_wait(uint32_t groups) {
  Copy copy;
  while (take_due(groups, copy)) land(copy);
}

}  // namespace cuda_cpu
