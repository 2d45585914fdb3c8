// Which worlds are computed side by side: those that took about the same in the last call. Where a world stands changes
// nothing in what it comes to, and little in how fast it is read and written. Before threads.cpp.
namespace {
const int64_t TOGETHER = 512;  // so many neighbours are put in order together
const int LEVELS = 256;        // of work that are told apart

// What is kept between calls that look alike.
struct Order {
  float const* work;  // that each world took
  int64_t* places;    // the worlds in order
  int32_t holds;      // whether the next call takes them in this order
};

// What all tiles take: each goes on for as long as one of its worlds.
template <typename World>
double taken(float const* work, int64_t worlds, int64_t lanes, World world) {
  double sum = 0;
  for (int64_t k = 0; k < worlds; k += lanes) {
    float most = 0;
    for (int64_t j = k; j < k + lanes && j < worlds; ++j)
      if (work[world(j)] > most) most = work[world(j)];
    sum += most;
  }
  return sum;
}

// Put worlds in order, those first that took most; those that took the same stay as they were.
void sort(float const* work, int64_t first, int64_t count, int64_t* places) {
  float least = work[first], most = least;
  for (int64_t k = first; k < first + count; ++k) {
    if (work[k] < least) least = work[k];
    if (work[k] > most) most = work[k];
  }
  const float scale = most > least ? (LEVELS - 1) / (most - least) : 0;
  int32_t start[LEVELS + 1] = {};
  uint8_t level[TOGETHER];
  for (int64_t k = 0; k < count; ++k) {
    level[k] = (uint8_t)((most - work[first + k]) * scale);
    ++start[level[k] + 1];
  }
  for (int k = 0; k < LEVELS; ++k) start[k + 1] += start[k];
  for (int64_t k = 0; k < count; ++k) places[first + start[level[k]]++] = first + k;
}

// After a call: the order for the next one, which holds if that of the call before was worth it in this one.
void arrange(Order& o, int64_t worlds, int64_t lanes) {
  const double as_they_are = taken(o.work, worlds, lanes, [](int64_t k) { return k; });
  const double in_order = taken(o.work, worlds, lanes, [&](int64_t k) { return o.places[k]; });
  o.holds = in_order < as_they_are;
  for (int64_t first = 0; first < worlds; first += TOGETHER)
    sort(o.work, first, worlds - first < TOGETHER ? worlds - first : TOGETHER, o.places);
}
}  // namespace
