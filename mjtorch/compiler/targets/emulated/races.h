// Which lane has read and written an element of a world's memory since the last barrier: who reads or overwrites what another
// has written, or overwrites what another has read, is told, once for each pair of operations.
//
// Lanes beyond the end of a loop do its last iteration again: they write what is there already, or only read ahead.
struct Access {
  int64_t written, read;
  int writer, writing, reading;
  unsigned readers;
};
// A stretch of memory, and what was done with what begins at every other byte of it.
struct Stretch {
  char* begin;
  int64_t bytes;
  Access* accesses;
};
enum { STRETCHES = 3, MOST = 64, HAS_WRITTEN = 0, HAS_READ = 1 };
static Stretch stretches[STRETCHES];
static int count_of_stretches, operation, only_ahead;
static int64_t stretch_of_time;
// What was found: the lane that came later, what it did, in which operation, the other lane, and the same of it.
struct Race {
  int lane, writes, operation, other, other_wrote, other_operation;
};
extern "C" Race races[MOST];
extern "C" int count_of_races;
Race races[MOST];
int count_of_races;

static bool watch(char* begin, int64_t bytes) {
  Access* accesses = (Access*)calloc(bytes / 2 + 1, sizeof(Access));
  if (accesses) stretches[count_of_stretches++] = {begin, bytes, accesses};
  return accesses;
}
static void forget() {
  while (count_of_stretches) free(stretches[--count_of_stretches].accesses);
  stretch_of_time = 1;
}
#define WATCH(memory, bytes) watch(memory, bytes)
#define FORGET forget()
#define PASSED(place) stretch_of_time += (place) >= 0 || (place) == -5

static Access* access_of(void const* p) {
  for (int k = 0; k < count_of_stretches; ++k) {
    int64_t at = (char const*)p - stretches[k].begin;
    if (at >= 0 && at < stretches[k].bytes) return stretches[k].accesses + at / 2;
  }
  return 0;
}
static void found(int writes, int other, int other_wrote, int other_operation) {
  for (int k = 0; k < count_of_races; ++k)
    if (races[k].writes == writes && races[k].operation == operation && races[k].other_operation == other_operation) return;
  if (count_of_races < MOST) races[count_of_races++] = {lane_now, writes, operation, other, other_wrote, other_operation};
}
static void note_read(void const* p) {
  Access* a = access_of(p);
  if (!a || only_ahead) return;
  if (a->written == stretch_of_time && a->writer != lane_now) found(0, a->writer, 1, a->writing);
  if (a->read != stretch_of_time) a->read = stretch_of_time, a->readers = 0;
  a->readers |= 1u << lane_now, a->reading = operation;
}
static void note_write(void const* p, bool is_same) {
  Access* a = access_of(p);
  if (!a) return;
  unsigned others = a->readers & ~(1u << lane_now);
  if (a->written == stretch_of_time && a->writer != lane_now && !is_same) found(1, a->writer, 1, a->writing);
  if (a->read == stretch_of_time && others && !is_same) found(1, __builtin_ctz(others), 0, a->reading);
  a->written = stretch_of_time, a->writer = lane_now, a->writing = operation;
}
// An element of an array of a world.
template <class T>
struct Element {
  T* p;
  operator T() const {
    note_read(p);
    return *p;
  }
  T operator=(T x) const {
    note_write(p, !memcmp(&x, p, sizeof(T)));
    return *p = x;
  }
  T operator=(Element const& x) const { return *this = (T)x; }
  T* operator&() const { return p; }
};
template <class T>
struct Elements {
  T* p;
  Elements() = default;
  Elements(T* p) : p(p) {}
  template <class I>
  Element<T> operator[](I i) const {
    return {p + i};
  }
  Elements operator+(int64_t i) const { return p + i; }
};
// What is read ahead by a lane whose iteration it is not goes nowhere.
template <class F>
static auto taken(bool is_own, F f) -> decltype(f()) {
  only_ahead = !is_own;
  auto x = f();
  only_ahead = 0;
  return x;
}
template <class T>
static T value_of(Element<T> x) {
  return x;
}
template <class T>
static T value_of(T x) {
  return x;
}
#define TAKEN(is_own, x) taken(is_own, [&] { return value_of(x); })
