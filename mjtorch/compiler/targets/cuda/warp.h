// A world per warp, or per part of one: LANES lanes compute it together, each its share of the elements.
//
// What the program computes with is that of vector.h, for vectors of one. A build for the host, which tests the printed
// text without a GPU, comes with its own meaning of what is defined in the first part here.
#ifndef HOST
typedef long long int64_t;
typedef int int32_t;
typedef unsigned char uint8_t;
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#endif
#define INLINE static __device__ __forceinline__
#define FUNCTION static __device__ __noinline__
#define CONSTANT static __device__ const
#define UNROLL _Pragma("unroll")
#define LANE_ID ((int)(threadIdx.x % LANES))
// The lanes of this world among those of the warp.
#define MEMBERS (LANES == 32 ? 0xffffffffu : ((1u << (LANES % 32)) - 1) << (threadIdx.x % 32 / LANES * LANES))
#define SYNC __syncwarp(MEMBERS)
#define SHUFFLE(x, distance) __shfl_xor_sync(MEMBERS, x, distance, LANES)
#define BALLOT(f) (__ballot_sync(MEMBERS, f) >> (threadIdx.x % 32 / LANES * LANES))
#define COUNT(m) __popc(m)
extern __shared__ __align__(16) char pool[];
// A pointer to global memory: that it is not to shared memory spares reading that again after each store.
template <class T>
static __device__ __forceinline__ T* global(T* p) {
  __builtin_assume(__isGlobal(p));
  return p;
}
#define SHARED(w) (pool + (w).place * SHARED_BYTES)
#define __builtin_fabsf fabsf
#define __builtin_fabs fabs
#define __builtin_sqrtf sqrtf
#define __builtin_sqrt sqrt
#ifndef __has_builtin
#define __has_builtin(x) 0
#endif
#endif

#define N 1
#define ROUND(x) (((x) + 15) / 16 * 16)
#define MASK int32_t
#define MASK_BYTES 4
#define REGISTER 16

// An input or output tensor: element i of world b is data[i + b * world].
struct Array {
  void* data;
  int64_t element, world;
};
// The world that is computed, where among those of its block, and its global memory.
struct Worlds {
  int64_t first, count;
  int place;
  char* far;
};

#include "vector.h"

// What all worlds have in common.
struct Uniform {
  vf* F;
  vd* D;
  vi* I;
  vb* B;
};
#define COMMON(memory)                                                                   \
  {(vf*)((memory) + AT_F_UNIFORM), (vd*)((memory) + AT_D_UNIFORM), (vi*)((memory) + AT_I_UNIFORM), (vb*)((memory) + AT_B_UNIFORM)}
// The elements of a world lie beside each other.
#define ARGS Array const *__restrict__ in, Array const *__restrict__ out, Worlds w, Uniform u
#define PASS in, out, w, u
#define GIVEN(type, k, i) (global((type const*)in[k].data)[(i) + w.first * in[k].world])
#define PUT(type, k, i) global((type*)out[k].data)[(i) + w.first * out[k].world]
#define MEMORY                                                                           \
  char *own = SHARED(w), *away = global(w.far);                                                 \
  vf *F = (vf*)(own + AT_F), *Ffar = (vf*)(away + AT_F_FAR);                             \
  vd *D = (vd*)(own + AT_D), *Dfar = (vd*)(away + AT_D_FAR);                             \
  vi *I = (vi*)(own + AT_I), *Ifar = (vi*)(away + AT_I_FAR);                             \
  vb *B = (vb*)(own + AT_B), *Bfar = (vb*)(away + AT_B_FAR);                             \
  unsigned short* LISTS = (unsigned short*)(own + AT_LISTS)
#define UNIFORM_MEMORY                                                                      \
  vf* F = global(u.F);                                                                   \
  vd* D = global(u.D);                                                                   \
  vi* I = global(u.I);                                                                   \
  vb* B = global(u.B);                                                                           \
  unsigned short* LISTS = (unsigned short*)SHARED(w)

// Sums over the lanes, which all of them get, to the bit: each step adds the same two numbers in both lanes of a pair.
#define FOLD(op, L, vector, value)                                                       \
  INLINE vector fold_##op##L(vector x, Worlds w) {                                       \
    for (int k = LANES / 2; k > 0; k /= 2) {                                             \
      vector y = SHUFFLE(x, k);                                                          \
      x = value;                                                                         \
    }                                                                                    \
    return x;                                                                            \
  }
#define FOLDS(L, vector)                                                                 \
  FOLD(add, L, vector, x + y)                                                            \
  FOLD(mul, L, vector, x* y)                                                             \
  FOLD(max, L, vector, max##L(x, y))                                                     \
  FOLD(min, L, vector, min##L(x, y))
FOLDS(F, vf)
FOLDS(D, vd)
FOLDS(I, vi)
FOLD(or, B, vb, x | y)
FOLD(and, B, vb, x& y)
#define LESSER(a, b) ((a) < (b) ? (a) : (b))
// How many of the lanes in a ballot come before this one.
#define BELOW(m) COUNT((m) & ((1u << LANE_ID) - 1))

#ifndef HOST
struct Tables {
  Array in[INPUTS], out[OUTPUTS];
};
// More worlds than there is room for take turns. Nothing waits for the host.
#define KERNEL(...)                                                                      \
  extern "C" __global__ void run(const __grid_constant__ Tables t, int64_t count, char* far, char* common) { \
    Array const *in = t.in, *out = t.out;                                                \
    Uniform u = COMMON(common);                                                             \
    int place = threadIdx.x / LANES, side_by_side = blockDim.x / LANES;                  \
    int64_t first = (int64_t)blockIdx.x * side_by_side + place;                          \
    for (int64_t world = first; world < count; world += (int64_t)gridDim.x * side_by_side) { \
      Worlds w = {world, 1, place, far + first * FAR_BYTES};                             \
      __VA_ARGS__                                                                        \
      SYNC;                                                                              \
    }                                                                                    \
  }
#define KERNEL_UNIFORM(...)                                                                 \
  extern "C" __global__ void uniform(const __grid_constant__ Tables t, char* common) {       \
    Uniform u = COMMON(common);                                                             \
    Array const *in = t.in, *out = t.out;                                                \
    Worlds w = {0, 1, 0, 0};                                                             \
    __VA_ARGS__                                                                          \
  }
#endif
