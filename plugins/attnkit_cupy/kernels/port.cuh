// port.cuh -- the only file that knows which compiler it is: NVRTC and nvcc, for which it has PTX, or a host's C++20
// compiler, for which cuda_cpu.hpp imitates the same instructions.
//
// Fragments are spread over the lanes of a warp as the PTX manual says; g = lane / 4, t = 2 (lane % 4).
#pragma once
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define ATTN_CPU 0
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define ATTN_UNROLL _Pragma("unroll")
#define ATTN_ROLLED _Pragma("unroll 1")
#define ATTN_ARCH (__CUDA_ARCH__ / 10)
#else
#define ATTN_CPU 1
#include "cuda_cpu.hpp"
#define ATTN_UNROLL
#define ATTN_ROLLED
#define ATTN_ARCH 0
#endif

namespace attn {

typedef unsigned int u32;
typedef unsigned short u16;
typedef long long i64;
typedef __half f16;
typedef __nv_bfloat16 bf16;

template <class T> struct is_bf16 { static constexpr bool value = false; };
template <> struct is_bf16<bf16> { static constexpr bool value = true; };

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(f16 x) { return __half2float(x); }
__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }

// To the nearest, ties to even.
template <class T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ f16 from_float<f16>(float x) { return __float2half_rn(x); }
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x) { return __float2bfloat16_rn(x); }

// NVRTC has neither INFINITY nor __builtin_huge_valf.
__device__ __forceinline__ float neg_inf() { return __int_as_float(0xff800000); }

#if !ATTN_CPU

// Takes tiles out of the dynamic shared memory, one after another; each begins at a multiple of 128 bytes.
struct Smem {
  u32 used = 0;
  template <class T> __device__ __forceinline__ T* take(int count) {
    extern __shared__ __align__(1024) unsigned char attn_smem[];
    T* tile = reinterpret_cast<T*>(attn_smem + used);
    used += (u32(count) * u32(sizeof(T)) + 127u) & ~127u;
    return tile;
  }
};

__device__ __forceinline__ u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

// Copy 16 bytes from global to shared memory, both at multiples of 16, without waiting. Unless wanted, they are zeros
// and the source is not read.
__device__ __forceinline__ void cp_async16(void* dst, const void* src, bool wanted) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n"
               :: "r"(shared_address(dst)), "l"(src), "r"(wanted ? 16u : 0u) : "memory");
#else
  *static_cast<uint4*>(dst) = wanted ? *static_cast<const uint4*>(src) : make_uint4(0, 0, 0, 0);
#endif
}

// End a group of this thread's copies.
__device__ __forceinline__ void cp_async_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;\n" ::: "memory");
#endif
}

// Wait until at most N groups of this thread's copies have not landed; a barrier then shows them to other threads.
template <int N> __device__ __forceinline__ void cp_async_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;\n" :: "n"(N) : "memory");
#endif
}

// Load four 8x8 matrices of 16-bit elements; lane 8 j + r gives the address of row r of matrix j. Register j holds of
// matrix j the elements (g, t) and (g, t + 1).
__device__ __forceinline__ void ldmatrix_x4(u32 (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}

// The same of the transposed matrices: elements (t, g) and (t + 1, g).
__device__ __forceinline__ void ldmatrix_x4_trans(u32 (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}

#define ATTN_MMA_16816(TYPE)                                                       \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 "      \
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"           \
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                    \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

#define ATTN_MMA_1688_F16(A0, A1, B)                                               \
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "                 \
               "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};\n"                    \
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(A0), "r"(A1), "r"(B))

// C += A B on tensor cores: A is 16x16, B 16x8, C 16x8 in float. Register i of A holds (g + 8 (i % 2), t + 8 (i / 2))
// and the next column, b0 and b1 (t, g) and (t + 8, g) and the next row, register i of C (g + 8 (i / 2), t + i % 2).
template <class T> __device__ __forceinline__ void mma_16816(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if __CUDA_ARCH__ >= 800
  if constexpr (is_bf16<T>::value) ATTN_MMA_16816("bf16");
  else ATTN_MMA_16816("f16");
#else
  if constexpr (is_bf16<T>::value) {
    __trap();                                                // needs sm_80: the host takes another kernel
  } else {
    ATTN_MMA_1688_F16(a[0], a[1], b0);
    ATTN_MMA_1688_F16(a[2], a[3], b1);
  }
#endif
}

// 2^x within 2 units in the last place; subnormal results are zero.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two 16-bit floats in a register, the first in its low half.
template <class T> __device__ __forceinline__ u32 pack2(float low, float high) {
  if constexpr (is_bf16<T>::value) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<u32*>(&pair);
  } else {
    __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<u32*>(&pair);
  }
}

#else  // the same on a CPU; what is a warp's joint work is told its line, by which divergence is reported

using Smem = cuda_cpu::Smem;

__forceinline__ void cp_async16(void* dst, const void* src, bool wanted) {
  cuda_cpu::cp_async(dst, src, 16, wanted ? 16 : 0);
}
__forceinline__ void cp_async_commit() { cuda_cpu::cp_async_commit(); }
template <int N> __forceinline__ void cp_async_wait() { cuda_cpu::cp_async_wait(N); }

__forceinline__ void ldmatrix_x4(u32 (&r)[4], const void* row, u32 line = __builtin_LINE()) {
  cuda_cpu::ldmatrix<4, false>(r, row, line);
}
__forceinline__ void ldmatrix_x4_trans(u32 (&r)[4], const void* row, u32 line = __builtin_LINE()) {
  cuda_cpu::ldmatrix<4, true>(r, row, line);
}
template <class T>
__forceinline__ void mma_16816(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, u32 line = __builtin_LINE()) {
  const u32 b[2] = {b0, b1};
  cuda_cpu::mma_m16n8k16<is_bf16<T>::value>(c, a, b, line);
}

__forceinline__ float exp2_fast(float x) {
  const float y = ::exp2f(x);
  return y < 0x1p-126f ? 0.f : y;
}
template <class T> __forceinline__ u32 pack2(float low, float high) {
  return from_float<T>(low).x | u32(from_float<T>(high).x) << 16;
}

#endif

}  // namespace attn
