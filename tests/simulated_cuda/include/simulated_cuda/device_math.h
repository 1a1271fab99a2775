// Functions that nvcc knows without any header: fast mathematics, bit tricks, cached loads and stores.
// The fast variants are computed exactly here, so a test that passes does not show that their error is tolerable on a GPU.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>

// ---- Mathematics ----

inline float rsqrtf(float x) {
  return 1.0f / std::sqrt(x);
}
inline double rsqrt(double x) {
  return 1.0 / std::sqrt(x);
}
inline float __expf(float x) {
  return std::exp(x);
}
inline float __logf(float x) {
  return std::log(x);
}
inline float __log2f(float x) {
  return std::log2(x);
}
inline float __sinf(float x) {
  return std::sin(x);
}
inline float __cosf(float x) {
  return std::cos(x);
}
inline float __powf(float x, float y) {
  return std::pow(x, y);
}
inline float __tanhf(float x) {
  return std::tanh(x);
}
inline float __fdividef(float x, float y) {
  return x / y;
}
inline float __fdiv_rn(float x, float y) {
  return x / y;
}
inline float __frcp_rn(float x) {
  return 1.0f / x;
}
inline float __fsqrt_rn(float x) {
  return std::sqrt(x);
}
inline float __frsqrt_rn(float x) {
  return 1.0f / std::sqrt(x);
}
inline float __fadd_rn(float x, float y) {
  return x + y;
}
inline float __fsub_rn(float x, float y) {
  return x - y;
}
inline float __fmul_rn(float x, float y) {
  return x * y;
}
inline float __fmaf_rn(float x, float y, float z) {
  return std::fma(x, y, z);
}
inline double __dadd_rn(double x, double y) {
  return x + y;
}
inline double __dmul_rn(double x, double y) {
  return x * y;
}
inline double __fma_rn(double x, double y, double z) {
  return std::fma(x, y, z);
}
inline float __saturatef(float x) {
  return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f;
}

// The overloads of CUDA: mixed signs compare as unsigned.
#define SIMULATED_CUDA_MIN_MAX(RESULT, FIRST, SECOND)                                                         \
  inline constexpr RESULT min(FIRST a, SECOND b) {                                                            \
    return static_cast<RESULT>(a) < static_cast<RESULT>(b) ? static_cast<RESULT>(a) : static_cast<RESULT>(b); \
  }                                                                                                           \
  inline constexpr RESULT max(FIRST a, SECOND b) {                                                            \
    return static_cast<RESULT>(a) < static_cast<RESULT>(b) ? static_cast<RESULT>(b) : static_cast<RESULT>(a); \
  }
SIMULATED_CUDA_MIN_MAX(int, int, int)
SIMULATED_CUDA_MIN_MAX(unsigned, unsigned, unsigned)
SIMULATED_CUDA_MIN_MAX(unsigned, int, unsigned)
SIMULATED_CUDA_MIN_MAX(unsigned, unsigned, int)
SIMULATED_CUDA_MIN_MAX(long, long, long)
SIMULATED_CUDA_MIN_MAX(unsigned long, unsigned long, unsigned long)
SIMULATED_CUDA_MIN_MAX(unsigned long, long, unsigned long)
SIMULATED_CUDA_MIN_MAX(unsigned long, unsigned long, long)
SIMULATED_CUDA_MIN_MAX(long long, long long, long long)
SIMULATED_CUDA_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
SIMULATED_CUDA_MIN_MAX(unsigned long long, long long, unsigned long long)
SIMULATED_CUDA_MIN_MAX(unsigned long long, unsigned long long, long long)
#undef SIMULATED_CUDA_MIN_MAX
inline float min(float a, float b) {
  return std::fmin(a, b);
}
inline float max(float a, float b) {
  return std::fmax(a, b);
}
inline double min(double a, double b) {
  return std::fmin(a, b);
}
inline double max(double a, double b) {
  return std::fmax(a, b);
}
inline double min(float a, double b) {
  return std::fmin(static_cast<double>(a), b);
}
inline double max(float a, double b) {
  return std::fmax(static_cast<double>(a), b);
}
inline double min(double a, float b) {
  return std::fmin(a, static_cast<double>(b));
}
inline double max(double a, float b) {
  return std::fmax(a, static_cast<double>(b));
}

// ---- Bits and conversions ----

inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}
inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
inline float __int_as_float(int x) {
  return std::bit_cast<float>(x);
}
inline int __float_as_int(float x) {
  return std::bit_cast<int>(x);
}
inline double __longlong_as_double(long long x) {
  return std::bit_cast<double>(x);
}
inline long long __double_as_longlong(double x) {
  return std::bit_cast<long long>(x);
}
inline int __float2int_rn(float x) {
  return static_cast<int>(std::nearbyint(x));
}
inline int __float2int_rz(float x) {
  return static_cast<int>(x);
}
inline int __float2int_rd(float x) {
  return static_cast<int>(std::floor(x));
}
inline int __float2int_ru(float x) {
  return static_cast<int>(std::ceil(x));
}
inline unsigned __float2uint_rn(float x) {
  return static_cast<unsigned>(std::nearbyint(x));
}
inline unsigned __float2uint_rz(float x) {
  return static_cast<unsigned>(x);
}
inline float __int2float_rn(int x) {
  return static_cast<float>(x);
}
inline float __uint2float_rn(unsigned x) {
  return static_cast<float>(x);
}
inline float __double2float_rn(double x) {
  return static_cast<float>(x);
}
inline int __popc(unsigned x) {
  return std::popcount(x);
}
inline int __popcll(unsigned long long x) {
  return std::popcount(x);
}
inline int __clz(int x) {
  return std::countl_zero(static_cast<unsigned>(x));
}
inline int __clzll(long long x) {
  return std::countl_zero(static_cast<unsigned long long>(x));
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline int __ffsll(long long x) {
  return __builtin_ffsll(x);
}
inline int __mulhi(int x, int y) {
  return static_cast<int>(static_cast<long long>(x) * y >> 32);
}
inline unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>(static_cast<unsigned long long>(x) * y >> 32);
}
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<unsigned long long>(static_cast<Wide>(x) * y >> 64);
}
inline unsigned __brev(unsigned x) {
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) result |= (x >> i & 1u) << (31 - i);
  return result;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const unsigned long long both = static_cast<unsigned long long>(y) << 32 | x;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; ++i) result |= static_cast<unsigned>(both >> (selector >> 4 * i & 7u) * 8 & 0xff) << 8 * i;
  return result;
}

// ---- Loads and stores with cache hints ----

#define SIMULATED_CUDA_LOAD(NAME)   \
  template <class T>                \
  inline T NAME(const T* address) { \
    return *address;                \
  }
#define SIMULATED_CUDA_STORE(NAME)        \
  template <class T>                      \
  inline void NAME(T* address, T value) { \
    *address = value;                     \
  }
SIMULATED_CUDA_LOAD(__ldg)
SIMULATED_CUDA_LOAD(__ldca)
SIMULATED_CUDA_LOAD(__ldcg)
SIMULATED_CUDA_LOAD(__ldcs)
SIMULATED_CUDA_LOAD(__ldlu)
SIMULATED_CUDA_LOAD(__ldcv)
SIMULATED_CUDA_STORE(__stwb)
SIMULATED_CUDA_STORE(__stcg)
SIMULATED_CUDA_STORE(__stcs)
SIMULATED_CUDA_STORE(__stwt)
#undef SIMULATED_CUDA_LOAD
#undef SIMULATED_CUDA_STORE

// ---- The rest ----

[[noreturn]] inline void __trap() {
  std::abort();
}
inline void __nanosleep(unsigned) {}
