// schedule.hpp -- which fiber goes on, and what is said when none can.
#pragma once
#include <stdarg.h>
#include <stdio.h>

#include <bit>

#include "worker.hpp"

namespace cuda_cpu {

// Leave one fiber for another; null is the worker itself.
CUDA_CPU_UNTRACED inline void switch_to(Worker* worker, Fiber* from, Fiber* to) {
#if CUDA_CPU_ASAN
  void** fake = from ? (from->done ? nullptr : &from->fake_stack) : &worker->main_fake_stack;
  if (to) __sanitizer_start_switch_fiber(fake, to->stack, STACK_BYTES - PAGE);
  else __sanitizer_start_switch_fiber(fake, worker->main_stack, worker->main_stack_bytes);
#endif
  worker->stats.switches++;
#if CUDA_CPU_TSAN
  __tsan_switch_to_fiber(to ? to->tsan : worker->main_tsan, __tsan_switch_to_fiber_no_sync);
#endif
  switch_context(from ? from->context : worker->main, to ? to->context : worker->main);
#if CUDA_CPU_ASAN
  __sanitizer_finish_switch_fiber(from ? from->fake_stack : worker->main_fake_stack, nullptr, nullptr);
#endif
}

// End the launch with a message; the first one counts.
[[noreturn]] CUDA_CPU_UNTRACED inline __attribute__((format(printf, 1, 2))) void fail(const char* format, ...) {
  Fiber* me = current();
  Block& block = *me->block;
  Launch& launch = *block.worker->launch;
  char message[512];
  va_list values;
  va_start(values, format);
  vsnprintf(message, sizeof message, format, values);
  va_end(values);
  if (!__atomic_exchange_n(&launch.failed, true, __ATOMIC_SEQ_CST))
    snprintf(launch.error, launch.error_bytes, "%s [block (%u, %u, %u), thread (%u, %u, %u)]", message, block.index.x,
             block.index.y, block.index.z, me->thread.x, me->thread.y, me->thread.z);
  switch_to(block.worker, me, nullptr);
  abort();                                                   // nobody comes back here
}

CUDA_CPU_UNTRACED inline void make_ready(Block& block, uint32_t warp, uint32_t lanes) {
  if (!lanes) return;
  block.warps[warp].ready |= lanes;
  block.warps_ready |= 1u << warp;
}

// One of the bits that are set: the first at or above the chosen one, cyclically.
CUDA_CPU_UNTRACED inline uint32_t bit_from(uint32_t bits, uint32_t chosen) {
  return (std::countr_zero(std::rotr(bits, int(chosen % 32))) + chosen) % 32;
}

CUDA_CPU_UNTRACED inline uint32_t first_by_priority(const Block& block) {
  uint32_t k = 0;
  while (!(block.warps_ready >> block.priority[k] & 1)) k++;
  return block.priority[k];
}

// Take a fiber that can go on, as the schedule says; null where there is none.
CUDA_CPU_UNTRACED inline Fiber* take_ready(Block& block) {
  if (!block.warps_ready) return nullptr;
  Worker& worker = *block.worker;
  const int schedule = worker.launch->config.schedule;
  const uint32_t w = schedule == GREEDY   ? bit_from(block.warps_ready, block.current_warp)
                     : schedule == RANDOM ? bit_from(block.warps_ready, worker.random())
                                          : first_by_priority(block);
  Warp& warp = block.warps[w];
  const uint32_t lane = schedule == GREEDY ? std::countr_zero(warp.ready) : bit_from(warp.ready, worker.random());
  warp.ready &= ~(1u << lane);
  if (!warp.ready) block.warps_ready &= ~(1u << w);
  block.current_warp = w;
  return &worker.fibers[w * LANES + lane];
}

CUDA_CPU_UNTRACED inline bool waits_like(const Fiber& one, const Fiber& other) {
  return !one.done && one.wait_op == other.wait_op && one.wait_line == other.wait_line;
}

// Nobody can go on: say who waits where.
[[noreturn]] CUDA_CPU_UNTRACED inline void deadlock(Block& block) {
  char text[400];
  size_t length = snprintf(text, sizeof text, "deadlock (%u of %u threads exited)", block.exited, block.num_threads);
  const Fiber* fibers = block.worker->fibers;
  for (uint32_t i = 0; i < block.num_threads && length < sizeof text; i++) {
    if (fibers[i].done || !fibers[i].wait_op) continue;
    uint32_t before = 0, count = 0;
    for (uint32_t j = 0; j < block.num_threads; j++) {
      before += j < i && waits_like(fibers[j], fibers[i]);
      count += waits_like(fibers[j], fibers[i]);
    }
    if (before) continue;
    length += snprintf(text + length, sizeof text - length, "; %u wait at %s line %u, thread %u first", count,
                       fibers[i].wait_op, fibers[i].wait_line, i);
  }
  fail("%s", text);
}

// The running fiber waits at an operation; another goes on.
CUDA_CPU_UNTRACED inline void wait_at(const char* op, uint32_t line) {
  Fiber* me = current();
  Block& block = *me->block;
  me->wait_op = op;
  me->wait_line = line;
  Fiber* next = take_ready(block);
  if (!next) deadlock(block);
  switch_to(block.worker, me, next);
  me->wait_op = nullptr;
}

// The running fiber could go on, but who does is for the schedule to say.
CUDA_CPU_UNTRACED inline void yield() {
  Fiber* me = current();
  Block& block = *me->block;
  if (block.worker->launch->config.schedule == GREEDY) return;
  make_ready(block, me->warp, 1u << me->lane);
  Fiber* next = take_ready(block);
  if (next != me) switch_to(block.worker, me, next);
}

}  // namespace cuda_cpu
