// worker.hpp -- the state of a launch: Launch, the Worker that runs one block at a time, its Block, Warps and Fibers.
//
// The threads of a block are fibers of one thread of the operating system. A fiber finds itself by the address of its
// own stack: a worker is a piece of address space, aligned to its size, that begins with the Worker and ends with the
// stacks of its fibers.
#pragma once
#include <stddef.h>
#include <stdlib.h>

#include "sanitizers.hpp"
#include "switching.hpp"
#include "types.hpp"

namespace cuda_cpu {

enum Schedule : int32_t { GREEDY, RANDOM, PRIORITY };        // which fiber goes on at a synchronisation
enum Copies : int32_t { LAZY, EAGER, MIXED };                // asynchronous ones land at the wait, at once, or either

constexpr uint32_t LANES = 32, MAX_THREADS = 1024, MAX_WARPS = MAX_THREADS / LANES;
constexpr int MAX_WORKERS = 256;
constexpr size_t PAGE = 4096;                                // at the low end of each stack, without access
constexpr size_t STACK_BYTES = SANITIZED ? 512 << 10 : 128 << 10;
constexpr size_t WORKER_BYTES = 2 * MAX_THREADS * STACK_BYTES;

// Mirrored in library.py.
struct LaunchConfig {
  uint32_t grid[3], block[3], smem;
  int32_t schedule, copies, workers;
  uint64_t seed;
};

// Summed over blocks, but smem_bytes, the most that any took; mirrored in library.py.
struct Stats {
  uint64_t blocks, switches, barriers, collectives, mma, ldmatrix, ldmatrix_conflicts, cp_async, smem_bytes;
};

// An asynchronous copy that has not landed; source bytes past src_bytes are zero.
struct Copy {
  void* dst;
  const void* src;
  uint32_t bytes, src_bytes, group;
};

// Copies in the order of their issue; the first landed ones have.
struct CopyQueue {
  Copy* copies = nullptr;
  uint32_t landed = 0, issued = 0, room = 0;

  CUDA_CPU_UNTRACED void push(const Copy& copy) {
    if (issued == room) {
      room = room ? 2 * room : 16;
      copies = static_cast<Copy*>(realloc(copies, room * sizeof(Copy)));
    }
    copies[issued++] = copy;
  }
  CUDA_CPU_UNTRACED bool empty() const { return landed == issued; }
  CUDA_CPU_UNTRACED void clear() { landed = issued = 0; }
};

struct Block;

struct alignas(64) Fiber {
  Context context;
  uint3 thread{};
  uint32_t flat = 0, lane = 0, warp = 0;
  Block* block = nullptr;
  const char* wait_op = nullptr;                             // what it waits at
  uint32_t wait_line = 0;
  bool done = true;
  uint32_t smem_takes = 0, smem_bytes = 0;                   // of Smem so far
  uint32_t group = 0;                                        // of asynchronous copies, the one not yet committed
  CopyQueue copies;
  char* stack = nullptr;                                     // its low end
  void* fake_stack = nullptr;                                // of AddressSanitizer
  void* tsan = nullptr;
};

// An instruction that some lanes of a warp have arrived at.
struct Collective {
  uint32_t mask = 0, arrived = 0, line = 0;
  const char* op = nullptr;
  void* operands[LANES];
};

struct Warp {
  uint32_t ready = 0, alive = 0;                             // bit masks of lanes
  Collective collectives[4];
  char order[2] = {};                                        // tokens of release and acquire, in turn
  unsigned phase = 0;
};

struct Barrier {
  uint32_t arrived = 0, line = 0;
  uint32_t lanes[MAX_WARPS] = {};                            // who waits
  char order[2] = {};
  unsigned phase = 0;
};

struct Worker;

struct Block {
  uint3 index{};
  dim3 threads, grid;
  uint32_t num_threads = 0, num_warps = 0, exited = 0;
  uint32_t warps_ready = 0, current_warp = 0;
  uint8_t priority[MAX_WARPS];
  Warp warps[MAX_WARPS];
  Barrier barrier;
  Worker* worker = nullptr;
};

struct Launch {
  const LaunchConfig& config;
  void (*kernel)(void**);
  void** args;
  char* error;
  size_t error_bytes;
  uint64_t next_block = 0;                                   // this and failed are shared by workers: use __atomic_*
  bool failed = false;
};

constexpr uint32_t MAX_TILES = 16;
struct SharedPart { char* data; size_t bytes; };

struct Worker {
  Fiber fibers[MAX_THREADS];
  Block block;
  Launch* launch = nullptr;
  Context main;
  uint32_t guarded = 0;                                      // stacks that have their guard page
  char* smem = nullptr;
  size_t smem_room = 0;
  SharedPart parts[MAX_TILES] = {};                          // of shared memory, under AddressSanitizer
  const void* main_stack = nullptr;
  size_t main_stack_bytes = 0;
  void* main_fake_stack = nullptr;
  void* main_tsan = nullptr;
  uint64_t chance = 1;
  Stats stats{};

  CUDA_CPU_UNTRACED uint32_t random() {
    chance ^= chance << 13;
    chance ^= chance >> 7;
    chance ^= chance << 17;
    return uint32_t(chance >> 32);
  }
};
static_assert(sizeof(Worker) <= MAX_THREADS * STACK_BYTES, "a worker ends before its stacks");

__forceinline__ uintptr_t stack_pointer() {
#if defined(__x86_64__)
  uintptr_t sp;
  asm("movq %%rsp, %0" : "=r"(sp));                          // not volatile: a fiber keeps its stack
  return sp;
#elif defined(__aarch64__)
  uintptr_t sp;
  asm("mov %0, sp" : "=r"(sp));
  return sp;
#else
  return reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
#endif
}

// The fiber that runs. To be called on a fiber's stack.
__forceinline__ Fiber* current() {
  const uintptr_t sp = stack_pointer();
  Worker* worker = reinterpret_cast<Worker*>(sp & ~(WORKER_BYTES - 1));
  return &worker->fibers[sp / STACK_BYTES % MAX_THREADS];
}

}  // namespace cuda_cpu
