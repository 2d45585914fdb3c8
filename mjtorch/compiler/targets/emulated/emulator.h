// A warp on the host: LANES coroutines that take turns in a new random order from each barrier to the next.
// So a lane that needs another's result, without a barrier between, sooner or later misses it.
#define HOST
// Checked jumps take a jump to another stack for a mistake.
#undef _FORTIFY_SOURCE
// C's functions are all that is used: libstdc++ reads the whole of <cmath> behind this name, five times of what is needed.
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <math.h>
#undef _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define INLINE static inline __attribute__((always_inline, unused))
#define FUNCTION static __attribute__((noinline, unused))
#define CONSTANT static const
#define UNROLL
#define NO_UNROLL
#define UNROLL_SOME
#define UNROLL_TWICE
#define MEET
#define OWN_WORLD *world_now
#define ARRAYS                                          \
  Array const *in = tables_in, *out = tables_out;       \
  Worlds w = OWN_WORLD
#define FIND_COMMON Uniform u = *uniform_now
#define AGAIN (void)0
#define LANE_ANEW (void)0
#ifndef WATCHED
template <class T>
using Elements = T*;
#define TAKEN(is_own, x) x
#endif
#define SOME(f) alike(any(f))
#define JOINED (void)0
#define global(p) (p)

static struct Array const *tables_in, *tables_out;
static struct Worlds* world_now;
static struct Uniform* uniform_now;
static volatile int lane_now;
// Where the scheduler and each lane go on. Contexts only begin lanes: to swap them asks the system each time.
static jmp_buf scheduler, paused[LANES];
static ucontext_t beginning[LANES];
static void (*work_of_lanes)();
static int place_of[LANES], begun[LANES];
static double slot[LANES];
static char *shared_memory, *far_memory;
static uint64_t seed;
static int diverged;

// What each lane has said where all say the same: the sum tells whether they did.
static unsigned said[LANES];
static bool alike(bool f) {
  said[lane_now] = 31 * said[lane_now] + 1 + f;
  return f;
}

// Which of the barriers, in the order of the text, orders no accesses, and at which lanes do not wait.
extern "C" int taken_away, skipped;
int taken_away = -1, skipped = -1;

#define LANE_ID lane_now
#define SHARED(w) shared_memory
#define COUNT(m) __builtin_popcount(m)
#if LANES == 1
#define SYNC (void)0
#define SHUFFLE(x, distance) (x)
#define BROADCAST(x, lane) (x)
#define BALLOT(f) (unsigned)(f)
#else
static void wait_at(int place) {
  if (place == skipped && place >= 0) return;
  place_of[lane_now] = place;
  if (!_setjmp(paused[lane_now])) _longjmp(scheduler, 1);
}
static void whole_lane() {
  work_of_lanes();
  _longjmp(scheduler, 1);
}
// Let a lane go on until it waits, or is done.
static void go_on(int lane) {
  if (_setjmp(scheduler)) return;
  if (begun[lane]) _longjmp(paused[lane], 1);
  begun[lane] = 1;
  setcontext(&beginning[lane]);
}
#define SYNC wait_at(__COUNTER__)
template <class T>
static T from_lane(T x, int lane) {
  memcpy(&slot[lane_now], &x, sizeof(T));
  wait_at(-1);
  memcpy(&x, &slot[lane], sizeof(T));
  wait_at(-2);
  return x;
}
#define SHUFFLE(x, distance) from_lane(x, lane_now ^ (distance))
#define BROADCAST(x, lane) from_lane(x, lane)
static unsigned ballot(bool f) {
  slot[lane_now] = f;
  wait_at(-3);
  unsigned m = 0;
  for (int l = 0; l < LANES; ++l) m |= (unsigned)(slot[l] != 0) << l;
  wait_at(-4);
  return m;
}
#define BALLOT(f) ballot(f)
#endif

#ifdef WATCHED
// Which lane has read and written an element of a world's memory since the last barrier: who reads or overwrites what another
// has written, or overwrites what another has read, is told, once for each pair of operations.
//
// Lanes beyond the end of a loop do its last iteration again: they write what is there already, or only read ahead. Where
// a wide element is, two narrow ones of another array may have been: each word of it counts.
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
enum { STRETCHES = 3, MOST = 64, WORD = 4, HAS_WRITTEN = 0, HAS_READ = 1 };
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
  int64_t size = (bytes / 2 + 1) * sizeof(Access);
  Access* accesses = (Access*)malloc(size);
  if (!accesses) return false;
  memset(accesses, 0, size);
  stretches[count_of_stretches++] = {begin, bytes, accesses};
  return true;
}
static void forget() {
  while (count_of_stretches) free(stretches[--count_of_stretches].accesses);
  stretch_of_time = 1;
}
#define WATCH(memory, bytes) watch(memory, bytes)
#define FORGET forget()
#define PASSED(place) stretch_of_time += ((place) >= 0 && (place) != taken_away) || (place) == -5

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
static void note_read(void const* p, int bytes) {
  if (bytes > WORD) note_read((char const*)p + WORD, bytes - WORD);
  Access* a = access_of(p);
  if (!a || only_ahead) return;
  if (a->written == stretch_of_time && a->writer != lane_now) found(0, a->writer, 1, a->writing);
  if (a->read != stretch_of_time) a->read = stretch_of_time, a->readers = 0;
  a->readers |= 1u << lane_now, a->reading = operation;
}
static void note_write(void const* p, int bytes, bool is_same) {
  if (bytes > WORD) note_write((char const*)p + WORD, bytes - WORD, is_same);
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
    note_read(p, sizeof(T));
    return *p;
  }
  T operator=(T x) const {
    note_write(p, sizeof(T), !memcmp(&x, p, sizeof(T)));
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
#else
#define WATCH(memory, bytes) true
#define FORGET
#define PASSED(place)
#endif
static unsigned draw(unsigned n) {
  seed = seed * 6364136223846793005ull + 1442695040888963407ull;
  return (unsigned)(seed >> 33) % n;
}

// Whether there is no memory.
static int refused;

// Run all lanes to their ends; those that wait must wait for the same barrier, and have said the same where all do.
static void run_lanes(void (*work)()) {
#if LANES == 1
  lane_now = 0;
  work();
#else
  static char* stacks[LANES];
  enum { STACK = 1 << 18 };
  work_of_lanes = work;
  for (int l = 0; l < LANES; ++l) {
    if (!stacks[l]) stacks[l] = (char*)malloc(STACK);
    if (!stacks[l]) {
      refused = 1;
      return;
    }
    getcontext(&beginning[l]);
    beginning[l].uc_stack.ss_sp = stacks[l];
    beginning[l].uc_stack.ss_size = STACK;
    begun[l] = said[l] = 0;
    makecontext(&beginning[l], whole_lane, 0);
  }
  for (int left = LANES; left;) {
    int order[LANES];
    for (int l = 0; l < LANES; ++l) order[l] = l;
    for (int l = LANES - 1; l > 0; --l) {
      int k = draw(l + 1), x = order[l];
      order[l] = order[k];
      order[k] = x;
    }
    for (int l = 0; l < LANES; ++l) {
      lane_now = order[l];
      place_of[lane_now] = -5;
      go_on(lane_now);
      if (place_of[lane_now] == -5) --left;
    }
    for (int l = 1; l < LANES; ++l) diverged |= place_of[l] != place_of[0] || said[l] != said[0];
    PASSED(place_of[0]);
    if (diverged) return;
  }
#endif
}

#define KERNEL(...)                                                                      \
  static void work() {                                                                   \
    __VA_ARGS__                                                                          \
  }                                                                                      \
  /* Memory begins as NaN in each world, so that what was never written shows. */        \
  extern "C" int run(Array const* in, Array const* out, int64_t count, int64_t random) { \
    char* uniform_memory = (char*)malloc(UNIFORM_BYTES + 64);                            \
    tables_in = in, tables_out = out, seed = random, diverged = refused = 0;             \
    shared_memory = (char*)malloc(SHARED_BYTES + 64), far_memory = (char*)malloc(FAR_BYTES + 64);\
    FORGET;                                                                              \
    if (!uniform_memory || !shared_memory || !far_memory || !WATCH(uniform_memory, UNIFORM_BYTES) || \
        !WATCH(shared_memory, SHARED_BYTES) || !WATCH(far_memory, FAR_BYTES)) {          \
      FORGET;                                                                            \
      free(uniform_memory), free(shared_memory), free(far_memory);                       \
      return 2;                                                                          \
    }                                                                                    \
    memset(uniform_memory, 255, UNIFORM_BYTES + 64), memset(shared_memory, 255, SHARED_BYTES + 64); \
    Uniform common = COMMON(uniform_memory);                                             \
    Worlds world = {0, 1, 0, far_memory};                                                \
    uniform_now = &common, world_now = &world;                                           \
    if (UNIFORM_BYTES) run_lanes(work_uniform);                                                \
    for (int64_t k = 0; k < count; ++k) {                                                \
      memset(shared_memory, 255, SHARED_BYTES + 64), memset(far_memory, 255, FAR_BYTES + 64); \
      world.first = k;                                                                   \
      run_lanes(work);                                                                   \
    }                                                                                    \
    FORGET;                                                                              \
    free(uniform_memory), free(shared_memory), free(far_memory);                         \
    return refused ? 2 : diverged;                                                       \
  }
#define KERNEL_UNIFORM(...) \
  static void work_uniform() { __VA_ARGS__ }
