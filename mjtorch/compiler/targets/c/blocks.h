// Tensors: read and write `n` elements that lie beside each other, of every world. If each world has its elements beside
// each other, squares of them are transposed; the last overlaps the one before.
#if N > 1 && defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define TRANSPOSES
#endif
#endif
#ifdef TRANSPOSES
template <int... L>
struct Numbers {};
template <int n, int... L>
struct UpTo : UpTo<n - 1, n - 1, L...> {};
template <int... L>
struct UpTo<0, L...> {
  typedef Numbers<L...> type;
};
// Squares of H rows and columns, beside and below each other, change places across the diagonal.
template <int H, class Row, int... L>
INLINE void exchange(Row& a, Row& b, Numbers<L...>) {
  const int n = sizeof...(L);
  Row upper = __builtin_shufflevector(a, b, (L & H ? n + L - H : L)...);
  b = __builtin_shufflevector(a, b, (L & H ? n + L : L + H)...);
  a = upper;
}
template <int n, int H>
struct Transposed {
  template <class Row>
  INLINE void rows(Row* x) {
#pragma GCC unroll 16
    for (int k = 0; k < n; ++k)
      if (!(k & H)) exchange<H>(x[k], x[k + H], typename UpTo<n>::type());
    Transposed<n, H / 2>::rows(x);
  }
};
template <int n>
struct Transposed<n, 0> {
  template <class Row>
  INLINE void rows(Row*) {}
};
// Copies of so few bytes that a register holds them: from both ends, as far as they meet.
template <int size>
INLINE void copy_ends(char* to, char const* from, int64_t bytes) {
  memcpy(to, from, size);
  memcpy(to + bytes - size, from + bytes - size, size);
}
INLINE void copy_few(void* to, void const* from, int64_t bytes) {
  char* t = (char*)to;
  char const* f = (char const*)from;
  if (bytes >= 32) return copy_ends<32>(t, f, bytes);
  if (bytes >= 16) return copy_ends<16>(t, f, bytes);
  if (bytes >= 8) return copy_ends<8>(t, f, bytes);
  copy_ends<4>(t, f, bytes);
}
template <class Part, class Scalar, class Vector>
BY_LANE void read_rows(Array const& a, int64_t n, Worlds const& w, Vector* x) {
  enum { M = sizeof(Part) / sizeof(Scalar) };
  Scalar const* p[N];
  EACH p[l] = (Scalar const*)a.data + place(w, l) * a.world;
  for (int64_t i = 0; i < n; i += M) {
    if (i && i + M > n) i = n - M;
    for (int k = 0; k < N / M; ++k) {
      Part t[M];
      if (n < M) {
        for (int j = 0; j < M; ++j) copy_few(&t[j], p[k * M + j], n * sizeof(Scalar));
      } else {
        for (int j = 0; j < M; ++j) memcpy(&t[j], p[k * M + j] + i, sizeof(Part));
      }
      Transposed<M, M / 2>::rows(t);
      for (int j = 0; j < M && j < n; ++j) ((Part*)(x + i + j))[k] = t[j];
    }
  }
}
// Lines are asked for before they are written.
template <class Part, class Scalar, class Vector>
BY_LANE void write_rows(Array const& a, int64_t i, int64_t n, Worlds const& w, Vector const* x) {
  enum { M = sizeof(Part) / sizeof(Scalar), AHEAD = 2 * M };
  Scalar* p[N];
  EACH p[l] = (Scalar*)a.data + place(w, l) * a.world + i;
  for (int64_t e = 0; e < n && e < AHEAD; e += M) EACH __builtin_prefetch(p[l] + e, 1);
  for (int64_t e = 0; e < n; e += M) {
    if (e && e + M > n) e = n - M;
    if (e + AHEAD < n) EACH __builtin_prefetch(p[l] + e + AHEAD, 1);
    for (int k = 0; k * M < w.count; ++k) {
      Part t[M];
      for (int j = 0; j < M && j < n; ++j) t[j] = ((Part const*)(x + e + j))[k];
      Transposed<M, M / 2>::rows(t);
      if (n < M) {
        for (int j = 0; j < M && k * M + j < w.count; ++j) copy_few(p[k * M + j], &t[j], n * sizeof(Scalar));
      } else {
        for (int j = 0; j < M && k * M + j < w.count; ++j) memcpy(p[k * M + j] + e, &t[j], sizeof(Part));
      }
    }
  }
}
#define BLOCKS(L, vector, part, scalar)                                                  \
  BY_LANE void read##L(Array const& a, int64_t n, Worlds const& w, P##L x) {             \
    if (a.element == 1 && n > 1) return read_rows<part, scalar>(a, n, w, x);             \
    for (int64_t i = 0; i < n; ++i) x[i] = get##L(a, i, w);                              \
  }                                                                                      \
  BY_LANE void write##L(Array const& a, int64_t i, int64_t n, Worlds const& w, vector const* x) { \
    if (a.element == 1 && n > 1) return write_rows<part, scalar>(a, i, n, w, x);         \
    for (int64_t k = 0; k < n; ++k) put##L(a, i + k, w, x[k]);                           \
  }                                                                                      \
  FILL(L, scalar)
#else
#define BLOCKS(L, vector, part, scalar) ONE_BY_ONE(L, vector, scalar)
#endif
#define ONE_BY_ONE(L, vector, scalar)                                                                 \
  BY_LANE void read##L(Array const& a, int64_t n, Worlds const& w, P##L x) {                          \
    for (int64_t i = 0; i < n; ++i) x[i] = get##L(a, i, w);                                           \
  }                                                                                                   \
  BY_LANE void write##L(Array const& a, int64_t i, int64_t n, Worlds const& w, vector const* x) {     \
    for (int64_t k = 0; k < n; ++k) put##L(a, i + k, w, x[k]);                                        \
  }                                                                                                   \
  FILL(L, scalar)
#define FILL(L, scalar)                                                                               \
  BY_LANE void fill##L(Array const& a, int64_t i, int64_t n, Worlds const& w, scalar x) {             \
    for (int l = 0; l < w.count; ++l) {                                                               \
      scalar* p = (scalar*)a.data + place(w, l) * a.world + i * a.element;                            \
      if (a.element == 1)                                                                             \
        for (int64_t k = 0; k < n; ++k) p[k] = x;                                                     \
      else                                                                                            \
        for (int64_t k = 0; k < n; ++k) p[k * a.element] = x;                                         \
    }                                                                                                 \
  }
BLOCKS(F, vf, vf, float)
#if N == 1 || 8 * N <= REGISTER
BLOCKS(D, vd, vd, double)
BLOCKS(I, vi, vi, int64_t)
#else
BLOCKS(D, vd, pd, double)
BLOCKS(I, vi, pi, int64_t)
#endif
ONE_BY_ONE(B, vb, uint8_t)
