// Functions of C for vectors of worlds, without branches: exp, expm1, log, log1p, tanh, atan, atan2.
//
// Arguments are brought to an interval around zero, as fdlibm and Cephes do; there polynomials are nearly minimax: they
// interpolate at Chebyshev's points. Results are within 3 units in the last place, and special values are those of C.
// What a world gets does not depend on its neighbours.
template <class T, class S>
INLINE T bits(S x) {
  static_assert(sizeof(T) == sizeof(S), "");
  T r;
  __builtin_memcpy(&r, &x, sizeof r);
  return r;
}

// Horner's scheme: a polynomial by its coefficients, the constant one first.
#define HORNER(L, vector)                                                                \
  INLINE vector horner##L(vector, double c) { return S##L(c); }                          \
  template <class... Rest>                                                               \
  INLINE vector horner##L(vector x, double c, Rest... rest) {                            \
    return S##L(c) + x * horner##L(x, rest...);                                          \
  }
HORNER(F, vf)
HORNER(D, vd)
// (e^r - 1 - r) / r^2 for |r| < 0.35; (2 atanh(s) / s - 2) / z and (atan(s) / s - 1) / z of z = s^2, for s < 0.1716 and
// s < 0.4142.
INLINE vf exp_partF(vf r) {
  return hornerF(r, 0.50000000142862234, 0.16666666682534356, 0.041666456809677876, 0.0083333100242252924,
                 0.0013934541928270264, 0.00019891981313977690);
}
INLINE vd exp_partD(vd r) {
  return hornerD(r, 0.5, 0.16666666666666666667, 0.041666666666666677821, 0.0083333333333333340768,
                 0.0013888888888878268954, 0.00019841269841262762552, 0.000024801587338565345553,
                 2.7557319248633825543e-6, 2.755726102934376868e-7, 2.5052069594795684812e-8,
                 2.0918961837795778064e-9, 1.6087177234380782278e-10);
}
INLINE vf log_partF(vf z) {
  return hornerF(z, 0.66666666549883177, 0.40000125594554367, 0.28550396959618013, 0.23341943388714561);
}
INLINE vd log_partD(vd z) {
  return hornerD(z, 0.66666666666666666448, 0.40000000000000941266, 0.28571428570764450117,
                 0.22222222400547757297, 0.18181794700897799585, 0.15386290534658991988, 0.13267418596474883398,
                 0.13100721383503491392);
}
INLINE vf atan_partF(vf z) {
  return hornerF(z, -0.33333331686451946, 0.19999523397227708, -0.14263366579725610, 0.10737396967162720,
                 -0.064310387107154421);
}
INLINE vd atan_partD(vd z) {
  return hornerD(z, -0.33333333333333333203, 0.19999999999999783767, -0.14285714285654638944,
                 0.11111111104652254823, -0.09090908728587459038, 0.076922956583278735076, -0.066664120777252743448,
                 0.058787824694439811789, -0.05229380473781840592, 0.045467195095551665413,
                 -0.034445844423577384935, 0.01614822854677186957);
}

// MAGIC: 1.5 times the power of two from which on numbers are integers, so that adding it rounds, and leaves the integer
// in the last bits. DIGITS: of the mantissa, BIAS: of the exponent. LN2, LN2_REST: its first bits, and the rest.
#define EXPONENTIAL(L, vector, integer, MAGIC, DIGITS, BIAS, LN2, LN2_REST, LEAST, MOST, EXACT) \
  INLINE vector power_of_two##L(vector n) {                                              \
    return bits<vector>((bits<integer>(n + S##L(MAGIC)) + BIAS) << DIGITS);              \
  }                                                                                      \
  /* x = n ln 2 + r, for x that is cut to where its exponential is a number */           \
  INLINE void exp_reduce##L(vector x, vector& n, vector& r) {                            \
    n = round_fast##L(x * S##L(1.44269504088896340736));                                 \
    r = (x - n * S##L(LN2)) - n * S##L(LN2_REST);                                        \
  }                                                                                      \
  INLINE vector exp##L(vector x) {                                                       \
    vector n, r, h;                                                                      \
    x = sel##L(lt##L(x, S##L(LEAST)), S##L(LEAST), sel##L(gt##L(x, S##L(MOST)), S##L(MOST), x)); \
    exp_reduce##L(x, n, r);                                                              \
    h = round_fast##L(n * S##L(0.5)); /* twice half of it, since 2^n may be none */      \
    return (S##L(1) + (r + r * r * exp_part##L(r))) * power_of_two##L(h) * power_of_two##L(n - h); \
  }                                                                                      \
  /* for |x| up to EXACT, beyond which nothing is left of the 1 that is taken off */     \
  INLINE vector expm1_near##L(vector x) {                                                \
    vector n, r;                                                                         \
    exp_reduce##L(x, n, r);                                                              \
    vector s = power_of_two##L(n);                                                       \
    return s * (r + r * r * exp_part##L(r)) + (s - S##L(1));                             \
  }                                                                                      \
  INLINE vector expm1##L(vector x) {                                                     \
    vb high = gt##L(x, S##L(EXACT));                                                     \
    vector r = expm1_near##L(sel##L(high, S##L(0), sel##L(lt##L(x, S##L(-EXACT)), S##L(-EXACT), x))); \
    return sel##L(high, exp##L(x), sel##L(eq##L(x, S##L(0)), x, r));                     \
  }                                                                                      \
  INLINE vector tanh##L(vector x) {                                                      \
    vector a = sel##L(lt##L(x, S##L(0)), -x, x) * S##L(2);                               \
    vector e = expm1_near##L(sel##L(gt##L(a, S##L(EXACT)), S##L(EXACT), a));             \
    vector r = e / (e + S##L(2));                                                        \
    return sel##L(lt##L(x, S##L(0)), -r, sel##L(eq##L(x, S##L(0)), x, r));               \
  }
EXPONENTIAL(F, vf, vs, 12582912.0f, 23, 127, 0.693359375f, -2.12194440e-4f, -104.0f, 89.0f, 20)
EXPONENTIAL(D, vd, vi, 6755399441055744.0, 52, 1023, 6.93147180369123816490e-01, 1.90821492927058770002e-10, -746.0,
            710.0, 40)

// x = 2^k (1 + f), and log(1 + f) = f - f^2 / 2 + s (f^2 / 2 + s^2 P(s^2)) with s = f / (2 + f). TINY: the least number
// with all digits, ONE: the bits of 1, LIFT: 2^DIGITS.
#define LOGARITHM(L, vector, integer, DIGITS, BIAS, TINY, ONE, LIFT, LN2, LN2_REST)      \
  INLINE vector log##L(vector x) {                                                       \
    vb tiny = lt##L(x, S##L(TINY));                                                      \
    vector lifted = sel##L(tiny, x * S##L(LIFT), x);                                     \
    integer b = bits<integer>(lifted);                                                   \
    vector m = bits<vector>((b & ((((integer){} + 1) << DIGITS) - 1)) | ONE);            \
    vector k = bits<vector>(((b >> DIGITS) & (2 * BIAS + 1)) | bits<integer>(S##L(LIFT))) - S##L(LIFT); \
    k = k - sel##L(tiny, S##L(BIAS + DIGITS), S##L(BIAS));                               \
    vb high = gt##L(m, S##L(1.41421356237309504880));                                    \
    m = sel##L(high, S##L(0.5) * m, m);                                                  \
    k = sel##L(high, k + S##L(1), k);                                                    \
    vector f = m - S##L(1), s = f / (m + S##L(1)), z = s * s, half = S##L(0.5) * f * f;  \
    vector r = k * S##L(LN2) - ((half - (s * (half + z * log_part##L(z)) + k * S##L(LN2_REST))) - f); \
    r = sel##L(gt##L(x, S##L(0)), r, sel##L(eq##L(x, S##L(0)), S##L(-INFINITY), S##L(NAN))); \
    return sel##L(eq##L(x, S##L(INFINITY)), x, r);                                       \
  }                                                                                      \
  INLINE vector log1p##L(vector x) {                                                     \
    vector u = S##L(1) + x, lost = (x - (u - S##L(1))) / u;                              \
    vb plain = lt##L(abs##L(lost), S##L(1)); /* neither -1 nor infinite */               \
    vector r = log##L(u);                                                                \
    return sel##L(eq##L(u, S##L(1)), x, sel##L(plain, r + lost, r));                     \
  }
LOGARITHM(F, vf, vs, 23, 127, 1.17549435e-38f, 0x3f800000, 8388608.0f, 0.693359375f, -2.12194440e-4f)
LOGARITHM(D, vd, vi, 52, 1023, 2.2250738585072014e-308, 0x3ff0000000000000, 4503599627370496.0,
          6.93147180369123816490e-01, 1.90821492927058770002e-10)

// The arc of t, between 0 and 1 or infinite: beyond tan(pi / 8) it is pi / 4 and that of (t - 1) / (t + 1).
#define ARC(L, vector, REST)                                                             \
  INLINE vector arc##L(vector t) {                                                       \
    vb high = gt##L(t, S##L(0.41421356237309504880));                                    \
    vector s = sel##L(high, t - S##L(1), t) / sel##L(high, t + S##L(1), S##L(1)), z = s * s; \
    vector r = s + (s * z * atan_part##L(z) + sel##L(high, S##L(0.5 * REST), S##L(0)));  \
    return sel##L(high, S##L(0.78539816339744830962) + r, r);                            \
  }                                                                                      \
  INLINE vector atan##L(vector x) {                                                      \
    vector a = abs##L(x);                                                                \
    vb big = gt##L(a, S##L(1));                                                          \
    vector r = arc##L(sel##L(big, S##L(1) / a, a));                                      \
    r = sel##L(big, S##L(1.57079632679489661923) - (r - S##L(REST)), r);                 \
    return sel##L(lt##L(x, S##L(0)), -r, sel##L(eq##L(x, S##L(0)), x, r));               \
  }                                                                                      \
  INLINE vector atan2##L(vector y, vector x) {                                           \
    vector a = abs##L(x), b = abs##L(y);                                                 \
    vb steep = gt##L(b, a), same = eq##L(b, a);                                          \
    vector small = sel##L(steep, a, b), large = sel##L(steep, b, a);                     \
    vector t = sel##L(same, sel##L(eq##L(a, S##L(0)), a, S##L(1)), small / large);       \
    vector r = arc##L(t);                                                                \
    r = sel##L(steep, S##L(1.57079632679489661923) - (r - S##L(REST)), r);               \
    r = sel##L(negative##L(x), S##L(3.14159265358979323846) - (r - S##L(2 * REST)), r);  \
    return sel##L(negative##L(y), -r, r);                                                \
  }
// Whether the sign bit is set, which zeros have as well.
INLINE vb negativeF(vf x) { return CONVERT(MASKED(bits<vs>(x) < 0, vs), vb); }
INLINE vb negativeD(vd x) { return ltI(bits<vi>(x), SI(0)); }
ARC(F, vf, -4.37113883e-8f)
ARC(D, vd, 6.123233995736766036e-17)
