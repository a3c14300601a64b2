// blocks.hpp -- workers, their address space, and the blocks that they run one after another.
#pragma once
#include <pthread.h>
#include <sys/mman.h>

#include <new>
#include <utility>

#include "shared_memory.hpp"

namespace cuda_cpu {

// A fiber's whole life.
CUDA_CPU_UNTRACED inline void run_fiber() {
#if CUDA_CPU_ASAN
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
  Fiber* me = current();
  Block& block = *me->block;
  Launch& launch = *block.worker->launch;
  launch.kernel(launch.args);
  const uint32_t pending = me->copies.issued - me->copies.landed;
  if (pending) fail("a thread exits with %u asynchronous copies that it did not wait for", pending);
  if (block.barrier.arrived)
    fail("barrier divergence: thread %u exits while %u wait at __syncthreads line %u", me->flat, block.barrier.arrived,
         block.barrier.line);
  block.exited++;
  block.warps[me->warp].alive &= ~(1u << me->lane);
  Fiber* next = take_ready(block);
  if (!next && block.exited < block.num_threads) deadlock(block);
  me->done = true;
  switch_to(block.worker, me, next);
  abort();                                                   // nobody comes back here
}

CUDA_CPU_UNTRACED inline char* stack_of(Worker& worker, uint32_t index) {
  return reinterpret_cast<char*>(&worker) + (MAX_THREADS + index) * STACK_BYTES;
}

CUDA_CPU_UNTRACED inline void start_fiber(Worker& worker, uint32_t index) {
  Fiber& fiber = worker.fibers[index];
#if CUDA_CPU_ASAN
  if (!fiber.done) __asan_unpoison_memory_region(fiber.stack, STACK_BYTES - PAGE);  // it was left amid a kernel
#endif
  fiber.done = false;
  fiber.wait_op = nullptr;
  fiber.smem_takes = fiber.smem_bytes = fiber.group = 0;
  fiber.copies.clear();
  const size_t apart = 64 + index % 61 * 192;                // the busy ends of the stacks, over different cache sets
  start_context(fiber.context, fiber.stack, fiber.stack + STACK_BYTES - PAGE - apart, &run_fiber);
#if CUDA_CPU_TSAN
  if (!fiber.tsan) fiber.tsan = __tsan_create_fiber(0);      // dear, so that they are kept
  __tsan_switch_to_fiber(fiber.tsan, 0);                     // a block happens after the launch, and after those before
  __tsan_switch_to_fiber(worker.main_tsan, __tsan_switch_to_fiber_no_sync);
#endif
}

// What the threads of a block did happens before the launch ends.
CUDA_CPU_UNTRACED inline void end_fiber([[maybe_unused]] Worker& worker, [[maybe_unused]] uint32_t index) {
#if CUDA_CPU_TSAN
  Fiber& fiber = worker.fibers[index];
  __tsan_switch_to_fiber(fiber.tsan, __tsan_switch_to_fiber_no_sync);
  __tsan_switch_to_fiber(worker.main_tsan, 0);
#endif
}

CUDA_CPU_UNTRACED inline void shuffle_priorities(Worker& worker) {
  Block& block = worker.block;
  for (uint32_t w = 0; w < block.num_warps; w++) block.priority[w] = uint8_t(w);
  for (uint32_t w = block.num_warps; w > 1; w--) std::swap(block.priority[w - 1], block.priority[worker.random() % w]);
}

CUDA_CPU_UNTRACED inline void run_block(Worker& worker, uint64_t index) {
  Block& block = worker.block;
  const LaunchConfig& config = worker.launch->config;
  block.index.x = uint32_t(index % config.grid[0]);
  block.index.y = uint32_t(index / config.grid[0] % config.grid[1]);
  block.index.z = uint32_t(index / config.grid[0] / config.grid[1]);
  worker.chance = ((config.seed + 1) * 0x9e3779b97f4a7c15ull ^ (index + 1) * 0xbf58476d1ce4e5b9ull) | 1;
  for (int i = 0; i < 4; i++) worker.random();
  block.exited = block.warps_ready = block.current_warp = block.barrier.arrived = 0;
  for (uint32_t w = 0; w < block.num_warps; w++) {
    const uint32_t lanes = block.num_threads - LANES * w, mask = lanes < LANES ? (1u << lanes) - 1 : ~0u;
    block.warps[w].ready = 0;
    block.warps[w].alive = mask;
    for (Collective& pending : block.warps[w].collectives) pending.arrived = 0;
    make_ready(block, w, mask);
  }
  shuffle_priorities(worker);
  forget_shared_memory(worker);
  for (uint32_t i = 0; i < block.num_threads; i++) start_fiber(worker, i);
  switch_to(&worker, nullptr, take_ready(block));
  for (uint32_t i = 0; i < block.num_threads; i++) end_fiber(worker, i);
  worker.stats.blocks++;
}

// A worker's address space; what is never touched takes no memory. Null: there is none left.
inline Worker* new_worker() {
  const auto map = [](size_t bytes) {
    return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  };
  void* space = map(2 * WORKER_BYTES);                       // of which one part is aligned
  if (space == MAP_FAILED) return nullptr;
  char* first = static_cast<char*>(space);
  char* aligned = first + (-reinterpret_cast<uintptr_t>(first) & (WORKER_BYTES - 1));
  if (aligned != first) munmap(first, aligned - first);
  if (const size_t rest = first + WORKER_BYTES - aligned) munmap(aligned + WORKER_BYTES, rest);
  return new (aligned) Worker;
}

CUDA_CPU_UNTRACED inline void place_fibers(Worker& worker) {
  Block& block = worker.block;
  const uint32_t wide = block.threads.x, high = block.threads.y;
  for (uint32_t i = 0; i < block.num_threads; i++) {
    Fiber& fiber = worker.fibers[i];
    fiber.thread = {i % wide, i / wide % high, i / wide / high};
    fiber.flat = i;
    fiber.lane = i % LANES;
    fiber.warp = i / LANES;
    fiber.block = &block;
    fiber.stack = stack_of(worker, i) + PAGE;
  }
  for (; worker.guarded < block.num_threads; worker.guarded++)
    mprotect(stack_of(worker, worker.guarded), PAGE, PROT_NONE);
}

CUDA_CPU_UNTRACED inline void join_launch(Worker& worker, Launch& launch) {
  const LaunchConfig& config = launch.config;
  Block& block = worker.block;
  worker.launch = &launch;
  block.worker = &worker;
  block.threads = {config.block[0], config.block[1], config.block[2]};
  block.grid = {config.grid[0], config.grid[1], config.grid[2]};
  block.num_threads = config.block[0] * config.block[1] * config.block[2];
  block.num_warps = (block.num_threads + LANES - 1) / LANES;
  place_fibers(worker);
  if (!worker.smem || worker.smem_room < config.smem) {
    free(worker.smem);
    worker.smem_room = (config.smem / 1024 + 1) * 1024;
    worker.smem = static_cast<char*>(aligned_alloc(1024, worker.smem_room));
  }
#if CUDA_CPU_TSAN
  worker.main_tsan = __tsan_get_current_fiber();
#endif
#if CUDA_CPU_ASAN
  pthread_attr_t attributes;
  void* stack;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &stack, &worker.main_stack_bytes);
  pthread_attr_destroy(&attributes);
  worker.main_stack = stack;
#endif
}

}  // namespace cuda_cpu
