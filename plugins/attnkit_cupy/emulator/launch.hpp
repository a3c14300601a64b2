// launch.hpp -- run a grid: its blocks over workers, and the kernel's arguments by its signature.
#pragma once
#include <fenv.h>
#include <pthread.h>

#include <type_traits>
#include <utility>

#include "blocks.hpp"

namespace cuda_cpu {

// Run blocks while there are any; unless greedy, from the seed's block backwards.
CUDA_CPU_UNTRACED inline void work(Worker& worker, Launch& launch) {
  fenv_t environment;                                        // the caller may flush subnormal numbers, kernels do not
  fegetenv(&environment);
  fesetenv(FE_DFL_ENV);
  join_launch(worker, launch);
  const LaunchConfig& config = launch.config;
  const uint64_t blocks = uint64_t(config.grid[0]) * config.grid[1] * config.grid[2];
  const bool backwards = config.schedule != GREEDY;
  while (!__atomic_load_n(&launch.failed, __ATOMIC_RELAXED)) {
    const uint64_t k = __atomic_fetch_add(&launch.next_block, 1, __ATOMIC_RELAXED);
    if (k >= blocks) break;
    run_block(worker, backwards ? (config.seed % blocks + blocks - 1 - k) % blocks : k);
  }
  fesetenv(&environment);
}

inline void* work_in_thread(void* worker) {
  work(*static_cast<Worker*>(worker), *static_cast<Worker*>(worker)->launch);
  return nullptr;
}

// Run all blocks; the calling thread is the first worker's.
inline void run_grid(Worker** workers, Launch& launch) {
  const int count = launch.config.workers;
  pthread_t threads[MAX_WORKERS];
  bool started[MAX_WORKERS] = {};
  for (int i = 1; i < count; i++) {
    workers[i]->launch = &launch;
    started[i] = pthread_create(&threads[i], nullptr, &work_in_thread, workers[i]) == 0;
  }
  work(*workers[0], launch);
  for (int i = 1; i < count; i++)
    if (started[i]) pthread_join(threads[i], nullptr);
}

inline Stats sum_of_stats(Worker** workers, int count) {
  Stats sum = workers[0]->stats;
  for (int i = 1; i < count; i++) {
    const Stats its = workers[i]->stats;
    const uint64_t most = sum.smem_bytes > its.smem_bytes ? sum.smem_bytes : its.smem_bytes;
    for (size_t k = 0; k < sizeof(Stats) / sizeof(uint64_t); k++)
      reinterpret_cast<uint64_t*>(&sum)[k] += reinterpret_cast<const uint64_t*>(&its)[k];
    sum.smem_bytes = most;
  }
  return sum;
}

// What a kernel's parameters are: 'p'ointer, 'i'nteger, 'f'loat or 's'truct, and their sizes; mirrored in library.py.
struct KernelDesc {
  void (*call)(void**);
  uint32_t count;
  const uint32_t* sizes;
  const char* kinds;
  uint64_t worker_bytes;                                     // which libraries may share workers
};

template <class T> constexpr char kind_of() {
  return std::is_pointer_v<T>                         ? 'p'
         : std::is_floating_point_v<T>                ? 'f'
         : std::is_integral_v<T> || std::is_enum_v<T> ? 'i'
                                                      : 's';
}

constexpr size_t ARGUMENT_BYTES = 4096;                      // as many as a launch on a GPU may have
constexpr size_t argument_room(size_t bytes) { return (bytes + 15) & ~size_t(15); }

template <auto F> struct Kernel;
template <class... A, void (*F)(A...)> struct Kernel<F> {
  static_assert((argument_room(sizeof(A)) + ... + 0) <= ARGUMENT_BYTES, "too many bytes of arguments");
  static constexpr uint32_t sizes[] = {sizeof(A)..., 0};
  static constexpr char kinds[] = {kind_of<A>()..., 0};

  template <size_t... I> static void call_with(void** args, std::index_sequence<I...>) {
    F(*static_cast<std::remove_cv_t<A>*>(args[I])...);
  }
  static void call(void** args) { call_with(args, std::index_sequence_for<A...>{}); }
  static constexpr KernelDesc desc() { return {&call, sizeof...(A), sizes, kinds, sizeof(Worker)}; }
};

// Arguments lie one after another, each at a multiple of 16; 0: all blocks ran, else error says what is wrong.
inline int launch(const KernelDesc& kernel, const LaunchConfig& config, const char* packed, Worker** workers,
                  char* error, size_t error_bytes, Stats* stats) {
  alignas(64) char bytes[ARGUMENT_BYTES];
  void* args[ARGUMENT_BYTES / 16];
  size_t used = 0;
  for (uint32_t i = 0; i < kernel.count; i++) {
    args[i] = bytes + used;
    used += argument_room(kernel.sizes[i]);
  }
  memcpy(bytes, packed, used);
  Launch launch{config, kernel.call, args, error, error_bytes};
  for (int i = 0; i < config.workers; i++) workers[i]->stats = {};
  run_grid(workers, launch);
  *stats = sum_of_stats(workers, config.workers);
  return launch.failed;
}

}  // namespace cuda_cpu
