// types.hpp -- qualifiers, vector types and 16-bit floats of CUDA C++.
#pragma once
#include <stdint.h>

#include <bit>

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// __shared__ is missing on purpose: shared memory is taken from Smem, which knows its bounds and fills it with NaN.

struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x = 1, y = 1, z = 1; };
struct float3 { float x, y, z; };
struct alignas(8) float2 { float x, y; };
struct alignas(8) int2 { int x, y; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };

inline float2 make_float2(float x, float y) { return {x, y}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

namespace cuda_cpu {

// A half's exponent and mantissa, shifted into a float's place, are too small by 2^112, subnormal or not.
inline float half_to_float(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000u) << 16;
  const uint32_t magnitude = uint32_t(half & 0x7fffu) << 13;
  const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  return std::bit_cast<float>(sign | (magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : finite));
}

// To the nearest, ties to even; NaN becomes the one that the GPU gives.
inline uint16_t float_to_half(float number) {
  const uint32_t bits = std::bit_cast<uint32_t>(number), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fff;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00;        // rounds past the largest half
  if (magnitude < 0x38800000u) {                             // subnormal: the sum's last bit is worth 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u);
  }
  const uint32_t odd = (magnitude >> 13) & 1;
  return sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13);
}

inline float bfloat16_to_float(uint16_t bits) { return std::bit_cast<float>(uint32_t(bits) << 16); }

inline uint16_t float_to_bfloat16(float number) {
  const uint32_t bits = std::bit_cast<uint32_t>(number);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
}

}  // namespace cuda_cpu

struct __half { uint16_t x; };
struct __nv_bfloat16 { uint16_t x; };
inline __half __float2half_rn(float number) { return {cuda_cpu::float_to_half(number)}; }
inline float __half2float(__half number) { return cuda_cpu::half_to_float(number.x); }
inline __nv_bfloat16 __float2bfloat16_rn(float number) { return {cuda_cpu::float_to_bfloat16(number)}; }
inline float __bfloat162float(__nv_bfloat16 number) { return cuda_cpu::bfloat16_to_float(number.x); }
