// cuda_cpu.hpp -- run CUDA C++ kernels on the host, from their own source. C++20, one kernel a library.
//
// The threads of a block are fibers of one thread of the operating system; a fiber runs until it synchronises. What the
// lanes of a warp do together (shuffles, ldmatrix, mma) is computed for all by the last one to arrive. In which order
// fibers run, and when asynchronous copies land, is chosen by the launch: a kernel that is right under all choices does
// not depend on a GPU's own.
//
// Not modelled: weakly ordered memory, lanes in lock-step, waiting for other blocks, the rounding inside tensor cores.
#pragma once
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#error "cuda_cpu.hpp is for host compilers"
#endif

#include "builtins.hpp"
#include "collectives.hpp"
#include "launch.hpp"
#include "shared_memory.hpp"
#include "tensor_cores.hpp"
