// What printed programs compute with: vectors of N worlds, and functions named by what they take:
// F float, D double, I integer, J integer of 32 bits, B mask (0 or -1 per world). PF to PB are the scratch memory.
//
// Programs that have loops to be run world by world read this text twice: the second time N is 1, and the memory is one
// lane of vectors of STRIDE worlds.
#undef EACH
#undef LANE
#undef CONVERT
#undef SPLAT
#undef MASKED
#undef BY_LANE
#define EACH for (int l = 0; l < N; ++l)
#if N == 1
typedef float vf;
typedef double vd;
typedef int64_t vi;
typedef int32_t vs;
typedef MASK vb;
#define LANE(x, l) (x)
#define CONVERT(x, type) ((type)(x))
#define SPLAT(type, x) (x)
#define MASKED(m, type) (-(type)(m))
#define BY_LANE INLINE
#else
typedef float vf __attribute__((vector_size(4 * N)));
typedef double vd __attribute__((vector_size(8 * N)));
typedef int64_t vi __attribute__((vector_size(8 * N)));
typedef int32_t vs __attribute__((vector_size(4 * N)));
typedef MASK vb __attribute__((vector_size(MASK_BYTES * N)));
#define LANE(x, l) ((x)[l])
#define CONVERT(x, type) __builtin_convertvector(x, type)
#define SPLAT(type, x) ((type){} + (x))
#define MASKED(m, type) (m)
// What is done lane by lane is long: with all of it in line, a sixth of the time of compilers goes into it.
#define BY_LANE static __attribute__((noinline, unused))
#endif

// Comparisons, choices, and what is made of both.
#define COMPARISON(L, vector, bits, name, op)                                            \
  INLINE vb name##L(vector a, vector b) { return CONVERT(MASKED(a op b, bits), vb); }
#define COMPARISONS(L, vector, bits, MAKE)                                               \
  MAKE(L, vector, bits, eq, ==)                                                          \
  MAKE(L, vector, bits, ne, !=)                                                          \
  MAKE(L, vector, bits, lt, <)                                                           \
  MAKE(L, vector, bits, le, <=)                                                          \
  MAKE(L, vector, bits, gt, >)                                                           \
  MAKE(L, vector, bits, ge, >=)
COMPARISONS(F, vf, vs, COMPARISON)
COMPARISONS(J, vs, vs, COMPARISON)
COMPARISONS(B, vb, vb, COMPARISON)
INLINE vf selF(vb m, vf a, vf b) { return CONVERT(m, vs) ? a : b; }
INLINE vs selJ(vb m, vs a, vs b) { return CONVERT(m, vs) ? a : b; }
INLINE vs maxJ(vs a, vs b) { return a > b ? a : b; }
INLINE vs minJ(vs a, vs b) { return a < b ? a : b; }
#if N == 1 || 8 * N <= REGISTER
COMPARISONS(D, vd, vi, COMPARISON)
COMPARISONS(I, vi, vi, COMPARISON)
INLINE vd selD(vb m, vd a, vd b) { return CONVERT(m, vi) ? a : b; }
INLINE vi selI(vb m, vi a, vi b) { return CONVERT(m, vi) ? a : b; }
INLINE vi maxI(vi a, vi b) { return a > b ? a : b; }
INLINE vi minI(vi a, vi b) { return a < b ? a : b; }
INLINE vd SD(double x) { return SPLAT(vd, x); }
INLINE vi SI(int64_t x) { return SPLAT(vi, x); }
#else
// Compilers do these number by number for vectors that are larger than a register: do them in parts.
typedef double pd __attribute__((vector_size(REGISTER)));
typedef int64_t pi __attribute__((vector_size(REGISTER)));
typedef MASK pb __attribute__((vector_size(REGISTER / 8 * MASK_BYTES)));
#define PARTS for (int k = 0; k < 8 * N / REGISTER; ++k)
#define PART(x, type) (((type*)&x)[k])
#define IN_PARTS(vector, part, name, parameters, value)                                  \
  INLINE vector name parameters {                                                        \
    vector r;                                                                            \
    PARTS PART(r, part) = value;                                                         \
    return r;                                                                            \
  }
#define COMPARISON_IN_PARTS(L, vector, part, name, op)                                   \
  IN_PARTS(vb, pb, name##L, (vector a, vector b), CONVERT(PART(a, part) op PART(b, part), pb))
COMPARISONS(D, vd, pd, COMPARISON_IN_PARTS)
COMPARISONS(I, vi, pi, COMPARISON_IN_PARTS)
IN_PARTS(vd, pd, selD, (vb m, vd a, vd b), CONVERT(PART(m, pb), pi) ? PART(a, pd) : PART(b, pd))
IN_PARTS(vi, pi, selI, (vb m, vi a, vi b), CONVERT(PART(m, pb), pi) ? PART(a, pi) : PART(b, pi))
IN_PARTS(vi, pi, maxI, (vi a, vi b), PART(a, pi) > PART(b, pi) ? PART(a, pi) : PART(b, pi))
IN_PARTS(vi, pi, minI, (vi a, vi b), PART(a, pi) < PART(b, pi) ? PART(a, pi) : PART(b, pi))
IN_PARTS(vd, pd, SD, (double x), (pd){} + x)
IN_PARTS(vi, pi, SI, (int64_t x), (pi){} + x)
#endif

#ifdef STRIDE
template <class T>
struct Lane {
  T* first;
  T& operator[](int64_t i) const { return first[i * STRIDE]; }
};
// Where in an array of all worlds, whose first element of one is given, that world's can lie side by side meanwhile.
template <class T>
INLINE T* side_by_side(T* first, int64_t size) {
  return STRIDE == 1 || size < 64 ? first : (T*)(((uintptr_t)first + 63) & ~(uintptr_t)63);
}
typedef Lane<vf> PF;
typedef Lane<vd> PD;
typedef Lane<vi> PI;
typedef Lane<vs> PJ;
typedef Lane<vb> PB;
#else
typedef vf* PF;
typedef vd* PD;
typedef vi* PI;
typedef vs* PJ;
typedef vb* PB;
#endif

INLINE vf SF(float x) { return SPLAT(vf, x); }
INLINE vs SJ(int32_t x) { return SPLAT(vs, x); }
INLINE vb SB(int x) { return SPLAT(vb, x); }
INLINE vb selB(vb m, vb a, vb b) { return (m & a) | (~m & b); }
// Whether a mask holds in some world.
#if N > 1 && N * MASK_BYTES == 64 && defined(__AVX512F__)
INLINE int any(vb m) { return some((Integers)m); }
#elif N > 1 && N * MASK_BYTES == 32 && defined(__AVX2__)
INLINE int any(vb m) { return some((Register)m); }
#else
INLINE int any(vb m) {
  int64_t r = 0;
  EACH r |= LANE(m, l);
  return r != 0;
}
#endif

// The highest of the limits of all worlds, but not below `start` or above `stop`.
#define HIGHEST(type)                                              \
  INLINE int highest(type limit, int start, int stop) {            \
    int r = start;                                                 \
    EACH if (LANE(limit, l) > r) r = (int)LANE(limit, l);           \
    return r < stop ? r : stop;                                    \
  }
HIGHEST(vs)
HIGHEST(vi)
#undef HIGHEST

// The worlds that are no copies.
INLINE vb present(Worlds w) {
  vb r;
  EACH LANE(r, l) = -(MASK)(l < w.count);
  return r;
}

// Conversions, from and to.
INLINE vd F2D(vf x) { return CONVERT(x, vd); }
INLINE vi F2I(vf x) { return CONVERT(x, vi); }
INLINE vs F2J(vf x) { return CONVERT(x, vs); }
INLINE vb F2B(vf x) { return neF(x, SF(0)); }
INLINE vf D2F(vd x) { return CONVERT(x, vf); }
INLINE vi D2I(vd x) { return CONVERT(x, vi); }
INLINE vs D2J(vd x) { return CONVERT(x, vs); }
INLINE vb D2B(vd x) { return neD(x, SD(0)); }
INLINE vf I2F(vi x) { return CONVERT(x, vf); }
INLINE vd I2D(vi x) { return CONVERT(x, vd); }
INLINE vs I2J(vi x) { return CONVERT(x, vs); }
INLINE vb I2B(vi x) { return neI(x, SI(0)); }
INLINE vf J2F(vs x) { return CONVERT(x, vf); }
INLINE vd J2D(vs x) { return CONVERT(x, vd); }
INLINE vi J2I(vs x) { return CONVERT(x, vi); }
INLINE vb J2B(vs x) { return neJ(x, SJ(0)); }
INLINE vf B2F(vb x) { return CONVERT(x & 1, vf); }
INLINE vd B2D(vb x) { return CONVERT(x & 1, vd); }
INLINE vi B2I(vb x) { return -CONVERT(x, vi); }
INLINE vs B2J(vb x) { return -CONVERT(x, vs); }

// Tensors: read and write one element of every world.
#define ACCESS(L, vector, scalar, READ, WRITE)                                           \
  BY_LANE vector get##L(Array const& a, int64_t i, Worlds const& w) {                    \
    scalar const* p = (scalar const*)a.data + i * a.element;                             \
    vector r;                                                                            \
    if (w.count == N && neighbours(w) && a.world == 1) {                                 \
      EACH LANE(r, l) = READ(p[w.first + l]);                                            \
      return r;                                                                          \
    }                                                                                    \
    EACH LANE(r, l) = READ(p[place(w, l) * a.world]);                                    \
    return r;                                                                            \
  }                                                                                      \
  BY_LANE void put##L(Array const& a, int64_t i, Worlds const& w, vector x) {            \
    scalar* p = (scalar*)a.data + i * a.element;                                         \
    if (w.count == N && neighbours(w) && a.world == 1) {                                 \
      EACH p[w.first + l] = WRITE(LANE(x, l));                                           \
      return;                                                                            \
    }                                                                                    \
    for (int l = 0; l < w.count; ++l) p[place(w, l) * a.world] = WRITE(LANE(x, l));      \
  }                                                                                      \
  INLINE void give##L(Array const& a, int64_t i, Worlds w, int l, scalar x) {            \
    ((scalar*)a.data)[i * a.element + place(w, l) * a.world] = x;                        \
  }
#define SAME(x) (x)
#define TO_MASK(x) (-(int)(x))
#define FROM_MASK(x) ((x) != 0)
ACCESS(F, vf, float, SAME, SAME)
ACCESS(D, vd, double, SAME, SAME)
ACCESS(I, vi, int64_t, SAME, SAME)
ACCESS(B, vb, uint8_t, TO_MASK, FROM_MASK)

#ifndef STRIDE
// An element of one world, and one world's number of a vector.
#define ELEMENT(L, vector, scalar) \
  INLINE scalar& lane##L(P##L p, int64_t i, int l) { return ((scalar*)(p + i))[l]; }
ELEMENT(F, vf, float)
ELEMENT(D, vd, double)
ELEMENT(I, vi, int64_t)
ELEMENT(J, vs, int32_t)
ELEMENT(B, vb, MASK)
INLINE int64_t of(vi x, int l) { return LANE(x, l); }
INLINE int64_t of(vs x, int l) { return LANE(x, l); }
INLINE int holds(vb x, int l) { return LANE(x, l) != 0; }
#endif

#ifndef BLOCKS
#include "blocks.h"
#endif

// Elements at an offset that each world has for itself. Few lines of a program write to such, but often: as functions
// that are called they took twice as long.
#define SCATTER(L, vector, offsets)                                                        \
  INLINE void scatter##L(P##L p, int64_t i, offsets o, vector x) {                         \
    EACH LANE(p[i + LANE(o, l)], l) = LANE(x, l);                                        \
  }
#define COMMON(L, vector, scalar, READ, offsets)                                         \
  INLINE vector gather_common##L(scalar const* p, offsets o) {                           \
    vector r;                                                                            \
    EACH LANE(r, l) = READ(p[LANE(o, l)]);                                               \
    return r;                                                                            \
  }
#define GATHER(L, vector, offsets)                                                         \
  INLINE vector gather##L(P##L p, int64_t i, offsets o) {                                  \
    vector r;                                                                            \
    EACH LANE(r, l) = LANE(p[i + LANE(o, l)], l);                                        \
    return r;                                                                            \
  }
#define COMMON_MASK(name, scalar, READ, offsets)                                         \
  BY_LANE vb name(scalar const* p, offsets o) {                                          \
    vb r;                                                                                \
    EACH LANE(r, l) = READ(p[LANE(o, l)]);                                               \
    return r;                                                                            \
  }
#define MASKS(offsets)                                                                   \
  COMMON_MASK(gather_commonB, uint8_t, TO_MASK, offsets)                                 \
  COMMON_MASK(gather_commonmaskB, MASK, SAME, offsets)
#define AT_OFFSETS(MAKE, offsets)                                                        \
  MAKE(F, vf, offsets) MAKE(D, vd, offsets) MAKE(I, vi, offsets) MAKE(J, vs, offsets) MAKE(B, vb, offsets)
AT_OFFSETS(SCATTER, vi)
AT_OFFSETS(SCATTER, vs)
MASKS(vi)
MASKS(vs)
GATHER(D, vd, vs)
GATHER(I, vi, vs)
GATHER(J, vs, vi)
COMMON(D, vd, double, SAME, vs)
COMMON(I, vi, int64_t, SAME, vs)
COMMON(J, vs, int32_t, SAME, vi)
#if defined(__AVX512F__) && N * MASK_BYTES == 64
#define STEPS8 0, 1, 2, 3, 4, 5, 6, 7
#if N == 16
INLINE Indices spots(vi o) { return (Indices)(CONVERT(o, vs) * N + (vs){STEPS8, 8, 9, 10, 11, 12, 13, 14, 15}); }
INLINE vf gatherF(PF p, int64_t i, vi o) { return (vf)gather_floats(p + i, spots(o)); }
INLINE vf gather_commonF(float const* p, vi o) { return (vf)gather_floats(p, (Indices)CONVERT(o, vs)); }
INLINE Indices spots(vs o) { return (Indices)(o * N + (vs){STEPS8, 8, 9, 10, 11, 12, 13, 14, 15}); }
INLINE vf gatherF(PF p, int64_t i, vs o) { return (vf)gather_floats(p + i, spots(o)); }
INLINE vs gatherJ(PJ p, int64_t i, vs o) { return (vs)gather_ints(p + i, spots(o)); }
INLINE vb gatherB(PB p, int64_t i, vs o) { return (vb)gather_ints(p + i, spots(o)); }
INLINE vf gather_commonF(float const* p, vs o) { return (vf)gather_floats(p, (Indices)o); }
INLINE vs gather_commonJ(int32_t const* p, vs o) { return (vs)gather_ints(p, (Indices)o); }
IN_PARTS(vi, Integers, gather_commonI, (int64_t const* p, vi o), gather_integers(p, PART(o, Integers)))
IN_PARTS(vi, Integers, gatherI, (PI p, int64_t i, vi o),
         gather_integers(p + i, (Integers)(PART(o, pi) * N + 8 * k + (pi){STEPS8})))
COMMON(D, vd, double, SAME, vi)
INLINE vb gatherB(PB p, int64_t i, vi o) { return (vb)gather_ints(p + i, spots(o)); }
GATHER(D, vd, vi)
#else
INLINE Integers spots(vi o) { return (Integers)(o * N + (vi){STEPS8}); }
INLINE vd gather_commonD(double const* p, vi o) { return (vd)gather_doubles(p, (Integers)o); }
INLINE vi gather_commonI(int64_t const* p, vi o) { return (vi)gather_integers(p, (Integers)o); }
COMMON(F, vf, float, SAME, vi)
INLINE vd gatherD(PD p, int64_t i, vi o) { return (vd)gather_doubles(p + i, spots(o)); }
INLINE vi gatherI(PI p, int64_t i, vi o) { return (vi)gather_integers(p + i, spots(o)); }
INLINE vb gatherB(PB p, int64_t i, vi o) { return (vb)gather_integers(p + i, spots(o)); }
GATHER(F, vf, vi)
GATHER(F, vf, vs)
GATHER(J, vs, vs)
GATHER(B, vb, vs)
COMMON(F, vf, float, SAME, vs)
COMMON(J, vs, int32_t, SAME, vs)
#endif
#else
GATHER(F, vf, vi)
GATHER(D, vd, vi)
GATHER(I, vi, vi)
GATHER(B, vb, vi)
GATHER(F, vf, vs)
GATHER(J, vs, vs)
GATHER(B, vb, vs)
COMMON(F, vf, float, SAME, vi)
COMMON(D, vd, double, SAME, vi)
COMMON(I, vi, int64_t, SAME, vi)
COMMON(F, vf, float, SAME, vs)
COMMON(J, vs, int32_t, SAME, vs)
#endif

// Functions. Comparisons are written so that NaN is passed on, as torch does.
#define ARITHMETIC(L, vector)                                                            \
  INLINE vector max##L(vector a, vector b) { return sel##L(eq##L(a, a), sel##L(gt##L(a, b), a, b), a); } \
  INLINE vector min##L(vector a, vector b) { return sel##L(eq##L(a, a), sel##L(lt##L(a, b), a, b), a); } \
  INLINE vector fmax##L(vector a, vector b) { return sel##L(eq##L(b, b), sel##L(gt##L(a, b), a, b), a); } \
  INLINE vector fmin##L(vector a, vector b) { return sel##L(eq##L(b, b), sel##L(lt##L(a, b), a, b), a); }
ARITHMETIC(F, vf)
ARITHMETIC(D, vd)

#define LANEWISE(L, vector, name, call)                                                  \
  INLINE vector name##L(vector x) {                                                      \
    vector r;                                                                            \
    EACH LANE(r, l) = call(LANE(x, l));                                                  \
    return r;                                                                            \
  }
#define LANEWISE2(L, vector, name, call)                                                 \
  INLINE vector name##L(vector x, vector y) {                                            \
    vector r;                                                                            \
    EACH LANE(r, l) = call(LANE(x, l), LANE(y, l));                                      \
    return r;                                                                            \
  }
#define BOTH(name, f32, f64) LANEWISE(F, vf, name, f32) LANEWISE(D, vd, name, f64)
#define BOTH2(name, f32, f64) LANEWISE2(F, vf, name, f32) LANEWISE2(D, vd, name, f64)
// Those of C, one line each, and those that vectors have definitions of.
/*FUNCTIONS*/
// Adding and subtracting 1.5 * 2^23 (or 2^52) rounds to an integer.
INLINE vf round_fastF(vf x) { return (x + SF(12582912.0f)) - SF(12582912.0f); }
INLINE vd round_fastD(vd x) { return (x + SD(6755399441055744.0)) - SD(6755399441055744.0); }
#if N > 1
#include "functions.h"
#else
/*ONE BY ONE*/
#endif
// Exponents of 1 and 2 are common enough to be worth a test; the result of a world does not depend on its neighbours.
#define POWER(L, vector, call)                                                           \
  INLINE vector pow##L(vector x, vector y) {                                             \
    vb first = eq##L(y, S##L(1)), easy = first | eq##L(y, S##L(2));                      \
    vector r = sel##L(first, x, x * x);                                                  \
    if (any(~easy)) {                                                                    \
      EACH if (!(LANE(easy, l))) LANE(r, l) = call(LANE(x, l), LANE(y, l));              \
    }                                                                                    \
    return r;                                                                            \
  }
POWER(F, vf, powf)
POWER(D, vd, pow)
#if __has_builtin(__builtin_elementwise_sqrt) && N > 1
INLINE vf sqrtF(vf x) { return __builtin_elementwise_sqrt(x); }
INLINE vd sqrtD(vd x) { return __builtin_elementwise_sqrt(x); }
#else
BOTH(sqrt, __builtin_sqrtf, __builtin_sqrt)
#endif
INLINE vf remainderF(vf x, vf y) { return x - floorF(x / y) * y; }
INLINE vd remainderD(vd x, vd y) { return x - floorD(x / y) * y; }
#define INTEGERS(L, vector)                                                              \
  INLINE vector fmax##L(vector a, vector b) { return max##L(a, b); }                     \
  INLINE vector fmin##L(vector a, vector b) { return min##L(a, b); }                     \
  INLINE vector abs##L(vector x) { return sel##L(lt##L(x, S##L(0)), -x, x); }            \
  INLINE vector remainder##L(vector x, vector y) {                                       \
    vector r = x % y;                                                                    \
    return sel##L(ne##L(r, S##L(0)) & lt##L((r ^ y), S##L(0)), r + y, r);                \
  }                                                                                      \
  INLINE vector idiv_trunc##L(vector x, vector y) { return x / y; }                      \
  INLINE vector idiv_floor##L(vector x, vector y) { return (x - remainder##L(x, y)) / y; }
INTEGERS(I, vi)
INTEGERS(J, vs)
#define DERIVED(L, vector)                                                               \
  INLINE vector rsqrt##L(vector x) { return S##L(1) / sqrt##L(x); }                      \
  INLINE vector reciprocal##L(vector x) { return S##L(1) / x; }                          \
  INLINE vector sigmoid##L(vector x) { return S##L(1) / (S##L(1) + exp##L(-x)); }        \
  INLINE vector sign##L(vector x) {                                                      \
    return sel##L(gt##L(x, S##L(0)), S##L(1), sel##L(lt##L(x, S##L(0)), S##L(-1), x * S##L(0))); \
  }                                                                                      \
  INLINE vb isfinite##L(vector x) { return eq##L(x - x, S##L(0)); }                      \
  INLINE vb isinf##L(vector x) { return ~isfinite##L(x) & eq##L(x, x); }
DERIVED(F, vf)
DERIVED(D, vd)

// Sine and cosine: reduce by quarter turns in three parts, then the two polynomials of fdlibm (double) and Cephes
// (float); beyond the range of that reduction, the C library, or what a target calls in its place.
#ifndef BEYOND
#define BEYOND(f) f
#endif
#define TURNS(L, vector, limit, one, two, three, SIN, COS, fsin, fcos)                   \
  INLINE void sincos##L(vector x, vector& s, vector& c) {                                \
    vector q = round_fast##L(x * S##L(0.63661977236758134308));                          \
    vector r = ((x - q * S##L(one)) - q * S##L(two)) - q * S##L(three);                  \
    vector z = r * r;                                                                    \
    vector a = SIN, b = COS;                                                             \
    vector h = q * S##L(0.25);                                                           \
    vector k = (h - floor_fast##L(h)) * S##L(4); /* quadrant 0, 1, 2, 3 */               \
    vb odd = eq##L(k, S##L(1)) | eq##L(k, S##L(3));                                      \
    vector si = sel##L(odd, b, a), co = sel##L(odd, a, b);                               \
    s = sel##L(ge##L(k, S##L(2)), -si, si);                                              \
    c = sel##L(eq##L(k, S##L(1)) | eq##L(k, S##L(2)), -co, co);                          \
    vb far = ~lt##L(abs_fast##L(x), S##L(limit));                                        \
    if (any(far)) { /* in these worlds only: what one gets does not depend on others */  \
      EACH if (LANE(far, l)) LANE(s, l) = fsin(LANE(x, l));                              \
      EACH if (LANE(far, l)) LANE(c, l) = fcos(LANE(x, l));                              \
    }                                                                                    \
  }                                                                                      \
  INLINE vector sin##L(vector x) {                                                       \
    vector s, c;                                                                         \
    sincos##L(x, s, c);                                                                  \
    return s;                                                                            \
  }                                                                                      \
  INLINE vector cos##L(vector x) {                                                       \
    vector s, c;                                                                         \
    sincos##L(x, s, c);                                                                  \
    return c;                                                                            \
  }
INLINE vf floor_fastF(vf x) { vf r = round_fastF(x); return selF(gtF(r, x), r - SF(1), r); }
INLINE vd floor_fastD(vd x) { vd r = round_fastD(x); return selD(gtD(r, x), r - SD(1), r); }
INLINE vf abs_fastF(vf x) { return selF(ltF(x, SF(0)), -x, x); }
INLINE vd abs_fastD(vd x) { return selD(ltD(x, SD(0)), -x, x); }
TURNS(F, vf, 8192.0, 1.5703125f, 4.837512969970703125e-4f, 7.54978995489188216e-8f,
      (r + r * z * (SF(-1.6666654611e-1f) + z * (SF(8.3321608736e-3f) + z * SF(-1.9515295891e-4f)))),
      (SF(1) - SF(0.5f) * z + z * z * (SF(4.166664568298827e-2f) + z * (SF(-1.388731625493765e-3f) + z * SF(2.443315711809948e-5f)))),
      BEYOND(sinf), BEYOND(cosf))
TURNS(D, vd, 1e5, 1.57079632673412561417e+00, 6.07710050630396597660e-11, 2.02226624879595063154e-21,
      (r + r * z * (SD(-1.66666666666666324348e-01) + z * (SD(8.33333333332248946124e-03) + z * (SD(-1.98412698298579493134e-04) + z * (SD(2.75573137070700676789e-06) + z * (SD(-2.50507602534068634195e-08) + z * SD(1.58969099521155010221e-10))))))),
      (SD(1) - SD(0.5) * z + z * z * (SD(4.16666666666666019037e-02) + z * (SD(-1.38888888888741095749e-03) + z * (SD(2.48015872894767294178e-05) + z * (SD(-2.75573143513906633035e-07) + z * (SD(2.08757232129817482790e-09) + z * SD(-1.13596475577881948265e-11))))))),
      BEYOND(sin), BEYOND(cos))
