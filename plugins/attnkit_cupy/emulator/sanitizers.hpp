// sanitizers.hpp -- which sanitizer this is built with, and what each must be told about threads that are fibers.
#pragma once

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CUDA_CPU_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define CUDA_CPU_TSAN 1
#endif
#endif

#if defined(__SANITIZE_ADDRESS__)
#define CUDA_CPU_ASAN 1
#endif
#if defined(__SANITIZE_THREAD__)
#define CUDA_CPU_TSAN 1
#endif

#if !defined(CUDA_CPU_ASAN)
#define CUDA_CPU_ASAN 0
#endif
#if !defined(CUDA_CPU_TSAN)
#define CUDA_CPU_TSAN 0
#endif

#if CUDA_CPU_ASAN
#include <pthread.h>
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// The emulator's own memory is shared by all fibers on purpose: only what kernels touch is to be checked for races.
#if CUDA_CPU_TSAN
#include <sanitizer/tsan_interface.h>
#define CUDA_CPU_UNTRACED __attribute__((no_sanitize("thread"), noinline))
#else
#define CUDA_CPU_UNTRACED
#endif

namespace cuda_cpu {

constexpr bool SANITIZED = CUDA_CPU_ASAN || CUDA_CPU_TSAN;

// What one thread did before release(token) happens before what another does after acquire(token).
CUDA_CPU_UNTRACED inline void release([[maybe_unused]] void* token) {
#if CUDA_CPU_TSAN
  __tsan_release(token);
#endif
}

CUDA_CPU_UNTRACED inline void acquire([[maybe_unused]] void* token) {
#if CUDA_CPU_TSAN
  __tsan_acquire(token);
#endif
}

}  // namespace cuda_cpu
