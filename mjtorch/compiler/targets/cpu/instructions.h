// Instructions of x86 that vectors of C++ have no words for. GCC has them built in: to read <immintrin.h>, which has
// them all, takes it longer than to compile a small program. Clang's are called otherwise.
#if defined(__AVX2__)
typedef long long Register __attribute__((vector_size(32), may_alias));
#if defined(__clang__)
#include <immintrin.h>
#endif
// Whether a bit is set.
INLINE int some_in_register(Register x) { return !__builtin_ia32_ptestz256(x, x); }
#endif

#if defined(__AVX512F__)
typedef long long Integers __attribute__((vector_size(64), may_alias));
typedef int Indices __attribute__((vector_size(64), may_alias));
typedef float Floats __attribute__((vector_size(64), may_alias));
typedef double Doubles __attribute__((vector_size(64), may_alias));
#if defined(__clang__)
INLINE int some(Integers x) { return _mm512_test_epi64_mask((__m512i)x, (__m512i)x) != 0; }
INLINE Floats gather_floats(void const* p, Indices o) { return (Floats)_mm512_i32gather_ps((__m512i)o, p, 4); }
INLINE Indices gather_ints(void const* p, Indices o) { return (Indices)_mm512_i32gather_epi32((__m512i)o, p, 4); }
INLINE Doubles gather_doubles(void const* p, Integers o) { return (Doubles)_mm512_i64gather_pd((__m512i)o, p, 8); }
INLINE Integers gather_integers(void const* p, Integers o) {
  return (Integers)_mm512_i64gather_epi64((__m512i)o, p, 8);
}
#else
INLINE int some(Integers x) { return __builtin_ia32_ptestmq512(x, x, -1) != 0; }
// What stood in a register before does not matter, since all of it is replaced.
INLINE Floats gather_floats(void const* p, Indices o) {
  Floats before = before;
  return __builtin_ia32_gathersiv16sf(before, p, o, -1, 4);
}
INLINE Indices gather_ints(void const* p, Indices o) {
  Indices before = before;
  return __builtin_ia32_gathersiv16si(before, p, o, -1, 4);
}
INLINE Doubles gather_doubles(void const* p, Integers o) {
  Doubles before = before;
  return __builtin_ia32_gatherdiv8df(before, p, o, -1, 8);
}
INLINE Integers gather_integers(void const* p, Integers o) {
  Integers before = before;
  return __builtin_ia32_gatherdiv8di(before, p, o, -1, 8);
}
#endif
#endif
