// Instructions of x86 that vectors of C++ have no words for. Compilers have them built in, most by the same names: to
// read <immintrin.h>, which has them all, takes GCC 0.8 s, for each part of a program.
#if defined(__AVX2__)
typedef long long Register __attribute__((vector_size(32), may_alias));
// Whether a bit is set.
INLINE int some(Register x) { return !__builtin_ia32_ptestz256(x, x); }
#endif

#if defined(__AVX512F__)
typedef long long Integers __attribute__((vector_size(64), may_alias));
typedef int Indices __attribute__((vector_size(64), may_alias));
typedef float Floats __attribute__((vector_size(64), may_alias));
typedef double Doubles __attribute__((vector_size(64), may_alias));
#if defined(__clang__)
#include <immintrin.h>
INLINE int some(Integers x) { return _mm512_test_epi64_mask((__m512i)x, (__m512i)x) != 0; }
#else
INLINE int some(Integers x) { return __builtin_ia32_ptestmq512(x, x, -1) != 0; }
#endif
// Elements `o` of those at `p`. What stood in the register before does not matter, since all of it is replaced.
#define GATHERED(type, name, offsets, built_in)        \
  INLINE type name(void const* p, offsets o) {         \
    type before = before;                              \
    return built_in(before, p, o, -1, sizeof(o[0]));   \
  }
GATHERED(Floats, gather_floats, Indices, __builtin_ia32_gathersiv16sf)
GATHERED(Indices, gather_ints, Indices, __builtin_ia32_gathersiv16si)
GATHERED(Doubles, gather_doubles, Integers, __builtin_ia32_gatherdiv8df)
GATHERED(Integers, gather_integers, Integers, __builtin_ia32_gatherdiv8di)
#endif
