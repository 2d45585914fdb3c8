// What a warp computes in a way of its own: each lane holds rows in registers, and hands on what it has found.
//
// `matrix[row * i + column * j]` is element i, j. Lanes beyond the last row have zeros, which nobody asks for.

// The columns from `first` on, WIDTH of them, of the lower factor of a matrix of n rows, in its place; those before are
// known. What these take out of the others needs no other lane's sums; then one follows the other.
template <bool parted, bool HAS_DIAGONAL, int WIDTH, int SIZE, int ROW, int COLUMN, class T>
INLINE void factor_rows(T* matrix, int first, int begin, Worlds w) {
  int i = LESSER(begin + LANE_ID, SIZE - 1);
  bool has_row = begin + LANE_ID < SIZE;
  T *rows = matrix + ROW * i, *panel = matrix + ROW * first, own[WIDTH];
  UNROLL for (int c = 0; c < WIDTH; ++c) own[c] = has_row ? rows[COLUMN * (first + c)] : T(0);
  UNROLL_TWICE for (int j = 0; j < first; ++j) {
    T factor = rows[COLUMN * j];
    UNROLL for (int c = 0; c < WIDTH; ++c) own[c] -= factor * panel[ROW * c + COLUMN * j];
  }
  panel += COLUMN * first;
  UNROLL for (int c = 0; c < WIDTH; ++c) {
    T root = HAS_DIAGONAL ? square_root(BROADCAST(own[c], c)) : panel[(ROW + COLUMN) * c];
    own[c] = HAS_DIAGONAL && LANE_ID == c ? root : own[c] / root;
    UNROLL for (int d = c + 1; d < WIDTH; ++d)
      own[d] -= own[c] * (HAS_DIAGONAL ? BROADCAST(own[c], d) : panel[ROW * d + COLUMN * c]);
  }
  if (has_row)
    UNROLL for (int c = 0; c < WIDTH; ++c)
      if (first + c <= i) rows[COLUMN * (first + c)] = own[c];
  SYNC;
}
template <bool parted, int WIDTH, int SIZE, int ROW, int COLUMN, class T>
INLINE void factor_columns(T* matrix, int first, int end, Worlds w) {
  NO_UNROLL for (; first < end; first += WIDTH) {
    factor_rows<parted, true, WIDTH, SIZE, ROW, COLUMN>(matrix, first, first, w);
    NO_UNROLL for (int begin = first + LANES; begin < SIZE; begin += LANES)
      factor_rows<parted, false, WIDTH, SIZE, ROW, COLUMN>(matrix, first, begin, w);
  }
}
// The whole factor, of what is so many bytes behind the beginning of a world's memory; what is above the diagonal stays
// as it is.
template <bool parted, class T, bool IS_NEAR, int SIZE, int ROW, int COLUMN>
FUNCTION void cholesky(int offset) {
  Worlds w = OWN_WORLD;
  T* matrix = (T*)((IS_NEAR ? SHARED(w) : global(w.far)) + offset);
  constexpr int eights = LANES < 8 ? 0 : SIZE / 8 * 8, fours = LANES < 4 ? eights : SIZE / 4 * 4;
  SYNC;
  factor_columns<parted, LESSER(8, LANES), SIZE, ROW, COLUMN>(matrix, 0, eights, w);
  if (fours > eights) factor_columns<parted, LESSER(4, LANES), SIZE, ROW, COLUMN>(matrix, eights, fours, w);
  factor_columns<parted, 1, SIZE, ROW, COLUMN>(matrix, fours, SIZE, w);
}

// `x[i] -= matrix[i, k] * (x[k] * scale[k])`, for all rows i behind k, for one k after the other: those behind are those
// with greater numbers if `forward`, and k goes up, else those with less, and k goes down.
template <bool parted, int BLOCKS, class T>
INLINE void substitute(T* x, T const* matrix, T const* scale, int n, int step, int row, int column, int scale_step,
                       bool forward, bool scaled, Worlds w) {
  SYNC;
  T own[BLOCKS], factor[BLOCKS];
  int at[BLOCKS];
  UNROLL for (int b = 0; b < BLOCKS; ++b) {
    at[b] = LESSER(b * LANES + LANE_ID, n - 1);
    own[b] = b * LANES + LANE_ID < n ? x[step * at[b]] : T(0);
    factor[b] = scaled ? scale[scale_step * at[b]] : T(1);
  }
  UNROLL for (int turn = 0; turn < BLOCKS; ++turn) {
    int now = forward ? turn : BLOCKS - 1 - turn, size = LESSER(LANES, n - now * LANES);
    UNROLL_SOME for (int t = 0; t < size; ++t) {
      int place = forward ? t : size - 1 - t, k = now * LANES + place;
      T known = BROADCAST(scaled ? own[now] * factor[now] : own[now], place);
      UNROLL for (int b = 0; b < BLOCKS; ++b) {
        if (forward ? b < now : b > now) continue;
        T rest = own[b] - matrix[row * at[b] + column * k] * known;
        own[b] = (forward ? at[b] > k : at[b] < k) ? rest : own[b];
      }
    }
  }
  UNROLL for (int b = 0; b < BLOCKS; ++b)
    if (b * LANES + LANE_ID < n) x[step * at[b]] = own[b];
}
