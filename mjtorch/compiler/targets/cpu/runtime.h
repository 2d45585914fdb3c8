// How printed programs meet the world outside: tensors, and the worlds that are computed side by side.
// What they compute with is in vector.h.
// C's functions are all that is used: libstdc++ reads the whole of <cmath> behind this name, five times of what is needed.
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <math.h>
#undef _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <stdint.h>
#include <string.h>

#ifndef N
#define N 1
#endif
#define ROUND(x) (((x) + 63) / 64 * 64)
#define INLINE static inline __attribute__((always_inline, unused))

// The worlds that are computed side by side: from `first` on, of `places` if there are any. Lanes past `count` start as
// copies of the last one.
struct Worlds {
  int64_t first, count;
  int64_t const* places;
};
// The world of a lane.
INLINE int64_t place(Worlds w, int64_t l) {
  const int64_t k = w.first + (l < w.count ? l : w.count - 1);
  return w.places ? w.places[k] : k;
}
// Whether each world is the next one of the one before.
INLINE bool neighbours(Worlds w) { return !w.places; }
#ifdef WIDE  // programs with doubles: masks are as wide as those
#define MASK int64_t
#define MASK_BYTES 8
#else
#define MASK int32_t
#define MASK_BYTES 4
#endif
// Bytes of a vector register.
#if defined(__AVX512F__)
#define REGISTER 64
#elif defined(__AVX2__)
#define REGISTER 32
#else
#define REGISTER 16
#endif
// What all worlds have in common.
struct Uniform {
  float* F;
  double* D;
  int64_t* I;
  int32_t* J;
  MASK* B;
  Watch* watch;
};
// Whether to leave a loop at once.
INLINE bool stopped(Uniform const& u) { return u.watch && u.watch->stopped(u.watch); }
#define ARGS Array const *in, Array const *out, Worlds w, PF F, PD D, PI I, PJ J, PB B, Uniform u
#define PASS in, out, w, F, D, I, J, B, u
