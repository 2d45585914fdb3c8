// A world per warp, or per part of one: LANES lanes compute it together, each its share of the elements.
//
// What the program computes with is that of vector.h, for vectors of one. A build for the host, which tests the printed
// text without a GPU, comes with its own meaning of what is defined in the first part here.

// Whether the worlds of a warp may be at different places, as in loops through lists of their own.
static constexpr bool parted = false;
#define PARTED constexpr bool parted = LANES < 32
#ifndef HOST
typedef long long int64_t;
typedef int int32_t;
typedef unsigned char uint8_t;
typedef unsigned uint32_t;
typedef unsigned long long uint64_t;
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#endif
#define INLINE static __device__ __forceinline__
#define FUNCTION static __device__ __noinline__
#define CONSTANT static __device__ const
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
#define UNROLL_SOME _Pragma("unroll 4")
#define UNROLL_TWICE _Pragma("unroll 2")
#define LANE_ID w.lane
// The lane's number is another one for the compiler: what was made from it before is made again, not held in registers.
#define LANE_ANEW asm volatile("" : "+r"(w.lane))
#ifndef WARPS
#define WARPS 1
#define RESIDENT 1
#endif
// Worlds of a block; as many blocks as RESIDENT are on a multiprocessor at a time.
#define PLACES (blockDim.x / LANES)
#if WARPS > 1
#define TOGETHER __syncthreads()
#define MEET TOGETHER
#else
#define TOGETHER __syncwarp()
#define MEET
#endif
// The lanes that do together what follows: all of the warp, or those of this world. Of these the assembler cannot tell that
// they are together, and gathers them each time.
#define OWN_LANES ((1u << (LANES % 32)) - 1)
#define BEFORE_OWN (threadIdx.x % 32 / LANES * LANES)
#define MEMBERS (parted ? OWN_LANES << BEFORE_OWN : 0xffffffffu)
#define SYNC __syncwarp(MEMBERS)
#define SHUFFLE(x, distance) __shfl_xor_sync(MEMBERS, x, distance, LANES)
#define BROADCAST(x, lane) __shfl_sync(MEMBERS, x, lane, LANES)
// Whether a flag is up, the same in all lanes of a world, in some world of the warp: in a form that tells the assembler that
// all lanes then go the same way.
#define SOME(f) __any_sync(0xffffffffu, any(f))
// All of these are together again: for the assembler's eyes, no memory is waited for.
#define JOINED SYNC
#define BALLOT(f) (LANES == 32 ? __ballot_sync(0xffffffffu, f) : __ballot_sync(MEMBERS, f) >> BEFORE_OWN & OWN_LANES)
#define COUNT(m) __popc(m)
// Sines and cosines of what is many turns: CUDA's are long, and where they are called nearly never.
FUNCTION float beyond_sinf(float x) { return sinf(x); }
FUNCTION float beyond_cosf(float x) { return cosf(x); }
FUNCTION double beyond_sin(double x) { return sin(x); }
FUNCTION double beyond_cos(double x) { return cos(x); }
#define BEYOND(f) beyond_##f
// Arrays of a world; and what an iteration reads that may be another's, done again, which stores nothing.
template <class T>
using Elements = T*;
#define TAKEN(is_own, x) x
extern __shared__ __align__(16) char pool[];
// A pointer to global memory: that it is not to shared memory spares reading that again after each store.
template <class T>
static __device__ __forceinline__ T* global(T* p) {
  return (T*)__cvta_global_to_generic((size_t)p);
}
#define SHARED(w) (pool + ROWS_BYTES + (w).place * SHARED_BYTES)
// Where among those of its block the world is that this lane computes.
#define PLACE(thread) (LANES < 32 ? (thread) / LANES : WARPS == 1 ? 0 : __shfl_sync(0xffffffffu, (thread) / 32, 0))
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
  int lane;
};
INLINE int64_t place(Worlds w, int64_t) { return w.first; }
INLINE bool neighbours(Worlds) { return true; }
#ifndef HOST
// What a kernel is given. A block copies where the arrays are, and how far apart their worlds, to the beginning of shared
// memory: it is near, and what is read there (as `volatile` tells) for each access is not kept, and spilled, between them.
struct Tables {
  Array in[INPUTS], out[OUTPUTS];
};
struct Row {
  uint64_t data;
  uint32_t world, first;
};
#define ROWS_BYTES ((INPUTS + OUTPUTS + 1) * (int)sizeof(Row))
static __device__ __forceinline__ Row row_at(int offset) {
  Row row;
  asm volatile("{\n.reg .b64 %%both;\nld.shared.v2.b64 {%0, %%both}, [%3];\nmov.b64 {%1, %2}, %%both;\n}"
               : "=l"(row.data), "=r"(row.world), "=r"(row.first)
               : "r"((uint32_t)__cvta_generic_to_shared(pool) + (uint32_t)offset));
  return row;
}
// Behind the rows is where the memory is that all worlds have in common; each world's shared memory ends with where its
// global memory is, and with its number and that of the first of the block's turn. Functions find both there: what they were given would be held in registers
// while others run.
static __device__ __forceinline__ void copy_rows(Tables const& t, char* common) {
  if (threadIdx.x == 0) ((Row*)pool)[INPUTS + OUTPUTS] = {(uint64_t)common, 0, 0};
  for (int k = threadIdx.x; k < INPUTS + OUTPUTS; k += blockDim.x) {
    Array const& a = k < INPUTS ? t.in[k] : t.out[k - INPUTS];
    ((Row*)pool)[k] = {(uint64_t)a.data, (uint32_t)a.world, 0};
  }
  TOGETHER;
}
template <int FIRST>
struct Arrays {
  __device__ __forceinline__ Array operator[](int k) const {
    Row row = row_at((FIRST + k) * (int)sizeof(Row));
    return {global((void*)row.data), 1, (int64_t)row.world};
  }
};
#define OWN_ROW(place) (ROWS_BYTES + ((place) + 1) * SHARED_BYTES - (int)sizeof(Row))
// What is made from these is made where they are asked for: not before a loop, and held in registers all through it.
#define ANEW(name, register)                              \
  static __device__ __forceinline__ uint32_t name() {     \
    uint32_t x;                                           \
    asm volatile("mov.u32 %0, %" register ";" : "=r"(x)); \
    return x;                                             \
  }
ANEW(thread_anew, "%tid.x")
ANEW(threads_anew, "%ntid.x")
ANEW(block_anew, "%ctaid.x")
ANEW(blocks_anew, "%nctaid.x")
#define OWN_WORLD own_world()
static __device__ __forceinline__ Worlds own_world() {
  uint32_t thread = thread_anew();
  int place = PLACE(thread);
  Row row = row_at(OWN_ROW(place));
  return {(int64_t)row.world, 1, place, (char*)row.data, (int)(thread % LANES)};
}
#define ARRAYS          \
  Arrays<0> in;         \
  Arrays<INPUTS> out;   \
  Worlds w = OWN_WORLD
#define FIND_COMMON Uniform u = COMMON(global((char*)row_at((INPUTS + OUTPUTS) * (int)sizeof(Row)).data))
// The number of the first world of the block's turn, which is in each row, and the same in all lanes of a warp.
static __device__ __forceinline__ uint32_t first_anew() {
  int place = PLACE(thread_anew());
  return __shfl_sync(0xffffffffu, row_at(OWN_ROW(place)).first, 0);
}
// After a call: a world's memory is found again.
#define AGAIN w = OWN_WORLD, FIND_MEMORY
#endif

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
// An array of this world, whose elements lie beside each other. What lies before it may be more than 4 GB, but neither the
// world's number nor its own bytes are.
template <class T>
INLINE T* own_array(Array a, Worlds w) {
  return (T*)((char*)a.data + (uint64_t)(uint32_t)w.first * ((uint32_t)a.world * (uint32_t)sizeof(T)));
}
#define GIVEN(type, k, i) own_array<type const>(in[k], w)[i]
#define PUT(type, k, i) own_array<type>(out[k], w)[i]
#define FIND_MEMORY                                                                      \
  own = SHARED(w), away = global(w.far), LISTS = (unsigned short*)(own + AT_LISTS),      \
  F = (vf*)(own + AT_F), Ffar = (vf*)(away + AT_F_FAR), D = (vd*)(own + AT_D), Dfar = (vd*)(away + AT_D_FAR), \
  I = (vi*)(own + AT_I), Ifar = (vi*)(away + AT_I_FAR), B = (vb*)(own + AT_B), Bfar = (vb*)(away + AT_B_FAR)
#define MEMORY                                                                           \
  ARRAYS;                                                                                \
  char *own, *away;                                                                      \
  Elements<vf> F, Ffar;                                                                  \
  Elements<vd> D, Dfar;                                                                  \
  Elements<vi> I, Ifar;                                                                  \
  Elements<vb> B, Bfar;                                                                  \
  Elements<unsigned short> LISTS;                                                        \
  FIND_MEMORY
#define UNIFORM_MEMORY                                                                      \
  ARRAYS;\
  FIND_COMMON;                                                                                \
  Elements<vf> F = global(u.F);                                                          \
  Elements<vd> D = global(u.D);                                                          \
  Elements<vi> I = global(u.I);                                                          \
  Elements<vb> B = global(u.B);                                                          \
  Elements<unsigned short> LISTS = (unsigned short*)SHARED(w)

// Sums over the lanes, which all of them get, to the bit: each step adds the same two numbers in both lanes of a pair.
#define FOLD(op, L, vector, value)                                                       \
  template <bool parted>                                                                 \
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
INLINE float square_root(float x) { return __builtin_sqrtf(x); }
INLINE double square_root(double x) { return __builtin_sqrt(x); }
#include "linalg.h"
// How many of the lanes in a ballot come before this one.
#define BELOW(m) COUNT((m) & ((1u << LANE_ID) - 1))

#ifndef HOST
// More worlds than there is room for take turns. Nothing waits for the host. That all lanes of a warp go the same way, here
// and in all that follows, is what the compiler must see: else it guards each access and each barrier against the
// contrary. So worlds are counted from what is the same in a block, and those beyond the last are the last again.
#define KERNEL(...)                                                                      \
  extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT) run(const __grid_constant__ Tables t, int64_t count, char* far, char* common) { \
    copy_rows(t, common);                                                                \
    for (uint32_t first = blockIdx.x * PLACES; __any_sync(0xffffffffu, first < (uint32_t)count);) { \
      {                                                                                  \
        uint32_t thread = thread_anew();                                                 \
        int place = PLACE(thread);                                                       \
        char* memory = far + (int64_t)(block_anew() * (threads_anew() / LANES) + place) * FAR_BYTES; \
        uint32_t world = LESSER(first + place, (uint32_t)count - 1);                     \
        if (thread % LANES == 0)                                                         \
          *(Row*)(pool + OWN_ROW(place)) = {(uint64_t)memory, world, first}; \
      }                                                                                  \
      SYNC;                                                                              \
      {                                                                                  \
        __VA_ARGS__                                                                      \
      }                                                                                  \
      first = first_anew() + blocks_anew() * (threads_anew() / LANES);                   \
      SYNC;                                                                              \
    }                                                                                    \
  }
#define KERNEL_UNIFORM(...)                                                              \
  extern "C" __global__ void uniform(const __grid_constant__ Tables t, char* common) {   \
    copy_rows(t, common);                                                                \
    if (threadIdx.x == 0) *(Row*)(pool + OWN_ROW(0)) = {0, 0, 0};                           \
    TOGETHER;                                                                            \
    __VA_ARGS__                                                                          \
  }
#endif
